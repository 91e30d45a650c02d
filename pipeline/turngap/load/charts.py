"""What is drawn of a load test: each figure over the sessions, which run to the right.

Each doubling goes as far as the one before. No drawing needs colour: steps that do not hold, or of
which nothing is sure, are hollow.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from turngap.load import words
from turngap.load.curve import best_steps, gap_ms, knee
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

# Gaps beyond so many budgets would flatten the others: then each doubling goes equally far.
MOST_BUDGETS = 2.5


class GapScale:
    """Gaps to pixels from the top: the largest that is known has room, whatever it is."""

    def __init__(self, known: Sequence[float], budget_ms: float, height_px: float) -> None:
        self._height_px = height_px
        self.top = max([*known, budget_ms * 1.1]) * 1.05
        self.log = self.top > budget_ms * MOST_BUDGETS
        self._bottom = max(1.0, min([*known, budget_ms]) / 1.2)

    def y(self, ms: float) -> float:
        """Pixels from the top; endless gaps are at the upper edge."""
        if self.log:
            at = math.log(min(max(ms, self._bottom), self.top) / self._bottom)
            return round(self._height_px * (1 - at / math.log(self.top / self._bottom)), 2)
        return round(self._height_px * (1 - min(max(ms, 0.0), self.top) / self.top), 2)

    def ticks(self) -> list[float]:
        """Round gaps to be named at the side."""
        if not self.log:
            step_ms = round_step(self.top)
            return [n * step_ms for n in range(int(self.top / step_ms) + 1)]
        tens = range(math.ceil(math.log10(self.top)) + 1)
        found = [part * 10.0**n for n in tens for part in (1, 2, 5)]
        return [ms for ms in found if self._bottom <= ms <= self.top]


HEIGHT_PX = 150
LOW_PX = 80
# Labels of the sessions are so far apart at least, per cent of the width: a phone's has 300 pixels.
LABEL_ROOM = 9.0
Name = Literal["p50", "p95"]
# Each with its dash.
_PERCENTILES: dict[Name, str] = {"p95": "", "p50": "6 5"}


def charts(record: LoadRecord) -> tuple[Chart, ...]:
    """Hit rate, gap, and what else becomes of calls, over the sessions.

    There is none where fewer than two levels were held.
    """
    steps = best_steps(record.steps)
    if len(steps) < 2:
        return ()
    drawn = _Drawn(record, steps)
    return tuple(
        chart
        for chart in (
            _hit_rates(drawn),
            _gaps(drawn),
            _yields(drawn),
            _shares(drawn),
        )
        if chart is not None
    )


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
    answered = [value for value in known if value < math.inf]
    scale = GapScale(answered, budget_ms, HEIGHT_PX)
    y = scale.y

    paths: list[Path] = []
    dots: list[Dot] = []
    for name, dash in _PERCENTILES.items():
        drawn_paths, drawn_dots = drawn.curve(
            partial(gap_ms, name=name), y, partial(_gap_title, name=name), dash
        )
        paths += drawn_paths
        dots += drawn_dots
    budget = Mark(y(budget_ms), f"{budget_ms:.0f}", strong=True)
    ticks = (Mark(y(ms), f"{ms:,.0f}", grid=True) for ms in scale.ticks())
    endless = sum(value == math.inf for value in known)
    return Chart(
        title="Turn gap, p50 and p95",
        spoken=drawn.spoken("gap p95 in ms", lambda step: words.ms(step.gap_ms["p95"])),
        height=HEIGHT_PX,
        note=f"Sessions at once, gap in ms{', on a logarithmic scale' if scale.log else ''}. "
        f"Dashed across: the {budget.label} ms budget."
        + (f" {endless} at the upper edge: too many turns were missed." if endless else ""),
        x_ticks=drawn.x_ticks,
        y_ticks=clear_of(ticks, budget, LABEL_PX),
        paths=paths,
        dots=dots,
        rules=[*drawn.rules, Rule(budget.at, style="target", upright=False)],
        legend=[Key(name, dash=dash) for name, dash in _PERCENTILES.items()],
    )


def _gap_title(step: StepFigures, name: Name) -> str:
    return f"gap {name} {words.ms(step.gap_ms[name])} ms"


def _yields(drawn: _Drawn) -> Chart | None:
    """Draw how quickly the agent falls silent; None if it was never interrupted."""
    known = [step.yield_ms.value for step in drawn.steps if step.yield_ms.value is not None]
    if not known:
        return None
    top = max(known) * 1.1 or 1.0

    def y(ms: float) -> float:
        return round(LOW_PX * (1 - ms / top), 2)

    paths, dots = drawn.curve(
        lambda step: step.yield_ms.value,
        y,
        lambda step: f"falls silent after {words.ms(step.yield_ms)} ms",
    )
    step_ms = round_step(top, about=2)
    return Chart(
        title="Yield: until the agent falls silent when it is interrupted",
        spoken=drawn.spoken("yield p50 in ms", lambda step: words.ms(step.yield_ms)),
        height=LOW_PX,
        note="Sessions at once, ms in the median.",
        x_ticks=drawn.x_ticks,
        y_ticks=[
            Mark(y(n * step_ms), f"{n * step_ms:,.0f}", grid=True)
            for n in range(int(top / step_ms) + 1)
        ],
        paths=paths,
        dots=dots,
    )


def _shares(drawn: _Drawn) -> Chart:
    """Draw the shares of replies with a hole, and of calls that were refused or dropped."""

    def lost(step: StepFigures) -> float | None:
        return (step.refused + step.dropped) / step.calls if step.calls else None

    known = [s.holes for s in drawn.steps if s.holes is not None]
    known += [value for s in drawn.steps if (value := lost(s)) is not None]
    # Nothing lost is a line at the bottom, and one in a hundred is not made to look like many.
    top = min(1.0, max([0.1, *known]) * 1.1)

    def y(value: float) -> float:
        return round(LOW_PX * (1 - value / top), 2)

    paths, dots = drawn.curve(
        lambda step: step.holes, y, lambda step: f"{words.holes(step)} of replies with a hole"
    )
    refused, more = drawn.curve(
        lost,
        y,
        lambda step: f"{step.refused:,} of {step.calls:,} calls refused, {step.dropped:,} dropped",
        "6 5",
    )
    part = round_step(top, about=2)
    return Chart(
        title="Holes in the audio, and calls refused or dropped",
        spoken=drawn.spoken(
            "refused or dropped", lambda step: f"{step.refused + step.dropped} of {step.calls}"
        ),
        height=LOW_PX,
        note="Sessions at once; share of the replies, and of the calls.",
        x_ticks=drawn.x_ticks,
        y_ticks=[
            Mark(y(n * part), f"{n * part:.0%}", grid=True) for n in range(int(top / part) + 1)
        ],
        paths=[*paths, *refused],
        dots=[*dots, *more],
        legend=[Key("holes", dash=""), Key("refused or dropped", dash="6 5")],
    )
