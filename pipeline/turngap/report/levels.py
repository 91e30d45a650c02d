"""Shared parts of reports of loads: whether a load is held, its hit rate, and its drawings."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from turngap.core.stats import Percentile, Proportion
from turngap.report import words
from turngap.report.charts import (
    LABEL_PX,
    Chart,
    Dot,
    Key,
    Mark,
    Path,
    Rule,
    clear_of,
    polyline,
    round_step,
)
from turngap.report.looks import Style

# Whether a load is held: in a word, and how it looks.
HELD: dict[bool | None, tuple[str, Style]] = {
    True: ("held", "good"),
    False: ("not held", "bad"),
    None: ("not sure", "unsure"),
}
_ROOM = 0.04
HEIGHT_PX = 150
# Gaps beyond this many budgets would flatten the others: they are at the upper edge.
MOST_BUDGETS = 2.5
# The percentiles that are drawn, each with its dash.
_DASHES = {"p95": "", "p50": "6 5"}


def percent(target: float) -> str:
    """Format a chosen share: `95 %`."""
    return f"{100 * target:.4g} %"


def ms(quantile: Percentile) -> str:
    """Format milliseconds; a dash if there are none."""
    return "–" if quantile.value is None else words.ms(quantile.value)


def count(calls: float) -> str:
    """Format a number of calls: `412`, `0.5`."""
    return f"{calls:,.0f}" if calls >= 10 else f"{calls:g}"


def share(rate: Proportion) -> str:
    """Format a share: `97.3 %`; never rounded up to 100 %."""
    return "–" if rate.value is None else tenths(rate.value)


def interval(rate: Proportion, *, unit: bool = True) -> str:
    """Format an interval: `96.9 to 97.6 %`."""
    if rate.low is None or rate.high is None:
        return "–"
    return f"{tenths(rate.low, unit=False)} to {tenths(rate.high, unit=unit)}"


def tenths(value: float, *, unit: bool = True) -> str:
    """Format a share to a tenth of a per cent; 100 is only for all, and 0 only for none."""
    text = f"{100 * value:.1f}"
    if value < 1 and text == "100.0":
        text = ">99.9"
    elif value > 0 and text == "0.0":
        text = "<0.1"
    return f"{text} %" if unit else text


class Across:
    """Scale of simultaneous calls in per cent across; logarithmic: doublings are equally wide."""

    def __init__(self, calls: Sequence[float]) -> None:
        low, high = math.log(min(calls)), math.log(max(calls))
        room = max(high - low, 1.0) * _ROOM
        self.low, self.high = low - room, high + room

    def x(self, calls: float) -> float:
        return round(100 * (math.log(calls) - self.low) / (self.high - self.low), 3)

    def marks(self, most: int) -> tuple[Mark, ...]:
        """Return marks at powers of ten, with twos and fives if they have room."""
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


@dataclass(frozen=True, slots=True)
class DrawnLoad:
    """A load as it is drawn.

    Attributes:
        calls: simultaneous calls.
        name: the calls in words, for example `8 sessions`.
        gap_ms: p50 and p95 as they are written.
        gaps: p50 and p95 as they are drawn: infinite if too few turns were answered for one, None
            if not known.
    """

    calls: float
    name: str
    holds: bool | None
    turns: int
    hit_rate: Proportion
    gap_ms: Mapping[str, Percentile]
    gaps: Mapping[str, float | None]


class AgainstLoad:
    """Drawings of figures over the number of simultaneous calls, which grows to the right.

    Each doubling is equally wide. No drawing needs colour: loads that are not held, or not certain
    to be, are hollow.

    Args:
        x_name: the quantity on the x axis, for example `sessions`.
        x_ticks: returns the labels of the x axis.
        rules: upright lines of both drawings.
        note: a last sentence below the hit rates.
    """

    def __init__(
        self,
        loads: Sequence[DrawnLoad],
        x_name: str,
        x_ticks: Callable[[Across], tuple[Mark, ...]],
        rules: Callable[[Across], Sequence[Rule]] = lambda _: (),
        note: str = "",
    ) -> None:
        self.loads, self.x_name, self._note = loads, x_name, note
        self.across = Across([load.calls for load in loads])
        self.x_ticks, self.rules = x_ticks(self.across), rules(self.across)

    def curve(
        self,
        value_of: Callable[[DrawnLoad], float | None],
        y: Callable[[float], float],
        title: Callable[[DrawnLoad], str],
        dash: str = "",
    ) -> tuple[list[Path], list[Dot]]:
        """Draw a figure over the loads, with a dot for each."""
        dots = [
            Dot(
                self.across.x(load.calls),
                y(value),
                HELD[load.holds][1],
                hollow=load.holds is not True,
                title=f"{load.name}: {title(load)}",
            )
            for load in self.loads
            if (value := value_of(load)) is not None
        ]
        return [Path(polyline((d.x, d.y) for d in dots), dash=dash)] if dots else [], dots

    def spoken(self, name: str, value: Callable[[DrawnLoad], str]) -> str:
        """Describe a drawing for a screen reader."""
        each = ", ".join(f"{load.name} {value(load)}" for load in self.loads)
        return f"{name} over {self.x_name}: {each}"

    def hit_rates(self, target: float) -> Chart:
        """Draw the hit rates with their intervals, and the target."""
        rates = [load.hit_rate for load in self.loads]
        bottom = max(0.0, min([*(r.low for r in rates if r.low is not None), target]) - 0.05)
        # A collapse to nothing is shown as one; small losses are not hidden below it.
        bottom = 0.0 if bottom < 0.5 else math.floor(bottom * 20) / 20

        def y(value: float) -> float:
            return round(HEIGHT_PX * (1 - (value - bottom) / (1 - bottom)), 2)

        paths, dots = self.curve(
            lambda load: load.hit_rate.value,
            y,
            lambda load: (
                f"{share(load.hit_rate)} of {load.turns:,} turns on time, 95 % interval "
                f"{interval(load.hit_rate)}"
            ),
        )
        bounds = [
            (self.across.x(load.calls), y(rate.low), y(rate.high))
            for load, rate in zip(self.loads, rates, strict=True)
            if rate.low is not None and rate.high is not None
        ]
        around = [(x, high) for x, _, high in bounds] + [(x, low) for x, low, _ in bounds[::-1]]
        area = [Path(f"{polyline(around)}Z", area=True)] if around else []
        goal = Mark(y(target), percent(target), strong=True)
        steps = (bottom + (1 - bottom) * n / 4 for n in range(5))
        return Chart(
            title="Turns answered on time",
            spoken=self.spoken("hit rate", lambda load: share(load.hit_rate)),
            height=HEIGHT_PX,
            note=f"{self.x_name.capitalize()}. Shaded: 95 % interval. Dashed across: the target of "
            f"{goal.label}. Filled dots hold.{self._note}",
            x_ticks=self.x_ticks,
            y_ticks=clear_of((Mark(y(s), f"{s:.0%}", grid=True) for s in steps), goal, LABEL_PX),
            paths=[*area, *paths],
            dots=dots,
            rules=[*self.rules, Rule(goal.at, style="target", upright=False)],
        )

    def gaps(self, budget_ms: float) -> Chart:
        """Draw the percentiles of the gap, and the budget."""
        drawn = [gap for load in self.loads for name in _DASHES if (gap := load.gaps[name])]
        highest = max([*filter(math.isfinite, drawn), budget_ms * 1.1])
        top = min(highest * 1.05, budget_ms * MOST_BUDGETS)

        def y(value: float) -> float:
            return round(HEIGHT_PX * (1 - min(max(value, 0.0), top) / top), 2)

        curves = [
            self.curve(
                lambda load, name=name: load.gaps[name],
                y,
                lambda load, name=name: f"gap {name} {ms(load.gap_ms[name])} ms",
                dash,
            )
            for name, dash in _DASHES.items()
        ]
        budget = Mark(y(budget_ms), f"{budget_ms:.0f}", strong=True)
        step = round_step(top)
        ticks = (
            Mark(y(n * step), f"{n * step:,.0f}", grid=True) for n in range(int(top / step) + 1)
        )
        beyond = sum(value > top for value in drawn)
        return Chart(
            title="Turn gap, p50 and p95",
            spoken=self.spoken("gap p95 in ms", lambda load: ms(load.gap_ms["p95"])),
            height=HEIGHT_PX,
            note=f"{self.x_name.capitalize()}, gap in ms. Dashed across: the {budget.label} ms "
            "budget."
            + (f" {beyond} at the upper edge: longer, or too many turns missed." if beyond else ""),
            x_ticks=self.x_ticks,
            y_ticks=clear_of(ticks, budget, LABEL_PX),
            paths=[path for paths, _ in curves for path in paths],
            dots=[dot for _, dots in curves for dot in dots],
            rules=[*self.rules, Rule(budget.at, style="target", upright=False)],
            legend=[Key(name, dash=dash) for name, dash in _DASHES.items()],
        )
