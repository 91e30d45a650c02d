"""The turns of a check side by side, the ones worth a look, and their drawings."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from turngap.check import words as check_words
from turngap.core.results import Turn
from turngap.core.stats import percentile
from turngap.report import looks, words
from turngap.report.charts import Bar, Chart, Mark, Rule, round_step
from turngap.report.sections import Range
from turngap.store.checks import BudgetRecord, MetricVerdict

# Of these, at most this many are shown; the runs of the check hold the rest.
MOST_SHOWN = 8
# Turns that came out worse with the candidate take at most this part of them.
MOST_FAILED = 5
# Slower by less than this is not worth a recording.
WORTH_MS = 20.0
# From good to bad; `abandoned` says nothing about the agent.
BADNESS = {"answered": 0, "abandoned": 0, "late": 1, "cut_in": 2, "no_reply": 3, "error": 4}


@dataclass(frozen=True, slots=True)
class TurnPair:
    """A turn as both agents took it; `reference` is None if only the candidate did.

    `shift_ms`: candidate's gap minus reference's; None if either has no gap to compare.
    """

    candidate: Turn
    reference: Turn | None
    shift_ms: float | None

    @property
    def worse_outcome(self) -> bool:
        """Return whether the candidate's outcome is worse than the reference's or, alone, bad."""
        before = BADNESS[self.reference.outcome] if self.reference else 0
        return BADNESS[self.candidate.outcome] > before


def paired(candidate: Sequence[Turn], reference: Sequence[Turn]) -> list[TurnPair]:
    """List every turn of the candidate with the reference's same turn, in the candidate's order."""
    by_key = {turn.key: turn for turn in reference}
    return [_pair(turn, by_key.get(turn.key)) for turn in candidate]


def _pair(candidate: Turn, reference: Turn | None) -> TurnPair:
    comparable = all(t is not None and t.replied for t in (candidate, reference))
    if not comparable or reference is None or candidate.gap_ms is None or reference.gap_ms is None:
        return TurnPair(candidate, reference, None)
    return TurnPair(candidate, reference, candidate.gap_ms - reference.gap_ms)


def worst(pairs: Sequence[TurnPair]) -> list[TurnPair]:
    """Select the worst pairs: those with a worse outcome first, then the most slowed."""
    failed = [p for p in pairs if p.worse_outcome]
    failed.sort(key=lambda p: (-BADNESS[p.candidate.outcome], -(p.shift_ms or 0.0)))
    chosen = failed[:MOST_FAILED]
    slowed = [p for p in pairs if (p.shift_ms or 0.0) >= WORTH_MS and p not in chosen]
    slowed.sort(key=lambda p: -(p.shift_ms or 0.0))
    return [*chosen, *slowed][:MOST_SHOWN]


def stage_medians(turns: Sequence[Turn]) -> dict[str, float]:
    """Return each stage's median in ms over the answered turns that have it."""
    found: dict[str, list[float]] = {}
    for turn in turns:
        if turn.replied:
            for name, ms in _stages(turn).items():
                found.setdefault(name, []).append(ms)
    return {name: median(values) for name, values in found.items()}


def _stages(turn: Turn) -> dict[str, float]:
    """Return stages by name; add up those with the same name."""
    stages: dict[str, float] = {}
    for stage in turn.stages:
        stages[stage.name] = stages.get(stage.name, 0.0) + stage.ms
    return stages


def moved_in(pair: TurnPair) -> str:
    """Name the stages that made this turn slower or quicker, largest first; empty if unknown."""
    if pair.shift_ms is None or pair.reference is None:
        return ""
    before, after = _stages(pair.reference), _stages(pair.candidate)
    moved = {n: after.get(n, 0.0) - before.get(n, 0.0) for n in dict.fromkeys([*before, *after])}
    largest = sorted(moved.items(), key=lambda item: -abs(item[1]))[:3]
    return ", ".join(
        f"{looks.short_name(name)} {check_words.signed_ms(ms)} ms"
        for name, ms in largest
        if abs(ms) >= 1
    )


def heading(pair: TurnPair) -> str:
    """Describe the turn's change against its reference."""
    if pair.shift_ms is not None:
        slower = "slower" if pair.shift_ms > 0 else "quicker"
        return f"{words.ms(abs(pair.shift_ms))} ms {slower} than the reference"
    if pair.reference is None:
        return pair.candidate.outcome
    return f"{pair.candidate.outcome} (reference: {pair.reference.outcome})"


PAIRS_PX = 180
# Ticks of pairs beyond this share of all would flatten the others: they run over the edge.
PAIRS_SHOWN_WHOLE = 0.98
# Nothing below fills a drawing of shifts: on a quiet machine it is noise.
LEAST_MS = 10.0


