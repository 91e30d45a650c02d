"""What reports of loads share: whether one is held, its hit rate in words, and its axis."""

import math
from collections.abc import Sequence

from turngap.core.stats import Proportion
from turngap.report.charts import Mark
from turngap.report.looks import Style

# Whether a load is held: in a word, and how it looks.
HELD: dict[bool | None, tuple[str, Style]] = {
    True: ("held", "good"),
    False: ("not held", "bad"),
    None: ("not sure", "unsure"),
}
_ROOM = 0.04


def count(calls: float) -> str:
    """Format a number of calls: `412`, `0.5`."""
    return f"{calls:,.0f}" if calls >= 10 else f"{calls:g}"


def share(rate: Proportion) -> str:
    """`97.3 %`; never rounded up to what it is not."""
    return "–" if rate.value is None else tenths(rate.value)


def interval(rate: Proportion, *, unit: bool = True) -> str:
    """`96.9 to 97.6 %`."""
    if rate.low is None or rate.high is None:
        return "–"
    return f"{tenths(rate.low, unit=False)} to {tenths(rate.high, unit=unit)}"


def tenths(value: float, *, unit: bool = True) -> str:
    """Format a share to a tenth of a per cent; only all is 100 and only none is 0."""
    text = f"{100 * value:.1f}"
    if value < 1 and text == "100.0":
        text = ">99.9"
    elif value > 0 and text == "0.0":
        text = "<0.1"
    return f"{text} %" if unit else text


class Across:
    """Calls at once to per cent across, by their logarithm: each doubling goes equally far."""

    def __init__(self, calls: Sequence[float]) -> None:
        low, high = math.log(min(calls)), math.log(max(calls))
        room = max(high - low, 1.0) * _ROOM
        self.low, self.high = low - room, high + room

    def x(self, calls: float) -> float:
        return round(100 * (math.log(calls) - self.low) / (self.high - self.low), 3)

    def marks(self, most: int) -> tuple[Mark, ...]:
        """Powers of ten, with twos and fives where they have room."""
        found: list[float] = []
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [
                s * 10.0**e
                for e in range(math.floor(self.low / math.log(10)), 8)
                for s in steps
                if self.low <= math.log(s * 10.0**e) <= self.high
            ]
            if len(found) <= most:
                break
        return tuple(Mark(self.x(calls), count(calls)) for calls in found)

    def marks_at(self, levels: Sequence[float], room: float) -> tuple[Mark, ...]:
        """Mark the levels, the first ones first, leaving out those closer than `room` per cent."""
        kept: list[Mark] = []
        for level in levels:
            at = self.x(level)
            if all(abs(at - mark.at) >= room for mark in kept):
                kept.append(Mark(at, count(level)))
        return tuple(kept)
