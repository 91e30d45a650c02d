"""What is drawn of a load test: each figure over the sessions, which run to the right.

Each doubling goes as far as the one before. No drawing needs colour: steps that do not hold, or of
which nothing is sure, are hollow.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from turngap.load import words
from turngap.load.figures import best_steps, gap_ms, knee
from turngap.load.record import LoadRecord, StepFigures
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
from turngap.report.levels import HELD, Across, interval, share

HEIGHT_PX = 150
# Gaps beyond so many budgets would flatten the others: they are at the upper edge.
MOST_BUDGETS = 2.5
# Labels of the sessions are so far apart at least, per cent of the width: a phone's has 300 pixels.
LABEL_ROOM = 9.0
Name = Literal["p50", "p95"]
# Each with its dash.
_PERCENTILES: dict[Name, str] = {"p95": "", "p50": "6 5"}


def charts(record: LoadRecord) -> tuple[Chart, ...]:
    """Draw the hit rate and the gap over the sessions.

    There is none where fewer than two levels were held.
    """
    steps = best_steps(record.steps)
    if len(steps) < 2:
        return ()
    drawn = _Drawn(record, steps)
    return _hit_rates(drawn), _gaps(drawn)


class _Drawn:
    """The steps that are drawn, and what all drawings of them have in common."""

    def __init__(self, record: LoadRecord, steps: Sequence[StepFigures]) -> None:
        self.record, self.steps = record, steps
        self.across = Across([self.sessions(step) for step in steps])
        certified = record.capacity.sessions if record.capacity else None
        first = [certified] if certified else []
        # The labels of the ends and of what is certified come before all others.
        names = [*first, *(self.sessions(s) for s in (steps[-1], steps[0], *steps))]
        self.x_ticks = self.across.marks_at(names, LABEL_ROOM)
        self.rules = self._rules(certified)
        void = sum(step.void is not None for step in record.steps)
        voids = "1 void step is" if void == 1 else f"{void} void steps are"
        self.void = f" {voids} not drawn." if void else ""

    def _rules(self, certified: int | None) -> list[Rule]:
        """Upright lines at the certified level and at the knee; one where they are the same."""
        found = knee(self.record.steps)
        bend = None
        # Between levels that are far apart it is not known where it lies.
        if found is not None and self.sessions(found[1]) <= 2 * self.sessions(found[0]) + 1:
            bend = found[0].sessions
        if certified is not None and certified == bend:
            return [Rule(self.across.x(certified), f"certified, and knee: {certified:,}", "held")]
        rules: list[Rule] = []
        if certified is not None:
            rules.append(Rule(self.across.x(certified), f"certified: {certified:,}", "held"))
        if bend is not None:
            rules.append(Rule(self.across.x(bend), f"knee: {bend:,}", "zero"))
        return rules

    @staticmethod
    def sessions(step: StepFigures) -> int:
        """Return the sessions of a step that is a level."""
        return step.sessions or 1

    def curve(
        self,
        value_of: Callable[[StepFigures], float | None],
        y: Callable[[float], float],
        title: Callable[[StepFigures], str],
        dash: str = "",
    ) -> tuple[list[Path], list[Dot]]:
        """Draw a figure over the levels, with a dot for each."""
        dots = [
            Dot(
                self.across.x(self.sessions(step)),
                y(value),
                HELD[step.holds][1],
                hollow=step.holds is not True,
                title=f"{words.at_load(step)}: {title(step)}",
            )
            for step in self.steps
            if (value := value_of(step)) is not None
        ]
        return [Path(polyline((d.x, d.y) for d in dots), dash=dash)] if dots else [], dots

    def spoken(self, name: str, said: Callable[[StepFigures], str]) -> str:
        each = ", ".join(f"{words.at_load(step)} {said(step)}" for step in self.steps)
        return f"{name} over sessions: {each}"


def _hit_rates(drawn: _Drawn) -> Chart:
    target = drawn.record.target
    lows = [step.hit_rate.low for step in drawn.steps if step.hit_rate.low is not None]
    bottom = max(0.0, min([*lows, target]) - 0.05)
    # A collapse to nothing is shown as one; small losses are not hidden below it.
    bottom = 0.0 if bottom < 0.5 else math.floor(bottom * 20) / 20

    def y(value: float) -> float:
        return round(HEIGHT_PX * (1 - (value - bottom) / (1 - bottom)), 2)

    paths, dots = drawn.curve(
        lambda step: step.hit_rate.value,
        y,
        lambda step: (
            f"{share(step.hit_rate)} of {step.turns:,} turns on time, 95 % interval "
            f"{interval(step.hit_rate)}"
        ),
    )
    asked = Mark(y(target), words.percent(target), strong=True)
    ticks = (Mark(y(s), f"{s:.0%}", grid=True) for s in _parts(bottom))
    return Chart(
        title="Turns answered on time",
        spoken=drawn.spoken("hit rate", lambda step: share(step.hit_rate)),
        height=HEIGHT_PX,
        note=f"Sessions at once. Shaded: 95 % interval. Dashed across: the {asked.label} asked "
        f"for. Filled dots hold.{drawn.void}",
        x_ticks=drawn.x_ticks,
        y_ticks=clear_of(ticks, asked, LABEL_PX),
        paths=[*_area(drawn, y), *paths],
        dots=dots,
        rules=[*drawn.rules, Rule(asked.at, style="target", upright=False)],
    )


def _parts(bottom: float) -> list[float]:
    return [bottom + (1 - bottom) * n / 4 for n in range(5)]


def _area(drawn: _Drawn, y: Callable[[float], float]) -> list[Path]:
    """Draw the hit rates' intervals as an area."""
    bounds = [
        (drawn.across.x(drawn.sessions(step)), y(step.hit_rate.low), y(step.hit_rate.high))
        for step in drawn.steps
        if step.hit_rate.low is not None and step.hit_rate.high is not None
    ]
    around = [(x, high) for x, _, high in bounds] + [(x, low) for x, low, _ in reversed(bounds)]
    return [Path(f"{polyline(around)}Z", area=True)] if around else []


