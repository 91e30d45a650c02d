"""What is drawn of a simulation: each figure over the calls at once, which run to the right.

Each doubling goes as far as the one before. No drawing needs colour: loads that are not held, or of
which these turns do not tell, are hollow.
"""

import math
from collections.abc import Callable

from turngap.fleet import words
from turngap.fleet.record import LoadFigures, SimulationRecord
from turngap.report import levels
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
from turngap.report.levels import Across

HEIGHT_PX = 150
# Gaps beyond so many budgets would flatten the others: they run over the edge.
MOST_BUDGETS = 2.5
_MOST_TICKS = 7


def charts(record: SimulationRecord) -> tuple[Chart, ...]:
    """Hit rate, gap and price over the load."""
    across = Across([load.calls for load in record.loads])
    # Of a fleet that costs nothing, what it spends is its hours.
    price = any(load.usd_per_1000 for load in record.loads)
    return (
        _hit_rates(record, across),
        _gaps(record, across),
        _costs(record, across, price=price),
    )


def _hit_rates(record: SimulationRecord, across: Across) -> Chart:
    lows = [load.hit_rate.low for load in record.loads if load.hit_rate.low is not None]
    bottom = max(0.0, min([*lows, record.target]) - 0.05)
    # A collapse to nothing is shown as one; small losses are not hidden below it.
    bottom = 0.0 if bottom < 0.5 else bottom

    def y(share: float) -> float:
        return round(HEIGHT_PX * (1 - (share - bottom) / (1 - bottom)), 2)

    path, dots = _curve(record, across, lambda load: load.hit_rate.value, y, title=_hit_title)
    outline = [
        (load.calls, load.hit_rate.low, load.hit_rate.high)
        for load in record.loads
        if load.hit_rate.low is not None and load.hit_rate.high is not None
    ]
    around = [(across.x(c), y(high)) for c, _, high in outline]
    around += [(across.x(c), y(low)) for c, low, _ in reversed(outline)]
    area = [Path(f"{polyline(around)}Z", area=True)] if outline else []
    steps = [bottom + (1 - bottom) * n / 4 for n in range(5)]
    target = Mark(y(record.target), f"{100 * record.target:g} %", strong=True)
    return Chart(
        title="Turns answered in time",
        spoken=_spoken(record, "hit rate", lambda load: levels.share(load.hit_rate)),
        height=HEIGHT_PX,
        note=f"Calls at once. Shaded: 95 % interval. Dashed across: the {target.label} asked for.",
        x_ticks=across.marks(_MOST_TICKS),
        y_ticks=clear_of((Mark(y(s), f"{s:.0%}", grid=True) for s in steps), target, LABEL_PX),
        paths=[*area, *path],
        dots=dots,
        rules=[Rule(target.at, style="target", upright=False)],
    )


def _gaps(record: SimulationRecord, across: Across) -> Chart:
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

    paths: list[Path] = []
    dots: list[Dot] = []
    for name, dash in (("p95", ""), ("p50", "6 5")):
        drawn, places = _curve(
            record,
            across,
            lambda load, name=name: load.gap_ms[name].value,
            y,
            title=lambda load, name=name: (
                f"{levels.count(load.calls)} calls: gap {name} {words.ms(load.gap_ms[name])} ms"
            ),
            dash=dash,
        )
        paths += drawn
        dots += places
    step = round_step(top)
    budget = Mark(y(record.budget_ms), f"{record.budget_ms:.0f}", strong=True)
    marks = (Mark(y(n * step), f"{n * step:,.0f}", grid=True) for n in range(int(top / step) + 1))
    beyond = sum(value > top for value in known)
    return Chart(
        title="Turn gap, p50 and p95",
        spoken=_spoken(record, "gap p95 in ms", lambda load: words.ms(load.gap_ms["p95"])),
        height=HEIGHT_PX,
        note=f"Calls at once, gap in ms. Dashed across: the {budget.label} ms budget."
        + (f" {beyond} beyond the edge." if beyond else ""),
        x_ticks=across.marks(_MOST_TICKS),
        y_ticks=clear_of(marks, budget, LABEL_PX),
        paths=paths,
        dots=dots,
        rules=[Rule(budget.at, style="target", upright=False)],
        legend=[Key("p95", dash=""), Key("p50", dash="6 5")],
    )


def _costs(record: SimulationRecord, across: Across, *, price: bool) -> Chart:
    def cost(load: LoadFigures) -> float | None:
        # What is free has no place on a logarithmic axis.
        return (load.usd_per_1000 if price else load.part_hours_per_1000) or None

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

    def said(load: LoadFigures) -> str:
        return words.usd(load) if price else f"{words.hours(load)} accelerator-hours"

    name = "Price of 1000 turns" if price else "Accelerator-hours for 1000 turns"
    paths, dots = _curve(
        record,
        across,
        cost,
        y,
        title=lambda load: f"{levels.count(load.calls)} calls: {said(load)} for 1000 turns",
    )
    return Chart(
        title=name,
        spoken=_spoken(record, name, said),
        height=HEIGHT_PX,
        note="Calls at once; both axes are logarithmic.",
        x_ticks=across.marks(_MOST_TICKS),
        y_ticks=[Mark(y(10.0**e), label(e), grid=True) for e in range(bottom, top + 1)],
        paths=paths,
        dots=dots,
    )


def _curve(
    record: SimulationRecord,
    across: Across,
    value_of: Callable[[LoadFigures], float | None],
    y: Callable[[float], float],
    *,
    title: Callable[[LoadFigures], str],
    dash: str = "",
) -> tuple[list[Path], list[Dot]]:
    """Draw a figure over the loads, with a dot for each."""
    dots = [
        Dot(
            across.x(load.calls),
            y(value),
            levels.HELD[load.holds][1],
            hollow=load.holds is not True,
            title=title(load),
        )
        for load in record.loads
        if (value := value_of(load)) is not None and math.isfinite(value)
    ]
    return [Path(polyline((dot.x, dot.y) for dot in dots), dash=dash)] if dots else [], dots


def _hit_title(load: LoadFigures) -> str:
    return (
        f"{levels.count(load.calls)} calls: {levels.share(load.hit_rate)} of {load.turns:,} turns "
        f"in time, 95 % interval {levels.interval(load.hit_rate)}"
    )


def _spoken(record: SimulationRecord, name: str, said: Callable[[LoadFigures], str]) -> str:
    each = ", ".join(f"{levels.count(load.calls)} calls {said(load)}" for load in record.loads)
    return f"{name} over calls at once: {each}"
