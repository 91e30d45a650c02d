"""A task of several turns that build on each other: how likely, how long and how dear it is.

What one turn gets wrong spoils all after it. So a fast backend that is less often right wins a task
of one turn and loses one of ten: 0.9 to the tenth is 0.35, 0.8 to the tenth is 0.11.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

LONGEST = 20

# Two costs that differ by less than this part of them are the same.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """One backend, as measured over single turns.

    Attributes:
        right: share of turns that were right, 0 to 1.
        ms: what a turn takes, whatever else it is made of than the gap.
        usd: what a turn costs; None where it is not known.
    """

    right: float
    ms: float
    usd: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.right <= 1:
            raise ValueError(f"{self.right=}, expected 0 to 1")
        if not 0 <= self.ms < math.inf or (self.usd is not None and not 0 <= self.usd < math.inf):
            raise ValueError(f"{self.ms=}, {self.usd=}: expected 0 or more")


def success(right: float, turns: int) -> float:
    """Compute the probability that this many turns in a row are all right."""
    _require(turns)
    return right**turns


def expected_turns(right: float, turns: int) -> float:
    """Return the expected number of turns until a task of `turns` is done; infinite if never.

    What went wrong is noticed when the task is over, which then begins anew.
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
    """The natural logarithm of how many times as much one backend has as another.

    Infinite where the other has none. `low` and `high` bound it with 95 % confidence.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Crossing:
    """The point at which one backend overtakes another.

    Attributes:
        turns: the shortest task at which it costs less, by what was measured; None: at none of
            those looked at.
        earliest: the shortest at which their intervals allow that it does; None likewise.
        latest: the shortest from which on their intervals leave no doubt of it; None likewise.
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
    _require(longest)

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


def _require(turns: int) -> None:
    if turns < 1:
        raise ValueError(f"a task of {turns} turns, expected 1 or more")
