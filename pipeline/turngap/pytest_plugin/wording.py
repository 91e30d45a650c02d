"""What a failed latency test prints: the figure, the stage that took the time, the waterfalls."""

import shutil
from collections.abc import Iterable, Sequence
from statistics import median

from turngap.check.record import MetricRecord, StageShiftRecord
from turngap.check.verdict import MetricVerdict, StageShift
from turngap.core.results import Turn
from turngap.report import words
from turngap.report.console import turn_block

# Enough to see what they have in common; all of them are in the run's report.html.
SHOWN = 3
_PREFIX = len("E   ")


def offenders(turns: Sequence[Turn]) -> str:
    """The waterfalls of the first few turns."""
    columns = shutil.get_terminal_size().columns - _PREFIX
    width = min(max(columns, 60), 100)
    text = "\n".join(turn_block(turn, width).plain for turn in turns[:SHOWN])
    rest = len(turns) - SHOWN
    return text.rstrip("\n") + (f"\n\n… and {words.turns_words(rest)} more" if rest > 0 else "")


def blame(offending: Sequence[Turn], others: Sequence[Turn]) -> str | None:
    """Which stage makes the difference between turns that are too slow and those that are not."""
    slow, usual = _medians(offending), _medians(others)
    if not slow:
        return None
    stage = max(slow, key=lambda name: slow[name] - usual.get(name, 0.0))
    text = f"most of it: {stage}, median {words.ms(slow[stage])} ms in these turns"
    if usual:
        text += f", {words.ms(usual.get(stage, 0.0))} ms in the other {len(others)}"
    if stage == "unattributed":
        text += " (the agent reports no marks: turngap.agent.observer.MarksObserver gives it some)"
    return text


def _medians(turns: Iterable[Turn]) -> dict[str, float]:
    """Median of each stage in ms, over the turns that were answered; 0 where one lacks it."""
    answered = [t for t in turns if t.replied]
    names = dict.fromkeys(stage.name for turn in answered for stage in turn.stages)
    return {
        name: median(sum(s.ms for s in turn.stages if s.name == name) for turn in answered)
        for name in names
    }


def report(
    headline: str,
    offending: Sequence[Turn],
    others: Sequence[Turn],
    runs: str,
    *,
    remarks: Iterable[str | None] = (),
) -> str:
    """A failure in full: headline, remarks, blame, waterfalls, where the run is."""
    lines = [headline, *(r for r in remarks if r), blame(offending, others)]
    text = "\n".join(line for line in lines if line)
    if offending:
        text += f"\n\n{offenders(offending)}"
    return f"{text}\n\nrun: {runs}"


def metric_words(metric: MetricVerdict | MetricRecord) -> str:
    """One metric of a comparison: what changed, how surely, and what would have been seen."""
    if metric.difference is None:
        return f"{metric.name}: {metric.verdict} ({metric.why or 'not known'})"
    text = f"{metric.name}: {metric.verdict}, {_change(metric, metric.difference)}"
    text += f" ({_interval(metric)}; n={metric.n} pairs)"
    if metric.verdict == "undecided":
        text += f"; {metric.why}" if metric.why else ""
        if metric.turns_needed is not None:
            text += f"; about {metric.turns_needed} more pairs would decide"
    return text


def _interval(metric: MetricVerdict | MetricRecord) -> str:
    if metric.low is not None and metric.high is not None:
        low, high = _change(metric, metric.low), _change(metric, metric.high)
        return f"95 % interval {low} to {high}"
    if metric.high is not None:
        return f"95 % sure: at most {_change(metric, metric.high)}"
    if metric.low is not None:
        return f"95 % sure: at least {_change(metric, metric.low)}"
    return "too few for an interval"


def _change(metric: MetricVerdict | MetricRecord, value: float) -> str:
    # Of the hit rate it is the loss that is stored, and the loss that is shown.
    figure = f"{value:+.0f} ms" if metric.unit == "ms" else f"{value:+.0%} lost"
    return figure.replace("-", "−")


def moved_words(shifts: Sequence[StageShift | StageShiftRecord]) -> str | None:
    """The stages that grew beyond chance, most first."""
    grown = sorted((s for s in shifts if s.moved), key=lambda s: -s.shift_ms)
    if not grown:
        return None
    listed = ", ".join(f"{s.name} +{words.ms(s.shift_ms)} ms (n={s.n})" for s in grown)
    return f"stage that moved: {listed}"
