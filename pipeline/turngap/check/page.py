"""A check as one page that needs nothing but itself and the recordings beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turngap.check import charts as check_charts
from turngap.check import charts as check_pairs
from turngap.check import words as check_words
from turngap.check.record import CheckRecord
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.results import Turn
from turngap.report import charts, pages, words
from turngap.store.runs import Run


@dataclass(frozen=True, slots=True)
class SideView:
    """One agent's take of a turn. `audio` is a link from the check's folder, or None."""

    letter: str
    turn: Turn
    waterfall: charts.Waterfall
    audio: str | None
    why: str | None
    notes: list[str]


@dataclass(frozen=True, slots=True)
class PairView:
    """One of the turns worth a look."""

    anchor: str
    name: str
    heading: str
    moved: str
    say: str
    sides: tuple[SideView, ...]


def render(record: CheckRecord, folder: Path, candidate: Run, reference: Run | None) -> str:
    """The page, for a file in `folder`."""
    taken = reference.turns if reference else ()
    pairs = check_pairs.paired(candidate.turns, taken)
    budget_ms = candidate.record.budget_ms or DEFAULT_BUDGET_MS
    names = (_name(record, "A"), _name(record, "B"))
    medians = [check_pairs.stage_medians(turns) for turns in (taken, candidate.turns)]
    return pages.page(
        "check",
        styles=("check",),
        record=record,
        look=check_words.look_of(record),
        why=check_words.why_words(record),
        decide=check_words.to_decide(record),
        names=names,
        problems=_problems(record, candidate, reference),
        metrics=[(m, check_charts.metric_range(m)) for m in record.metrics],
        budgets=[(b, check_charts.budget_range(b)) for b in record.budgets],
        plot=check_charts.gaps_plot(candidate.turns, taken, budget_ms, names),
        budget_ms=budget_ms,
        curve_px=charts.CURVE_PX,
        strip_row_px=check_charts.STRIP_ROW_PX,
        stages=check_charts.stage_rows(record, *medians),
        llm=check_pairs.llm_words(candidate.turns, taken),
        pairs=check_charts.pairs_plot(pairs),
        pairs_px=check_charts.PAIRS_PX,
        worst=_views(check_pairs.worst(pairs), folder, candidate, reference),
        differences=check_words.differences(record),
        command=check_words.command(record),
        text=check_words,
        calibration=words.calibration_words(candidate.record),
        offset=words.offset_words(candidate.record),
        versions=candidate.record,
        settings=list(words.flat(candidate.record.settings)),
    )


def _name(record: CheckRecord, letter: str) -> str:
    side = record.reference if letter == "A" else record.candidate
    return "none" if side is None else check_words.side_name(side)


def _problems(record: CheckRecord, candidate: Run, reference: Run | None) -> list[str]:
    """What is wrong with either run, but for what the verdict's reasons say already."""
    said = " ".join(record.why)
    found: list[str] = []
    for side, run in (("candidate", candidate), ("reference", reference)):
        if run is not None:
            found += [f"{side}: {words.clean(problem)}" for problem in run.problems]
            reasons = run.record.why_invalid
            if run.record.valid or (reasons and all(why in said for why in reasons)):
                continue
            if record.verdict == "cannot_compare":
                found.append(f"{side}: {words.validity_words(run.record)}")
            else:
                found.append(
                    f"{side}: its percentiles do not hold by themselves, the verdict does: "
                    f"{'; '.join(map(words.clean, reasons))}"
                )
    return found


def _views(
    pairs: Sequence[check_pairs.TurnPair],
    folder: Path,
    candidate: Run,
    reference: Run | None,
) -> list[PairView]:
    """One domain for all of them: the two waterfalls of a turn are compared by eye."""
    turns = [t for p in pairs for t in (p.reference, p.candidate) if t is not None]
    domain = charts.domain_of(turns, shown_whole=1.0)
    views: list[PairView] = []
    for number, pair in enumerate(pairs, start=1):
        sides: list[SideView] = []
        if pair.reference is not None and reference is not None:
            sides.append(_side("A", reference, pair.reference, folder, domain))
        sides.append(_side("B", candidate, pair.candidate, folder, domain))
        views.append(
            PairView(
                anchor=f"worst-{number}",
                name=check_charts.turn_name(pair.candidate),
                heading=check_pairs.heading(pair),
                moved=check_pairs.moved_in(pair),
                say=pair.candidate.say,
                sides=tuple(sides),
            )
        )
    return views


def _side(letter: str, run: Run, turn: Turn, folder: Path, domain: charts.Domain) -> SideView:
    return SideView(
        letter=letter,
        turn=turn,
        waterfall=charts.waterfall(turn, domain),
        audio=pages.audio_link(run, turn, folder),
        why=words.why_words(turn),
        notes=words.notes_of(turn),
    )
