"""Where things lie in the HTML report's drawings. What they look like is the style sheet's part.

Horizontal places are per cent of the drawing's width, vertical ones pixels: so a drawing follows
the page's width while its text keeps its size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turngap.core.budget import NATURAL_MS
from turngap.core.results import StageRecord, Turn
from turngap.report import words

ROW_PX = 19
AXIS_PX = 20
CURVE_PX = 170
STRIP_PX = 38
# What a label's character takes of a drawing half a page wide (480 px), per cent.
CHARACTER_SHARE = 1.4
# Stages shorter than this would be hairlines; they are named together below the drawing.
SHORT_MS = 1.0
# No drawing reaches farther than this, in budgets: one reply after 20 s would flatten the others.
NEAREST_EDGE = 1.25
FARTHEST_EDGE = 2.5
EARLIEST_EDGE = -0.3
# Waterfalls of slower turns than this share run over the edge, and say so.
SHOWN_WHOLE = 0.9


@dataclass(frozen=True, slots=True)
class Domain:
    """What part of time is drawn, in multiples of the budget, so that its rule never moves."""

    low: float
    high: float

    def x(self, ms: float, budget_ms: float) -> float:
        """Per cent of the width; clamped to the drawing."""
        share = (ms / budget_ms - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def beyond(self, ms: float, budget_ms: float) -> bool:
        """Whether an instant lies outside the drawing."""
        return not self.low <= ms / budget_ms <= self.high


def domain_of(turns: Sequence[Turn], *, shown_whole: float = SHOWN_WHOLE) -> Domain:
    """One domain for all of a run's turns, so that they can be compared by eye.

    It holds the fastest `shown_whole` of them with some room, within the edges allowed above.
    """
    gaps = sorted(t.gap_ms / t.budget_ms for t in turns if t.gap_ms is not None)
    if not gaps:
        return Domain(0.0, NEAREST_EDGE)
    slowest = gaps[math.ceil(shown_whole * len(gaps)) - 1]
    return Domain(
        low=max(min(0.0, gaps[0] * 1.1), EARLIEST_EDGE),
        high=min(max(slowest * 1.1, NEAREST_EDGE), FARTHEST_EDGE),
    )


@dataclass(frozen=True, slots=True)
class Tick:
    """A labelled place on the time axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Row:
    """One stage's bar. `side`: where its label has room, `after`, `before` or `inside` the bar."""

    x: float
    width: float
    y: int
    group: words.Group
    label: str
    side: str
    label_x: float


@dataclass(frozen=True, slots=True)
class Waterfall:
    """One turn's drawing. `spoken` tells it to a screen reader; `overflow` is an arrow or empty."""

    rows: tuple[Row, ...]
    height: int
    zero: float
    rule: float
    band: tuple[float, float]
    ticks: tuple[Tick, ...]
    silence: bool
    overflow: str
    short: str
    spoken: str


def waterfall(turn: Turn, domain: Domain) -> Waterfall:
    """Each stage in a row of its own, beginning where the one before ended."""
    x = domain.x
    budget = turn.budget_ms
    visible = [s for s in turn.stages if abs(s.ms) >= SHORT_MS]
    short = [s for s in turn.stages if abs(s.ms) < SHORT_MS]
    rows: list[Row] = []
    at_ms = 0.0
    for stage in turn.stages:
        start, end = sorted((at_ms, at_ms + stage.ms))
        at_ms += stage.ms
        if stage in visible:
            name = words.clean(stage.name) if stage.ms > 0 else "cut in"
            label = f"{name} {words.ms(stage.ms)}"
            group = words.look_of(stage.name).group
            place = x(start, budget), x(end, budget)
            rows.append(_row(*place, len(rows), group, label, rule=x(budget, budget)))
    height = max(1, len(rows)) * ROW_PX
    low, high = (x(ms, budget) for ms in NATURAL_MS)
    return Waterfall(
        rows=tuple(rows),
        height=height,
        zero=x(0, budget),
        rule=x(budget, budget),
        band=(low, high - low),
        ticks=_ticks(domain, budget),
        silence=turn.outcome == "no_reply",
        overflow=_overflow(turn, domain),
        short=_together(short),
        spoken=_spoken(turn),
    )


def _overflow(turn: Turn, domain: Domain) -> str:
    """An arrow where the turn runs over an edge of the drawing."""
    if turn.gap_ms is None or not domain.beyond(turn.gap_ms, turn.budget_ms):
        return ""
    return "◂" if turn.gap_ms < 0 else "▸"


def _row(
    start: float, end: float, number: int, group: words.Group, label: str, *, rule: float
) -> Row:
    """Labels stand where there is room: to the right, else to the left, else on a bar that long.

    To the right ends at the budget's rule, which would cross them out.
    """
    room = CHARACTER_SHARE * len(label)
    side, label_x = "after", end
    if end + room > (rule if end < rule else 100):
        if start >= room:
            side, label_x = "before", start
        elif end - start >= room or end + room > 100:
            side, label_x = "inside", end
    return Row(
        x=start,
        width=round(max(end - start, 0.3), 3),
        y=number * ROW_PX,
        group=group,
        label=label,
        side=side,
        label_x=label_x,
    )


