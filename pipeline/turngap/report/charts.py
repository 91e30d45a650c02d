"""The chart kit: positions in a page's drawings. The style sheet decides their look.

Horizontal positions are per cent of the drawing's width and vertical ones pixels: a drawing follows
the page's width while its text keeps its size. Labels are in the margins: those of the y axis to
the left, those of upright rules above, so none lies over a bar.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from turngap.core.budget import NATURAL_MS
from turngap.core.results import Turn
from turngap.core.stages import Stage
from turngap.report import looks, turn_words, words

ROW_PX = 19
CURVE_PX = 170
STRIP_PX = 30
# Paths are drawn in a box so wide, which the page stretches.
BOX = 1000
# A label's character takes about this many pixels, and a label this many in height.
CHARACTER_PX = 6.4
LABEL_PX = 14.0
# Stages shorter than this would be hairlines; they are named together below the drawing.
SHORT_MS = 1.0
# No drawing reaches farther than this, in budgets: one reply after 20 s would flatten the others.
NEAREST_EDGE = 1.25
FARTHEST_EDGE = 2.5
EARLIEST_EDGE = -0.3
# Waterfalls of slower turns than this share run over the edge, and say so.
SHOWN_WHOLE = 0.9
# The n-th of several lines is drawn with the n-th dash wherever it is drawn.
DASHES = ("", "9 5", "3 4", "12 4 3 4", "6 3", "2 6", "14 6", "8 2 2 2")


@dataclass(frozen=True, slots=True)
class Mark:
    """A labelled place on an axis. `strong` marks are the budget's or a target's."""

    at: float
    label: str
    strong: bool = False
    grid: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """A line in a box of `BOX` by the chart's height; an `area` is filled instead."""

    d: str
    style: str = ""
    dash: str = ""
    area: bool = False


@dataclass(frozen=True, slots=True)
class Dot:
    """A circle. `r` is in pixels; `href` leads to a turn on the same page."""

    x: float
    y: float
    style: str = ""
    hollow: bool = False
    r: float = 4.0
    title: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A filled or hollow bar."""

    x: float
    y: float
    width: float
    height: float
    style: str = ""
    hollow: bool = False
    title: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """A line through the whole drawing; an upright line has its label above it."""

    at: float
    label: str = ""
    style: str = "rule"
    upright: bool = True


@dataclass(frozen=True, slots=True)
class Label:
    """A few letters next to a dot: `dx` pixels from its centre."""

    x: float
    y: float
    text: str
    dx: float


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend, drawn with the same dash, fill and colour as in the chart."""

    name: str
    style: str = ""
    dash: str | None = None
    letter: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One drawing. `spoken` is for a screen reader; `note` explains it below."""

    spoken: str
    height: float
    x_ticks: Sequence[Mark] = ()
    y_ticks: Sequence[Mark] = ()
    title: str = ""
    note: str = ""
    name: str = "drawing"
    bands: Sequence[tuple[float, float]] = ()
    bars: Sequence[Bar] = ()
    paths: Sequence[Path] = ()
    rules: Sequence[Rule] = ()
    dots: Sequence[Dot] = ()
    labels: Sequence[Label] = ()
    legend: Sequence[Key] = ()

    @property
    def gutter(self) -> int:
        """Pixels to the left of the drawing for the labels of the y axis."""
        return round(max((len(m.label) for m in self.y_ticks), default=0) * CHARACTER_PX) + 12

    @property
    def tops(self) -> list[Rule]:
        """Return the rules with a label; each label gets its own line above the drawing."""
        return [rule for rule in self.rules if rule.label]


def polyline(points: Iterable[tuple[float, float]]) -> str:
    """Return the path through places (per cent across, pixels down)."""
    return "M" + "L".join(f"{x * BOX / 100:g} {y:g}" for x, y in points)


def round_step(span: float, about: int = 4) -> float:
    """Return a round step that divides `span` into at most `about` parts."""
    rough = span / about
    size = 10 ** math.floor(math.log10(rough))
    return next(size * m for m in (1, 2, 5, 10) if size * m >= rough)


def clear_of(marks: Iterable[Mark], strong: Mark, room: float) -> list[Mark]:
    """Drop the marks closer than `room` to the strong mark, and add the strong mark."""
    return [*(mark for mark in marks if abs(mark.at - strong.at) >= room), strong]


def spread(places: Sequence[float], bottom: float) -> list[float]:
    """Return vertical places for labels, as near as possible to `places` without overlap."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    found: list[float] = []
    for i in order:
        found.append(max(places[i], found[-1] + LABEL_PX if found else 0.0))
    for left in range(len(order)):
        at = len(order) - 1 - left
        found[at] = min(found[at], bottom - left * LABEL_PX)
    placed = dict(zip(order, found, strict=True))
    return [placed[i] for i in range(len(places))]


