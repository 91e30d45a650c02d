"""A task of several turns that build on each other: how likely, how long and how dear it is.

What one turn gets wrong spoils all after it. So a fast backend that is less often right wins a task
of one turn and loses one of ten: 0.9 to the tenth is 0.35, 0.8 to the tenth is 0.11.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

# What happens when a turn went wrong.
# `turn`: it is noticed at once and that turn is taken again.
# `task`: it is noticed at once and the task begins anew.
# `blind`: it is noticed when the task is over, which then begins anew.
Retry = Literal["turn", "task", "blind"]
RETRIES: tuple[Retry, ...] = ("turn", "task", "blind")

LONGEST = 20


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """One backend, as measured over single turns.

    Attributes:
        right: share of turns that were right, 0 to 1.
        ms: what a turn takes, whatever else it is made of than the gap.
        usd: what a turn costs; None where it is not known.
        right_low, right_high: interval of `right`; `right` itself where it is not known.
    """

    right: float
    ms: float
    usd: float | None = None
    right_low: float | None = None
    right_high: float | None = None

    def __post_init__(self) -> None:
        for name in ("right", "right_low", "right_high"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}, expected 0 to 1")
        if not 0 <= self.ms < math.inf or (self.usd is not None and not 0 <= self.usd < math.inf):
            raise ValueError(f"{self.ms=}, {self.usd=}: expected 0 or more")


def success(right: float, turns: int) -> float:
    """Probability that so many turns in a row are all right."""
    _require(turns)
    return right**turns


def expected_turns(right: float, turns: int, retry: Retry) -> float:
    """Turns that are taken in the mean until a task of `turns` is done; infinite where it never is.

    A turn that is taken again has the same chance as before, whatever went wrong.
    """
    _require(turns)
    if right == 0:
        return math.inf
    if retry == "turn":
        return turns / right
    try:
        done = right**turns
        if retry == "blind":
            return turns / done
        if right == 1:
            return float(turns)
        # The mean wait for a run of successes; expm1, as 1 - done loses its digits near 1.
        return -math.expm1(turns * math.log(right)) / ((1 - right) * done)
    except (ZeroDivisionError, OverflowError):
        return math.inf  # beyond what a float holds


def expected_ms(figures: TurnFigures, turns: int, retry: Retry = "blind") -> float:
    """Mean time until the task is done."""
    return _times(figures.ms, expected_turns(figures.right, turns, retry))


def expected_usd(figures: TurnFigures, turns: int, retry: Retry = "blind") -> float | None:
    """Mean price until the task is done; None where a turn's is not known."""
    if figures.usd is None:
        return None
    return _times(figures.usd, expected_turns(figures.right, turns, retry))


Cost = Callable[[TurnFigures, int, Retry], float | None]


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where one backend overtakes another.

    Attributes:
        turns: the shortest task at which it costs less; None: at none of those looked at.
        earliest, latest: the same if both are as unlike, and as like, as their intervals allow;
            None likewise.
        longest: the longest task looked at.
    """

    turns: int | None
    earliest: int | None
    latest: int | None
    longest: int


def crossing(
    leader: TurnFigures,
    follower: TurnFigures,
    cost: Cost = expected_ms,
    *,
    retry: Retry = "blind",
    longest: int = LONGEST,
) -> Crossing:
    """The shortest task at which `follower` costs less than `leader`: 1 if it does so at once.

    Raises:
        ValueError: a cost is not known.
    """
    _require(longest)

    def first(leads: float | None, follows: float | None) -> int | None:
        a = leader if leads is None else replace(leader, right=leads)
        b = follower if follows is None else replace(follower, right=follows)
        for turns in range(1, longest + 1):
            costs = cost(a, turns, retry), cost(b, turns, retry)
            if costs[0] is None or costs[1] is None:
                raise ValueError("a turn's cost is not known")
            if costs[1] < costs[0]:
                return turns
        return None

    return Crossing(
        turns=first(None, None),
        earliest=first(leader.right_low, follower.right_high),
        latest=first(leader.right_high, follower.right_low),
        longest=longest,
    )


def _times(each: float, count: float) -> float:
    # What costs nothing costs nothing, however often: not 0 x inf, which is no number.
    return 0.0 if each == 0 else each * count


def _require(turns: int) -> None:
    if turns < 1:
        raise ValueError(f"a task of {turns} turns, expected 1 or more")