def _gaps(drawn: _Drawn) -> Chart:
    budget_ms = drawn.record.budget_ms
    known = [
        value
        for step in drawn.steps
        for name in _PERCENTILES
        if (value := gap_ms(step, name)) is not None
    ]
    highest = max([*(value for value in known if value < math.inf), budget_ms * 1.1])
    top = min(highest * 1.05, budget_ms * MOST_BUDGETS)

    def y(value: float) -> float:
        return round(HEIGHT_PX * (1 - min(max(value, 0.0), top) / top), 2)

    paths: list[Path] = []
    dots: list[Dot] = []
    for name, dash in _PERCENTILES.items():
        drawn_paths, drawn_dots = drawn.curve(
            partial(gap_ms, name=name), y, partial(_gap_title, name=name), dash
        )
        paths += drawn_paths
        dots += drawn_dots
    budget = Mark(y(budget_ms), f"{budget_ms:.0f}", strong=True)
    step_ms = round_step(top)
    rounds = (n * step_ms for n in range(int(top / step_ms) + 1))
    ticks = (Mark(y(ms), f"{ms:,.0f}", grid=True) for ms in rounds)
    beyond = sum(value > top for value in known)
    return Chart(
        title="Turn gap, p50 and p95",
        spoken=drawn.spoken("gap p95 in ms", lambda step: words.ms(step.gap_ms["p95"])),
        height=HEIGHT_PX,
        note=f"Sessions at once, gap in ms. Dashed across: the {budget.label} ms budget."
        + (f" {beyond} at the upper edge: longer, or too many turns missed." if beyond else ""),
        x_ticks=drawn.x_ticks,
        y_ticks=clear_of(ticks, budget, LABEL_PX),
        paths=paths,
        dots=dots,
        rules=[*drawn.rules, Rule(budget.at, style="target", upright=False)],
        legend=[Key(name, dash=dash) for name, dash in _PERCENTILES.items()],
    )


def _gap_title(step: StepFigures, name: Name) -> str:
    return f"gap {name} {words.ms(step.gap_ms[name])} ms"
