"""Where things lie in a simulation's drawings; as in `charts`, per cent across and pixels down.

Calls at once run to the right, each doubling as far as the one before. No drawing needs colour.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from turngap.fleet import words
from turngap.fleet.record import LoadRecord, SimulationRecord

HEIGHT_PX = 150
# Lines are drawn in a box so wide; the page stretches it.
BOX = 1000
# Gaps beyond so many budgets would flatten the others: they run over the edge.
MOST_BUDGETS = 2.5
_ROOM = 0.04
_MOST_TICKS = 7


@dataclass(frozen=True, slots=True)
class Mark:
    """A labelled place on an axis: per cent across, or pixels down."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Dot:
    """One load. `kind`: `held`, `not-held` or `not-sure`."""

    x: float
    y: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Curve:
    """One figure over the loads. `path` is in a box of `BOX` by `HEIGHT_PX`."""

    name: str
    path: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One drawing. `rule` is a dashed line with its label; `band` an interval's outline."""

    title: str
    curves: tuple[Curve, ...]
    band: str
    rule: Mark | None
    x_marks: tuple[Mark, ...]
    y_marks: tuple[Mark, ...]
    beyond: int
    spoken: str


def charts(record: SimulationRecord) -> tuple[Chart, ...]:
    """Hit rate, gap and price over the load."""
    across = _Across([load.calls for load in record.loads])
    # Of a fleet that costs nothing, what it spends is its hours.
    price = any(load.usd_per_1000 for load in record.loads)
    return (
        _hit_rates(record, across),
        _gaps(record, across),
        _costs(record, across, price=price),
    )


class _Across:
    """Calls to per cent across, by their logarithm."""

    def __init__(self, calls: Sequence[float]) -> None:
        low, high = math.log(min(calls)), math.log(max(calls))
        room = max(high - low, 1.0) * _ROOM
        self._low, self._high = low - room, high + room

    def x(self, calls: float) -> float:
        return round(100 * (math.log(calls) - self._low) / (self._high - self._low), 3)

    def marks(self) -> tuple[Mark, ...]:
        """Powers of ten, with twos and fives where they have room."""
        for steps in ((1, 2, 5), (1, 3), (1,)):
            found = [
                s * 10.0**e
                for e in range(math.floor(self._low / math.log(10)), 8)
                for s in steps
                if self._low <= math.log(s * 10.0**e) <= self._high
            ]
            if len(found) <= _MOST_TICKS:
                break
        return tuple(Mark(self.x(calls), words.count(calls)) for calls in found)


def _hit_rates(record: SimulationRecord, across: _Across) -> Chart:
    lows = [load.hit_rate.low for load in record.loads if load.hit_rate.low is not None]
    bottom = max(0.0, min([*lows, record.target]) - 0.05)
    # A collapse to nothing is shown as one; small losses are not hidden below it.
    bottom = 0.0 if bottom < 0.5 else bottom

    def y(share: float) -> float:
        return round(HEIGHT_PX * (1 - (share - bottom) / (1 - bottom)), 2)

    curve = _curve(
        record,
        across,
        name="hit rate",
        value_of=lambda load: load.hit_rate.value,
        y=y,
        title=_hit_title,
    )
    outline = [
        (load.calls, load.hit_rate.low, load.hit_rate.high)
        for load in record.loads
        if load.hit_rate.low is not None and load.hit_rate.high is not None
    ]
    there = [f"{across.x(c) * 10:g} {y(high)}" for c, _, high in outline]
    back = [f"{across.x(c) * 10:g} {y(low)}" for c, low, _ in reversed(outline)]
    steps = [bottom + (1 - bottom) * n / 4 for n in range(5)]
    return Chart(
        title="Turns answered in time",
        curves=(curve,),
        band=f"M{'L'.join(there + back)}Z" if outline else "",
        rule=Mark(y(record.target), f"{100 * record.target:g} % asked for"),
        x_marks=across.marks(),
        y_marks=tuple(Mark(y(s), f"{100 * s:.0f} %") for s in steps),
        beyond=0,
        spoken=_spoken(record, "hit rate", lambda load: words.share(load.hit_rate)),
    )