@dataclass(frozen=True, slots=True)
class Domain:
    """The part of time that is drawn, in multiples of the budget, whose rule never moves."""

    low: float
    high: float

    def x(self, ms: float, budget_ms: float) -> float:
        """Return the place in per cent of the width, clamped to the drawing."""
        share = (ms / budget_ms - self.low) / (self.high - self.low)
        return round(100 * min(1.0, max(0.0, share)), 3)

    def beyond(self, ms: float, budget_ms: float) -> bool:
        return not self.low <= ms / budget_ms <= self.high

    def band(self, budget_ms: float) -> tuple[float, float]:
        """Return the place and width of the gaps that people leave each other."""
        low, high = (self.x(ms, budget_ms) for ms in NATURAL_MS)
        return low, high - low


def domain_of(turns: Sequence[Turn], *, shown_whole: float = SHOWN_WHOLE) -> Domain:
    """Choose one domain for all of a run's turns, to make them comparable by eye.

    It holds the fastest `shown_whole` of them with some room, within the allowed edges.
    """
    gaps = sorted(t.gap_ms / t.budget_ms for t in turns if t.gap_ms is not None)
    if not gaps:
        return Domain(0.0, NEAREST_EDGE)
    slowest = gaps[math.ceil(shown_whole * len(gaps)) - 1]
    return Domain(
        low=max(min(0.0, gaps[0] * 1.1), EARLIEST_EDGE),
        high=min(max(slowest * 1.1, NEAREST_EDGE), FARTHEST_EDGE),
    )


def waterfall(turn: Turn, domain: Domain) -> Chart:
    """Draw each stage in its own row, named in the margin, from the end of the one before."""
    budget = turn.budget_ms
    bars: list[Bar] = []
    names: list[Mark] = []
    at_ms = 0.0
    for stage in turn.stages:
        start, end = sorted((at_ms, at_ms + stage.ms))
        at_ms += stage.ms
        if abs(stage.ms) >= SHORT_MS:
            left, right = domain.x(start, budget), domain.x(end, budget)
            top = len(bars) * ROW_PX
            width = round(max(right - left, 0.3), 3)
            bars.append(Bar(left, top + 3, width, ROW_PX - 6, looks.look_of(stage.name).group))
            name = looks.short_name(stage.name) if stage.ms > 0 else "cut in"
            names.append(Mark(top + ROW_PX / 2, f"{name} {words.ms(stage.ms)}"))
    if names and turn.gap_ms is not None and domain.beyond(turn.gap_ms, budget):
        last = names[-1]
        names[-1] = Mark(last.at, f"{last.label} {'◂' if turn.gap_ms < 0 else '▸'}")
    zero = domain.x(0, budget)
    waited = Path(polyline([(zero, ROW_PX / 2), (100, ROW_PX / 2)]), "silence", "3 5")
    return Chart(
        spoken=_spoken(turn),
        height=max(1, len(bars)) * ROW_PX,
        name="waterfall",
        x_ticks=_few_ticks(domain, budget),
        y_ticks=names,
        bands=[domain.band(budget)],
        bars=bars,
        paths=[waited] if turn.outcome == "no_reply" else (),
        rules=[Rule(zero, style="zero"), Rule(domain.x(budget, budget))],
    )


def _few_ticks(domain: Domain, budget_ms: float) -> list[Mark]:
    """Return ticks at zero, at the budget, and at the natural band's end if a phone has room."""
    at_zero = Mark(domain.x(0, budget_ms), "0")
    at_budget = Mark(domain.x(budget_ms, budget_ms), f"{budget_ms:.0f} ms", strong=True)
    natural = Mark(domain.x(NATURAL_MS[1], budget_ms), f"{NATURAL_MS[1]:.0f}")
    has_room = natural.at - at_zero.at > 12 and at_budget.at - natural.at > 22
    return [at_zero, *([natural] if has_room else []), at_budget]


def together(stages: Sequence[Stage]) -> str:
    """Name the stages that are too short to be drawn; empty if there are none."""
    short = [stage for stage in stages if abs(stage.ms) < SHORT_MS]
    if not short:
        return ""
    names = ", ".join(dict.fromkeys(looks.short_name(stage.name) for stage in short))
    each = " each" if len(short) > 1 else ""
    return f"{names}: under {SHORT_MS:g} ms{each}"


