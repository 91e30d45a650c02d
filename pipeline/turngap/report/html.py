"""A run as one page that needs nothing but itself and the recordings beside it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turngap.core.budget import NATURAL_MS, OUTCOMES
from turngap.core.results import Turn
from turngap.core.summary import Summary, summarise
from turngap.report import charts, pages, words
from turngap.store.runs import Run

REPORT_FILE = "report.html"


@dataclass(frozen=True, slots=True)
class TurnView:
    """One turn as the page shows it. `audio` is a link within the run's folder, or None."""

    turn: Turn
    anchor: str
    waterfall: charts.Waterfall
    audio: str | None
    why: str | None
    notes: list[str]
    answer: str | None
    calls: list[str]
    others: list[tuple[str, str]]


def write_html(run: Run) -> Path:
    """Write `report.html` into the run's folder, in place of an older one.

    Returns:
        The page's path.

    Raises:
        InputError: the folder cannot be written to.
    """
    file = run.path / REPORT_FILE
    pages.write(file, render(run).encode("utf-8", errors="replace"))
    return file


def render(run: Run) -> str:
    """The page. Everything that a run holds is text here, whatever it looks like."""
    summary = summarise(run.turns)
    views = _turn_views(run)
    budget_ms = run.record.budget_ms
    hit_rate, hit_interval = words.hit_rate_words(summary.hit_rate)
    return pages.page(
        "report",
        run=run,
        record=run.record,
        names=words.run_words(run.record),
        summary=summary,
        hit_rate=hit_rate,
        hit_interval=hit_interval,
        percentiles={k: words.percentile_words(p) for k, p in summary.gap_ms.items()},
        left_out=words.left_out_words(summary),
        right=words.right_words(summary),
        llm=words.token_figures_words(summary.llm) if summary.llm else None,
        other_right=words.other_right_words(run.record, summary),
        plot=_plot(views, budget_ms, summary),
        curve_px=charts.CURVE_PX,
        strip_px=charts.STRIP_PX,
        natural="{:.0f} to {:.0f} ms".format(*NATURAL_MS),
        outcomes=[o for o in OUTCOMES if o in summary.outcomes],
        by_scenario=_outcomes_by_scenario(run.turns),
        scenarios=_grouped(views),
        outcome_means=words.OUTCOME_MEANS,
        percentile_words=words.percentile_words,
        validity=words.validity_words(run.record),
        accepted=words.accepted_words(run.record.starved_ms, summary.caller_error_ms),
        calibration=words.calibration_words(run.record),
        offset=words.offset_words(run.record),
        agent_facts=list(words.flat(run.record.agent)),
        settings=list(words.flat(run.record.settings)),
    )


def _turn_views(run: Run) -> list[TurnView]:
    domain = charts.domain_of(run.turns)
    return [
        TurnView(
            turn=turn,
            anchor=f"turn-{number}",
            waterfall=charts.waterfall(turn, domain),
            audio=pages.audio_link(run, turn, run.path),
            why=words.why_words(turn),
            notes=words.notes_of(turn),
            answer=words.answer_words(turn),
            calls=words.calls_words(turn),
            others=words.other_verdicts_words(turn),
        )
        for number, turn in enumerate(run.turns, start=1)
    ]


def _plot(views: Sequence[TurnView], budget_ms: float, summary: Summary) -> charts.GapPlot:
    counted = [view for view in views if view.turn.left_out is None]
    turns, anchors = [v.turn for v in counted], [v.anchor for v in counted]
    return charts.gap_plot(turns, anchors, budget_ms, _plot_in_words(summary))


def _plot_in_words(summary: Summary) -> str:
    figure, remark = words.hit_rate_words(summary.hit_rate)
    gaps = ", ".join(f"{k} {words.percentile_words(p)[0]}" for k, p in summary.gap_ms.items())
    return (
        f"Share of turns answered within each gap: {figure} of {summary.hit_rate.n} within budget, "
        f"{remark}; {gaps}"
    )


def _outcomes_by_scenario(turns: Sequence[Turn]) -> dict[str, Counter[str]]:
    counted: dict[str, Counter[str]] = {}
    for turn in turns:
        counted.setdefault(turn.scenario, Counter())[turn.outcome] += 1
    return counted


def _grouped(views: Sequence[TurnView]) -> dict[str, list[TurnView]]:
    grouped: dict[str, list[TurnView]] = {}
    for view in views:
        grouped.setdefault(view.turn.scenario, []).append(view)
    return grouped