def _ticks(domain: Domain, budget_ms: float) -> tuple[Tick, ...]:
    """Zero, the natural band's edges where they keep clear of the budget, and the budget."""
    marks = [ms for ms in (0.0, *NATURAL_MS) if ms < budget_ms * 0.75] + [budget_ms]
    return tuple(
        Tick(domain.x(ms, budget_ms), f"{ms:.0f} ms" if ms == budget_ms else f"{ms:.0f}")
        for ms in marks
    )


def _together(short: Sequence[StageRecord]) -> str:
    if not short:
        return ""
    names = ", ".join(dict.fromkeys(words.clean(stage.name) for stage in short))
    each = " each" if len(short) > 1 else ""
    return f"{names}: under {SHORT_MS:g} ms{each}"


def _spoken(turn: Turn) -> str:
    gap = words.gap_words(turn)
    head = f"{turn.outcome}, {gap[0]}" if gap else turn.outcome
    stages = ", ".join(f"{words.clean(s.name)} {words.ms(s.ms)} ms" for s in turn.stages)
    why = words.why_words(turn)
    return ". ".join(filter(None, (f"Waterfall: {head}", why, stages)))


@dataclass(frozen=True, slots=True)
class Dot:
    """One turn's gap."""

    x: float
    y: int
    outcome: str
    anchor: str
    title: str


@dataclass(frozen=True, slots=True)
class GapPlot:
    """Share of all turns answered within each gap, over a strip with one dot for each turn.

    `path` is drawn in a box of 1000 by `CURVE_PX`.
    """

    path: str
    dots: tuple[Dot, ...]
    rule: float
    band: tuple[float, float]
    ticks: tuple[Tick, ...]
    without_gap: int
    beyond: int
    spoken: str


def gap_plot(
    turns: Sequence[Turn], anchors: Sequence[str], budget_ms: float, spoken: str
) -> GapPlot:
    """The curve counts every turn in its denominator: at the budget it stands at the hit rate."""
    domain = domain_of(turns, shown_whole=1.0)
    dots: list[Dot] = []
    for number, (turn, anchor) in enumerate(zip(turns, anchors, strict=True)):
        if turn.gap_ms is not None:
            title = f"{words.clean(turn.scenario)}, turn {turn.turn}: {turn.outcome}, "
            dots.append(
                Dot(
                    x=domain.x(turn.gap_ms, budget_ms),
                    y=8 + number * 7 % 24,  # spread, or equal gaps would hide one another
                    outcome=turn.outcome,
                    anchor=anchor,
                    title=title + words.gap_words(turn)[0],
                )
            )
    gaps = [t.gap_ms for t in turns if t.gap_ms is not None]
    low, high = (domain.x(ms, budget_ms) for ms in NATURAL_MS)
    return GapPlot(
        path=curve(turns, domain, budget_ms),
        dots=tuple(dots),
        rule=domain.x(budget_ms, budget_ms),
        band=(low, high - low),
        ticks=plot_ticks(domain, budget_ms),
        without_gap=len(turns) - len(gaps),
        beyond=sum(domain.beyond(gap, budget_ms) for gap in gaps),
        spoken=spoken,
    )


def curve(turns: Sequence[Turn], domain: Domain, budget_ms: float) -> str:
    """Share of all turns answered within each gap, as a path in a box of 1000 by `CURVE_PX`."""
    answered = sorted(t.gap_ms for t in turns if t.replied and t.gap_ms is not None)
    path = [f"M{domain.x(0, budget_ms) * 10:g} {CURVE_PX}"]
    for rank, gap in enumerate(answered, start=1):
        if not domain.beyond(gap, budget_ms):
            height = CURVE_PX * (1 - rank / len(turns))
            path.append(f"H{domain.x(gap, budget_ms) * 10:g}V{height:.2f}")
    return "".join([*path, "H1000"])


def plot_ticks(domain: Domain, budget_ms: float) -> tuple[Tick, ...]:
    """Every 200 ms, or fewer where that would be more than eight; none close to the budget's."""
    span = (domain.high - domain.low) * budget_ms
    step = next(s for s in (200, 500, 1000, 2000, 5000, 10_000, 10**9) if span / s <= 8)
    first = int(domain.low * budget_ms // step) + 1 if domain.low < 0 else 0
    marks = range(first * step, int(domain.high * budget_ms) + 1, step)
    clear = [ms for ms in marks if abs(ms - budget_ms) > span * 0.12]
    at_budget = Tick(domain.x(budget_ms, budget_ms), f"{budget_ms:.0f} ms")
    return (*(Tick(domain.x(ms, budget_ms), f"{ms}".replace("-", "−")) for ms in clear), at_budget)
