"""What a failed latency test prints: the figure, the stage that took the time, the waterfalls."""

import shutil
from collections.abc import Iterable, Sequence
from statistics import median

from turngap.check import words as check_words
from turngap.check.record import MetricVerdict, StageShift
from turngap.core.results import Turn
from turngap.core.stages import UNATTRIBUTED
from turngap.report import looks, words
from turngap.report.console import turn_block

# Enough to see what they have in common; all of them are in the run's report.html.
SHOWN = 3
_PREFIX = len("E   ")

ADD_MARKS = f"the agent reports no marks; in a pipecat bot, add: {'; '.join(words.ADD_MARKS)}"


def offenders(turns: Sequence[Turn]) -> str:
    """Draw the waterfalls of the first few turns."""
    columns = shutil.get_terminal_size().columns - _PREFIX
    width = min(max(columns, 60), 100)
    text = "\n".join(turn_block(turn, width).plain for turn in turns[:SHOWN])
    rest = len(turns) - SHOWN
    return text.rstrip("\n") + (f"\n\n… and {words.turns_words(rest)} more" if rest > 0 else "")


def blame(offending: Sequence[Turn], others: Sequence[Turn]) -> str | None:
    """Name the stage that makes the difference between too slow turns and the others."""
    slow, usual = _medians(offending), _medians(others)
    if not slow:
        return None
    stage = max(slow, key=lambda name: slow[name] - usual.get(name, 0.0))
    text = f"most of it: {looks.full_name(stage)}, median {words.ms(slow[stage])} ms in these turns"
    if usual:
        text += f", {words.ms(usual.get(stage, 0.0))} ms in the other {len(others)}"
    return f"{text} ({ADD_MARKS})" if stage == UNATTRIBUTED else text


def _medians(turns: Sequence[Turn]) -> dict[str, float]:
    """Median of each stage in ms, over the turns that were answered; 0 where one lacks it."""
    answered = [turn.stage_ms for turn in turns if turn.replied]
    names = dict.fromkeys(name for stages in answered for name in stages)
    return {name: median(stages.get(name, 0.0) for stages in answered) for name in names}


def report(
    headline: str,
    offending: Sequence[Turn],
    others: Sequence[Turn],
    runs: object,
    remark: str | None = None,
) -> str:
    """Write a failure in full: headline, remark, blame, waterfalls, where the run is."""
    text = "\n".join(filter(None, (headline, remark, blame(offending, others))))
    if offending:
        text += f"\n\n{offenders(offending)}"
    return f"{text}\n\nrun: {runs}"


def metric_words(metric: MetricVerdict) -> str:
    """One metric of a comparison: what changed, how surely, and what would have been seen."""
    if metric.difference is None:
        return f"{metric.name}: {metric.verdict} ({metric.why or 'not known'})"
    bounds = check_words.interval_words(metric)
    interval = f"95 % interval {bounds}" if bounds else "too few for an interval"
    change = check_words.difference_words(metric)
    text = f"{metric.name}: {metric.verdict}, {change} ({interval}; n={metric.n} pairs)"
    if metric.verdict != "undecided":
        return text
    needed = metric.turns_needed
    more = None if needed is None else f"about {check_words.more_pairs(needed)} would decide"
    return "; ".join(filter(None, (text, metric.why, more)))


def moved_words(shifts: Iterable[StageShift]) -> str | None:
    """Name the stages that grew beyond chance, most first."""
    grown = sorted((s for s in shifts if s.moved), key=lambda s: -s.shift_ms)
    listed = ", ".join(
        f"{looks.full_name(s.name)} +{words.ms(s.shift_ms)} ms (n={s.n})" for s in grown
    )
    return f"stage that moved: {listed}" if grown else None