def metric_range(metric: MetricVerdict) -> Range | None:
    """Draw a metric's change as a range: right is always worse. None without figures.

    An interval without an end reaches beyond the drawing's edge.
    """
    if metric.difference is None:
        return None
    bounds = (metric.low, metric.high)
    ends = [0.0, metric.limit, metric.difference, *(b for b in bounds if b is not None)]
    room = (max(ends) - min(ends)) * 0.06
    low, high = min(ends) - room, max(ends) + room

    def x(value: float) -> float:
        return round(100 * (value - low) / (high - low), 3)

    interval = check_words.interval_words(metric)
    spoken = (
        f"{metric.name} {check_words.difference_words(metric)}, "
        f"95 % interval {interval or 'not known'}, limit {check_words.limit_words(metric)}"
    )
    left = 0.0 if metric.low is None else x(metric.low)
    right = 100.0 if metric.high is None else x(metric.high)
    width = round(max(right - left, 0.5), 3)
    return Range(x(0.0), x(metric.limit), left, width, x(metric.difference), spoken)


def budget_range(budget: BudgetRecord) -> Range | None:
    """Draw the share of turns within budget, from none to all; `limit` is the target."""
    if budget.share is None or budget.low is None or budget.high is None:
        return None
    share, interval = check_words.budget_figures(budget)
    target = check_words.percents(budget.target)
    spoken = f"{share} within, 95 % interval {interval}, target {target}"
    left, width = 100 * budget.low, 100 * (budget.high - budget.low)
    return Range(
        0.0, round(100 * budget.target, 3), round(left, 3), round(width, 3),
        round(100 * budget.share, 3), spoken,
    )  # fmt: skip


def curves_in_words(candidate: Sequence[Turn], reference: Sequence[Turn]) -> str:
    """Describe the curves of both agents' gaps."""
    sides = (("A: ", reference), ("B: ", candidate)) if reference else (("", candidate),)
    said = "; ".join(_curve_in_words(letter, turns) for letter, turns in sides if turns)
    return f"Share of turns answered within each gap. {said}"


def _median(turns: Sequence[Turn]) -> float | None:
    values = [t.gap_ms for t in turns if t.replied and t.gap_ms is not None]
    return percentile(values, 0.5, censored=0).value


def _curve_in_words(letter: str, turns: Sequence[Turn]) -> str:
    hits = sum(turn.outcome == "answered" for turn in turns)
    middle = _median(turns)
    figure = "" if middle is None else f", median {words.ms(middle)} ms"
    return f"{letter}{hits} of {words.turns_words(len(turns))} within budget{figure}"


def pairs_chart(pairs: Sequence[TurnPair]) -> Chart | None:
    """Draw every pair's difference, from the quickest candidate to the slowest; None if empty."""
    shifts = sorted(
        ((p.shift_ms, p) for p in pairs if p.shift_ms is not None), key=lambda item: item[0]
    )
    if not shifts:
        return None
    sizes = sorted(abs(shift) for shift, _ in shifts)
    edge = max(LEAST_MS, sizes[math.ceil(PAIRS_SHOWN_WHOLE * len(sizes)) - 1] * 1.05)
    top = edge if shifts[-1][0] > 0 else LEAST_MS / 2
    bottom = -edge if shifts[0][0] < -LEAST_MS / 2 else -LEAST_MS / 2

    def y(ms: float) -> float:
        return round(PAIRS_PX * (top - min(top, max(bottom, ms))) / (top - bottom), 2)

    room = 100 / len(shifts)
    bars = [
        Bar(
            x=round(room * rank + room * 0.15, 3),
            y=min(y(shift), y(0)),
            width=round(min(room * 0.7, 1.2), 3),
            height=max(abs(y(shift) - y(0)), 1.0),
            style="bad" if shift > 0 else "",
            hollow=shift <= 0,
            title=f"{words.turn_name(pair.candidate)}: {check_words.signed_ms(shift)} ms",
        )
        for rank, (shift, pair) in enumerate(shifts)
    ]
    slower = sum(shift > 0 for shift, _ in shifts)
    middle = median(shift for shift, _ in shifts)
    spoken = (
        f"Differences of {check_words.pairs_words(len(shifts))}: the candidate was slower in "
        f"{slower}; median {check_words.signed_ms(middle)}, from "
        f"{check_words.signed_ms(shifts[0][0])} to {check_words.signed_ms(shifts[-1][0])} ms"
    )
    note = (
        f"{spoken}. One bar a pair, sorted: up is slower than the same turn of the reference, down "
        "(hollow) is quicker."
    )
    if without := len(pairs) - len(shifts):
        note += f" {check_words.pairs_words(without)} without two gaps to compare."
    if beyond := sum(not bottom <= shift <= top for shift, _ in shifts):
        note += f" {check_words.pairs_words(beyond)} beyond the edge."
    step = round_step(top - bottom)
    steps = range(math.ceil(bottom / step), math.floor(top / step) + 1)
    return Chart(
        spoken=spoken,
        height=PAIRS_PX,
        name="pairs",
        note=note,
        y_ticks=[
            Mark(y(n * step), f"{check_words.signed_ms(n * step)} ms", grid=True) for n in steps
        ],
        bars=bars,
        rules=[Rule(y(0), style="zero", upright=False)],
    )
