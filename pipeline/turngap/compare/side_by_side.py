"""Comparison of backends, turn by turn and over a task of several turns."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Generic, TypeVar

import numpy as np

from turngap.core.clusters import Clusters, Take
from turngap.core.paired import Pair, Starvation, exchanges, reading_of, starvation_of
from turngap.core.results import Turn
from turngap.core.stats import (
    CONFIDENCE,
    Percentile,
    Proportion,
    net_share,
    proportion_of,
    student_quantile,
)
from turngap.core.summary import due_ms

LONGEST = 20

# Two costs that differ by less than this part of them are the same.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """One backend, as measured over single turns.

    Attributes:
        right: share of turns that were right, 0 to 1.
        ms: the time that a whole turn takes, not only its gap.
        usd: the price of a turn; None if not known.
    """

    right: float
    ms: float
    usd: float | None = None


def success(right: float, turns: int) -> float:
    """Compute the probability that this many turns in a row are all right."""
    return right**turns


def expected_turns(right: float, turns: int) -> float:
    """Return the expected number of turns until a task of `turns` is done; infinite if never.

    A mistake is noticed when the task is over, which then begins anew.
    """
    try:
        return turns / success(right, turns)
    except (ZeroDivisionError, OverflowError):
        return math.inf  # never, or beyond what a float holds


def expected_ms(figures: TurnFigures, turns: int) -> float:
    """Compute the mean time until the task is done."""
    return _times(figures.ms, expected_turns(figures.right, turns), figures.right)


def expected_usd(figures: TurnFigures, turns: int) -> float | None:
    """Compute the mean price until the task is done; None if a turn's price is not known."""
    if figures.usd is None:
        return None
    return _times(figures.usd, expected_turns(figures.right, turns), figures.right)


@dataclass(frozen=True, slots=True)
class LogRatio:
    """The natural logarithm of one backend's value divided by another's.

    Infinite if the other's value is 0. `low` and `high` bound it with 95 % confidence.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """The point at which one backend, the follower, overtakes another.

    Attributes:
        turns: the shortest task at which the follower costs less by the measured figures; None if
            there is none among the lengths looked at.
        earliest: the shortest task at which the intervals allow that it costs less; None if none.
        latest: the shortest task from which the intervals leave no doubt that it costs less; None
            if there is none.
        longest: the longest task looked at.
    """

    turns: int | None
    earliest: int | None
    latest: int | None
    longest: int


def crossing(right: LogRatio, cost: LogRatio, *, longest: int = LONGEST) -> Crossing:
    """Find the shortest task at which the follower costs less than the leader.

    A task of n turns that starts again after every failure, noticed at its end, costs n turns
    divided by p to the n, the probability of success. So the follower, whose turns cost `cost`
    times as much and are right `right` times as often, costs less if `right` to the n exceeds
    `cost`.

    For each n, the interval of n log(right) - log(cost) combines both intervals, taken as
    independent, by the method of variance estimates recovery (Zou and Donner 2008).
    """

    def first(holds: Callable[[LogRatio, LogRatio, int], bool]) -> int | None:
        return next((n for n in range(1, longest + 1) if holds(right, cost, n)), None)

    return Crossing(first(_costs_less), first(_may_cost_less), first(_must_cost_less), longest)


def _costs_less(right: LogRatio, cost: LogRatio, turns: int) -> bool:
    # A leader that is never right is never done, even where it is free.
    return right.value == math.inf or turns * right.value > cost.value + ROUNDING


def _may_cost_less(right: LogRatio, cost: LogRatio, turns: int) -> bool:
    gained, dearer = turns * right.high, cost.low
    if math.inf in (gained, dearer) or not _finite(right.value, cost.value):
        return gained == math.inf or gained > dearer + ROUNDING
    apart = math.hypot(turns * (right.high - right.value), cost.value - cost.low)
    return turns * right.value - cost.value + apart > ROUNDING


def _must_cost_less(right: LogRatio, cost: LogRatio, turns: int) -> bool:
    gained, dearer = turns * right.low, cost.high
    if not _finite(gained, dearer, right.value, cost.value):
        return gained > dearer + ROUNDING
    apart = math.hypot(turns * (right.value - right.low), cost.high - cost.value)
    return turns * right.value - cost.value - apart > ROUNDING


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def _times(each: float, count: float, right: float) -> float:
    # What is never done has no price, were a turn free; else what costs nothing costs nothing,
    # however often: not 0 x inf, which is no number.
    return math.inf if right == 0 else 0.0 if each == 0 else each * count


# Two backends side by side: the pairs of their turns.


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Pairs(Generic[Value]):
    """The values of two backends in each take that both have."""

    takes: tuple[Take, ...]
    one: tuple[Value, ...]
    other: tuple[Value, ...]

    def __len__(self) -> int:
        return len(self.takes)

    @property
    def turns(self) -> tuple[Hashable, ...]:
        """Return the recorded turn of each take; rounds are takes of the same turns."""
        return tuple((scenario, turn) for scenario, turn, _ in self.takes)

    @property
    def recorded(self) -> int:
        return len(set(self.turns))


def taken(turns: Sequence[Turn], value: Callable[[Turn], Value | None]) -> dict[Take, Value]:
    """Map each take to its value, leaving out takes that have none."""
    return {turn.take: found for turn in turns if (found := value(turn)) is not None}


def paired(one: Mapping[Take, Value], other: Mapping[Take, Value]) -> Pairs[Value]:
    """Pair the takes of the same turn in the same round that both have."""
    both = [take for take in one if take in other]
    return Pairs(
        takes=tuple(both),
        one=tuple(one[take] for take in both),
        other=tuple(other[take] for take in both),
    )


# What a late caller may have done to a turn: `core.paired`.


@dataclass(frozen=True, slots=True)
class Doubt(Generic[Value]):
    """A turn's value as read, and that value minus the most that a late caller may have added."""

    read: Callable[[Turn], Value | None]
    at_best: Callable[[Turn], Value | None]

    def ends(self, turns: Sequence[Turn], others: Sequence[Turn]) -> "tuple[Pairs[Value], ...]":
        """Pair the turns as read; then each side at its best with the other as read."""
        mine, its = taken(turns, self.read), taken(others, self.read)
        return (
            paired(mine, its),
            paired(taken(turns, self.at_best), its),
            paired(mine, taken(others, self.at_best)),
        )