def _spoken(turn: Turn) -> str:
    gap = turn_words.gap_words(turn)
    head = f"{turn.outcome}, {gap[0]}" if gap else turn.outcome
    stages = ", ".join(f"{looks.short_name(s.name)} {words.ms(s.ms)} ms" for s in turn.stages)
    why = turn_words.why_words(turn)
    return ". ".join(filter(None, (f"Waterfall: {head}", why, stages)))


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent's turns in a drawing of gaps; `anchors` are the anchors of its turns on the page.

    Of two agents, A is dashed and hollow, B solid and filled: no drawing needs colour.
    """

    turns: Sequence[Turn]
    letter: str = ""
    name: str = ""
    anchors: Sequence[str] = ()


def gap_chart(agents: Sequence[Agent], budget_ms: float, spoken: str) -> Chart:
    """Draw the share of all turns answered within each gap, above a strip of dots, one a turn.

    The curve counts every turn in its denominator: at the budget its height is the hit rate.
    """
    every = [turn for agent in agents for turn in agent.turns]
    domain = domain_of(every, shown_whole=1.0 if len(agents) == 1 else 0.98)
    shares = [Mark(CURVE_PX * (1 - share), f"{share:.0%}", grid=True) for share in (0, 0.5, 1)]
    strips = [
        Mark(CURVE_PX + STRIP_PX * (i + 0.5) + 4, agent.letter or "turns")
        for i, agent in enumerate(agents)
    ]
    note = (
        "Share of all turns answered within each gap; below, each dot is one turn. The "
        f"upright line is the {words.ms(budget_ms)} ms budget, the shade the gaps that people "
        "leave each other ({:.0f} to {:.0f} ms).".format(*NATURAL_MS)
    )
    gaps = [turn.gap_ms for turn in every if turn.gap_ms is not None]
    if silent := len(every) - len(gaps):
        note += f" {words.turns_words(silent)} without a gap: in the share, not among the dots."
    if beyond := sum(domain.beyond(gap, budget_ms) for gap in gaps):
        note += f" {words.turns_words(beyond)} beyond the edge."
    return Chart(
        spoken=spoken,
        height=CURVE_PX + STRIP_PX * len(agents) + 4,
        name="gaps",
        note=note,
        x_ticks=time_ticks(domain, budget_ms),
        y_ticks=[*shares, *strips],
        bands=[domain.band(budget_ms)],
        paths=[Path(curve(a.turns, domain, budget_ms), *_pen(a.letter)) for a in agents],
        rules=[Rule(domain.x(budget_ms, budget_ms))],
        dots=[dot for i, agent in enumerate(agents) for dot in _strip(i, agent, domain, budget_ms)],
        legend=[
            Key(f"{a.letter} {a.name}", *_pen(a.letter), letter=a.letter)
            for a in agents
            if a.letter
        ],
    )


def _pen(letter: str) -> tuple[str, str]:
    """Return style and dash of an agent's curve."""
    return ("a", "7 5") if letter == "A" else ("b", "")


def _strip(number: int, agent: Agent, domain: Domain, budget_ms: float) -> list[Dot]:
    anchors = agent.anchors or [""] * len(agent.turns)
    return [
        Dot(
            x=domain.x(turn.gap_ms, budget_ms),
            # Spread, or equal gaps would hide one another.
            y=CURVE_PX + 8 + STRIP_PX * number + i * 7 % (STRIP_PX - 10),
            style=looks.OUTCOME_STYLES[turn.outcome],
            hollow=agent.letter == "A",
            title=f"{words.turn_name(turn)}: {turn.outcome}, {turn_words.gap_words(turn)[0]}",
            href=anchor and f"#{anchor}",
        )
        for i, (turn, anchor) in enumerate(zip(agent.turns, anchors, strict=True))
        if turn.gap_ms is not None
    ]


def curve(turns: Sequence[Turn], domain: Domain, budget_ms: float) -> str:
    """Draw the share of all turns answered within each gap, as a path in a `BOX` by `CURVE_PX`."""
    answered = sorted(t.gap_ms for t in turns if t.replied and t.gap_ms is not None)
    path = [f"M{domain.x(0, budget_ms) * 10:g} {CURVE_PX}"]
    for rank, gap in enumerate(answered, start=1):
        if not domain.beyond(gap, budget_ms):
            height = CURVE_PX * (1 - rank / len(turns))
            path.append(f"H{domain.x(gap, budget_ms) * 10:g}V{height:.2f}")
    return "".join([*path, "H1000"])


def time_ticks(domain: Domain, budget_ms: float) -> list[Mark]:
    """Mark every 200 ms, or less often to have at most seven marks; none near the budget's."""
    span = (domain.high - domain.low) * budget_ms
    step = next(s for s in (200, 500, 1000, 2000, 5000, 10_000, 10**9) if span / s <= 7)
    first = int(domain.low * budget_ms // step) + 1 if domain.low < 0 else 0
    places = range(first * step, int(domain.high * budget_ms) + 1, step)
    marks = [Mark(domain.x(ms, budget_ms), f"{ms}".replace("-", "−")) for ms in places]
    at_budget = Mark(domain.x(budget_ms, budget_ms), f"{budget_ms:.0f} ms", strong=True)
    return clear_of(marks, at_budget, 13)