def _gaps(record: SimulationRecord, across: _Across) -> Chart:
    edge = record.budget_ms * MOST_BUDGETS
    known = [
        q.value
        for load in record.loads
        for q in (load.gap_ms["p50"], load.gap_ms["p95"])
        if q.value is not None
    ]
    top = min(edge, max([*known, record.budget_ms * 1.1]) * 1.05)

    def y(ms: float) -> float:
        return round(HEIGHT_PX * (1 - min(ms, top) / top), 2)

    def curve(name: str) -> Curve:
        return _curve(
            record,
            across,
            name=name,
            value_of=lambda load: load.gap_ms[name].value,
            y=y,
            title=lambda load: (
                f"{words.count(load.calls)} calls: gap {name} {words.ms(load.gap_ms[name])} ms"
            ),
        )

    step = _step(top)
    return Chart(
        title="Turn gap, p50 and p95",
        curves=(curve("p95"), curve("p50")),
        band="",
        rule=Mark(y(record.budget_ms), f"{record.budget_ms:.0f} ms budget"),
        x_marks=across.marks(),
        y_marks=tuple(Mark(y(n * step), f"{n * step:,.0f}") for n in range(int(top / step) + 1)),
        beyond=sum(value > top for value in known),
        spoken=_spoken(record, "gap p95 in ms", lambda load: words.ms(load.gap_ms["p95"])),
    )


def _costs(record: SimulationRecord, across: _Across, *, price: bool) -> Chart:
    def cost(load: LoadRecord) -> float | None:
        return load.usd_per_1000 if price else load.part_hours_per_1000

    known = [value for load in record.loads if (value := cost(load))]
    low, high = (min(known), max(known)) if known else (1.0, 10.0)
    # A decade at least, or noise would fill the drawing.
    exponents = math.floor(math.log10(low)), math.ceil(math.log10(high) + 1e-9)
    bottom, top = exponents[0], max(exponents[1], exponents[0] + 1)

    def y(value: float) -> float:
        share = (math.log10(value) - bottom) / (top - bottom)
        return round(HEIGHT_PX * (1 - share), 2)

    def label(exponent: int) -> str:
        number = f"{10.0**exponent:,.{max(0, -exponent)}f}"
        return f"${number}" if price else number

    def said(load: LoadRecord) -> str:
        return words.usd(load) if price else f"{words.hours(load)} accelerator-hours"

    name = "Price of 1000 turns" if price else "Accelerator-hours for 1000 turns"
    return Chart(
        title=name,
        curves=(
            _curve(
                record,
                across,
                name=name,
                value_of=cost,
                y=y,
                title=lambda load: f"{words.count(load.calls)} calls: {said(load)} for 1000 turns",
            ),
        ),
        band="",
        rule=None,
        x_marks=across.marks(),
        y_marks=tuple(Mark(y(10.0**e), label(e)) for e in range(bottom, top + 1)),
        beyond=0,
        spoken=_spoken(record, name, said),
    )


def _curve(
    record: SimulationRecord,
    across: _Across,
    *,
    name: str,
    value_of: Callable[[LoadRecord], float | None],
    y: Callable[[float], float],
    title: Callable[[LoadRecord], str],
) -> Curve:
    dots = tuple(
        Dot(across.x(load.calls), y(value), words.verdict(load).replace(" ", "-"), title(load))
        for load in record.loads
        if (value := value_of(load)) is not None and math.isfinite(value)
    )
    path = "L".join(f"{dot.x * BOX / 100:g} {dot.y:g}" for dot in dots)
    return Curve(name, f"M{path}" if dots else "", dots)


def _hit_title(load: LoadRecord) -> str:
    return (
        f"{words.count(load.calls)} calls: {words.share(load.hit_rate)} of {load.turns:,} turns in "
        f"time, 95 % interval {words.interval(load.hit_rate)}"
    )


def _spoken(record: SimulationRecord, name: str, said: Callable[[LoadRecord], str]) -> str:
    each = ", ".join(f"{words.count(load.calls)} calls {said(load)}" for load in record.loads)
    return f"{name} over calls at once: {each}"


def _step(top: float) -> float:
    """A round step that gives about four marks."""
    rough = top / 4
    size = 10 ** math.floor(math.log10(rough))
    return next(size * m for m in (1, 2, 5, 10) if size * m >= rough)