def _due_at_best(turn: Turn) -> float | None:
    due = due_ms(turn)
    return due if due is None or math.isinf(due) else reading_of(turn).at_best.gap_ms


def _cut_in(turn: Turn) -> bool:
    return turn.outcome == "cut_in"


DUE = Doubt(due_ms, _due_at_best)
# A caller that stands still in mid-sentence is a pause to the agent, which may then cut in, or
# answer half of what was said.
CUT_IN = Doubt(_cut_in, lambda turn: _cut_in(turn) and not turn.pacing.starved)
RIGHT: Doubt[bool] = Doubt(
    lambda turn: turn.right,
    lambda turn: None if turn.right is None else turn.right or turn.pacing.starved,
)


def starvation_between(turns: Sequence[Turn], others: Sequence[Turn]) -> Starvation:
    """Compare the caller's lateness between the candidate's turns and the reference's."""
    both = paired(taken(turns, reading_of), taken(others, reading_of))
    pairs = [
        Pair(take, reference=its, candidate=mine)
        for take, mine, its in zip(both.takes, both.one, both.other, strict=True)
    ]
    swaps = exchanges([pair.conversation for pair in pairs], np.random.default_rng(1))
    return starvation_of(pairs, swaps)


def hull(found: Sequence[Percentile]) -> Percentile:
    """Return the first of the percentiles, with an interval that covers the intervals of all."""
    lows, highs = [f.low for f in found], [f.high for f in found]
    return Percentile(
        found[0].value,
        None if None in lows else min(low for low in lows if low is not None),
        None if None in highs else max(high for high in highs if high is not None),
        found[0].why_none,
    )


def ratio_hull(found: Sequence[LogRatio | None]) -> LogRatio | None:
    """Return the first of the ratios, with an interval that covers all; None if the first is."""
    known = [ratio for ratio in found if ratio is not None]
    if found[0] is None:
        return None
    return LogRatio(found[0].value, min(r.low for r in known), max(r.high for r in known))


def told_apart(figure: Percentile) -> bool:
    """Return whether a difference is beyond chance: its interval excludes 0."""
    return (figure.low is not None and figure.low > 0) or (
        figure.high is not None and figure.high < 0
    )


def difference(pairs: Pairs[bool]) -> Percentile | None:
    """Subtract the second share from the first, with a 95 % interval; None without a pair.

    It uses the turns that only one of the two got right (`core.stats.net_share`), and its interval
    has a width above 0 even for a few turns.
    """
    if not pairs:
        return None
    clusters = Clusters.of(pairs.takes)
    n = clusters.effective_n_of(np.array(pairs.one))
    both = list(zip(pairs.one, pairs.other, strict=True))
    gained, lost = (both.count(only) / len(both) for only in ((True, False), (False, True)))
    bounds = (None, None) if clusters.few else net_share(gained * n, lost * n, n)
    return Percentile(gained - lost, *bounds)


def right_ratio(pairs: Pairs[bool]) -> LogRatio | None:
    """Compute the ratio of the first share of right answers to the second; None without a pair.

    The interval is as in `difference`, of the logarithms. If one of them was never right, the
    interval combines the far ends of both shares' intervals.
    """
    if not pairs:
        return None
    one, other = proportion_of(pairs.one, pairs.takes), proportion_of(pairs.other, pairs.takes)
    (p, low, high), (its, its_low, its_high) = map(_logs, (one, other))
    if not math.isfinite(p) or not math.isfinite(its):
        value = 0.0 if p == its else p - its
        return LogRatio(value, low - its_high, high - its_low)
    phi = _agreement(pairs)
    down, up = _apart(p - low, its_high - its, phi), _apart(high - p, its - its_low, phi)
    return LogRatio(p - its, p - its - down, p - its + up)


def mean_ratio(pairs: Pairs[float]) -> LogRatio | None:
    """Divide the first mean by the second, for values that are never negative.

    Return None without a pair. The interval is Student's, of the linearised ratio over the recorded
    turns.
    """
    if not pairs:
        return None
    groups: dict[Hashable, list[tuple[float, float]]] = {}
    for turn, own, its in zip(pairs.turns, pairs.one, pairs.other, strict=True):
        groups.setdefault(turn, []).append((own, its))
    ours = np.array([fmean(mine for mine, _ in group) for group in groups.values()])
    others = np.array([fmean(its for _, its in group) for group in groups.values()])
    mine, its = float(ours.mean()), float(others.mean())
    if mine == 0 or its == 0:
        value = 0.0 if mine == its else -math.inf if mine == 0 else math.inf
        return LogRatio(value, value, value)
    value, n = math.log(mine / its), len(groups)
    if Clusters.of(pairs.takes).few:
        return LogRatio(value, -math.inf, math.inf)
    spread = float(np.std(ours / mine - others / its, ddof=1)) / math.sqrt(n)
    half = student_quantile((1 + CONFIDENCE) / 2, n - 1) * spread
    return LogRatio(value, value - half, value + half)


def inverse(ratio: LogRatio) -> LogRatio:
    """Return the ratio with its two sides exchanged."""
    return LogRatio(-ratio.value, -ratio.high, -ratio.low)


def _agreement(pairs: Pairs[bool]) -> float:
    """Compute phi, the correlation of being right, with Newcombe's correction for continuity.

    It uses the effective number of turns, because repeated turns show no further agreement.
    """
    weight = Clusters.of(pairs.takes).effective_n_of(np.array(pairs.one)) / len(pairs)
    both, mine, its, none = (
        weight * sum(pair == cell for pair in zip(pairs.one, pairs.other, strict=True))
        for cell in ((True, True), (True, False), (False, True), (False, False))
    )
    apart = math.sqrt((both + mine) * (its + none) * (both + its) * (mine + none))
    if apart == 0:
        return 0.0
    together = both * none - mine * its
    if together > 0:
        together = max(0.0, together - weight * len(pairs) / 2)
    return together / apart


def _apart(a: float, b: float, phi: float) -> float:
    return math.sqrt(max(0.0, a * a - 2 * phi * a * b + b * b))


def _logs(share: Proportion) -> tuple[float, float, float]:
    """Return the logarithms of the share and of its bounds."""
    known = share.value or 0.0, share.low or 0.0, 1.0 if share.high is None else share.high
    value, low, high = (math.log(end) if end > 0 else -math.inf for end in known)
    return value, low, high
