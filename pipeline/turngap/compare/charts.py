"""Where things lie in a comparison's drawings: per cent across, pixels down. None needs colour."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from turngap.compare import words as compare_words
from turngap.compare.chain import LONGEST, TurnFigures, expected_ms, expected_usd
from turngap.compare.figures import chain_figures
from turngap.compare.record import BackendRecord, ComparisonRecord
from turngap.report import words

HEIGHT_PX = 240
# Lines are drawn in a box so wide; the page stretches it.
BOX = 1000
SMALLEST_PX, LARGEST_PX = 5.0, 16.0
# Labels lie so far apart at least.
LABEL_PX = 13.0
# A task that takes so many times the shortest one's is beyond the drawing.
MOST_DECADES = 5
DASHES = ("", "9 5", "3 4", "12 4 3 4", "6 3", "2 6", "14 6", "8 2 2 2")


@dataclass(frozen=True, slots=True)
class Mark:
    """A labelled place on an axis: per cent across, or pixels down."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Dot:
    """One backend: its gap across, its right answers up (`low` to `high` in px), its price as size.

    `priced`: whether its price is known; drawn hollow otherwise. `label_y`: its label's place, px
    down.
    """

    x: float
    y: float
    low: float
    high: float
    r: float
    priced: bool
    label: str
    label_y: float
    end: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One backend over tasks of 1 to 20 turns, in a box of `BOX` by `HEIGHT_PX`."""

    name: str
    path: str
    dash: str


@dataclass(frozen=True, slots=True)
class Chart:
    """One drawing."""

    title: str
    spoken: str
    note: str
    x_marks: tuple[Mark, ...]
    y_marks: tuple[Mark, ...]
    dots: tuple[Dot, ...] = ()
    lines: tuple[Line, ...] = ()
    rules: tuple[Mark, ...] = ()


def charts(record: ComparisonRecord) -> tuple[Chart, ...]:
    """Speed, quality and cost; and the chain in time and in price, as far as they are known."""
    known = [
        (b.name, figures) for b in record.backends if (figures := chain_figures(b)) is not None
    ]
    priced = [(name, figures) for name, figures in known if figures.usd is not None]
    found = [_speed(record)]
    if known:
        found.append(_chain(record, known, "time"))
    if priced:
        found.append(_chain(record, priced, "price"))
    return tuple(chart for chart in found if chart.dots or chart.lines)


def _speed(record: ComparisonRecord) -> Chart:
    shown = [b for b in record.backends if b.gap_ms["p50"].value is not None and b.correct.n]
    gaps = [b.gap_ms["p50"].value or 0.0 for b in shown]
    right = max([record.budget_ms, *gaps]) * 1.05
    most = max((b.price.usd_per_turn or 0.0 for b in shown), default=0.0)
    step = 200 if right < 1500 else 500
    said = (
        f"{words.clean(b.name)}: {compare_words.figure(b.gap_ms['p50'])}, "
        f"{compare_words.share(b.correct)} right, "
        f"{compare_words.thousand(b.price.usd_per_turn)} dollars per 1000 turns"
        for b in shown
    )
    return Chart(
        title="Speed, quality, cost",
        spoken="; ".join(said) or "no backend with a gap and judged answers",
        note="Gap p50 in ms to the right, right answers up with their 95 % interval. The larger a "
        "dot, the dearer a turn; hollow: no price is known.",
        x_marks=tuple(Mark(100 * ms / right, f"{ms}") for ms in range(0, int(right) + 1, step)),
        y_marks=tuple(
            Mark(_up(share), f"{100 * share:.0f} %") for share in (0, 0.25, 0.5, 0.75, 1)
        ),
        dots=_labelled([_dot(b, right, most) for b in shown]),
        rules=(Mark(100 * record.budget_ms / right, f"{record.budget_ms:.0f} ms budget"),),
    )


def _dot(backend: BackendRecord, right: float, most_usd: float) -> Dot:
    usd, correct = backend.price.usd_per_turn, backend.correct
    share = math.sqrt((usd or 0.0) / most_usd) if most_usd else 0.0
    x = 100 * (backend.gap_ms["p50"].value or 0.0) / right
    price = "" if usd is None else f" · ${compare_words.thousand(usd)} per 1000"
    return Dot(
        x=max(0.0, x),
        y=_up(correct.value or 0.0),
        low=_up(correct.low or 0.0),
        high=_up(correct.high or 0.0),
        r=SMALLEST_PX + share * (LARGEST_PX - SMALLEST_PX),
        priced=usd is not None,
        label=f"{words.clean(backend.name)}{price}",
        label_y=_up(correct.value or 0.0),
        end=x > 60,
    )


def _labelled(dots: Sequence[Dot]) -> tuple[Dot, ...]:
    """The dots with their labels as near as they can be without lying on one another."""
    order = sorted(range(len(dots)), key=lambda i: (dots[i].y, dots[i].x))
    places: list[float] = []
    for i in order:
        places.append(max(dots[i].y, places[-1] + LABEL_PX if places else 0.0))
    for left, _ in enumerate(order):
        at = len(order) - 1 - left
        places[at] = min(places[at], HEIGHT_PX - left * LABEL_PX)
    placed = dict(zip(order, places, strict=True))
    return tuple(replace(dot, label_y=placed[i]) for i, dot in enumerate(dots))


def _up(share: float) -> float:
    return HEIGHT_PX * (1 - share)


def _chain(record: ComparisonRecord, known: Sequence[tuple[str, TurnFigures]], what: str) -> Chart:
    cost = expected_ms if what == "time" else expected_usd
    label: Callable[[float], str] = compare_words.seconds if what == "time" else _dollars
    curves = {
        name: [cost(f, n, "blind") or 0.0 for n in range(1, LONGEST + 1)] for name, f in known
    }
    positive = [v for values in curves.values() for v in values if 0 < v < math.inf]
    if not positive:
        return Chart("", "", "", (), ())
    bottom = math.floor(math.log10(min(positive)))
    top = min(math.ceil(math.log10(max(positive))), bottom + MOST_DECADES)
    top = max(top, bottom + 1)

    def y(value: float) -> float:
        return HEIGHT_PX * (1 - (math.log10(value) - bottom) / (top - bottom))

    # Who is ahead from the first turn on crosses nothing: the lines begin so.
    found = [c for c in record.crossings if c.what == what and (c.turns or 0) > 1]
    sentences = [compare_words.crossing(c) for c in record.crossings if c.what == what]
    return Chart(
        title=f"A task of several turns: {what} until it went well",
        spoken="; ".join(sentences) or "one backend alone: nothing to overtake",
        note=f"Turns of the task to the right, mean {what} up (logarithmic), begun anew each time. "
        "Upright lines: where one overtakes another, with the 95 % interval; “not sure” where that "
        "leaves open whether it does.",
        x_marks=tuple(Mark(_across(n), f"{n}") for n in (1, 5, 10, 15, LONGEST)),
        y_marks=tuple(Mark(y(10.0**e), label(10.0**e)) for e in range(bottom, top + 1)),
        lines=tuple(
            Line(words.clean(name), _path(values, y), DASHES[i % len(DASHES)])
            for i, (name, values) in enumerate(curves.items())
        ),
        rules=tuple(
            Mark(
                _across(c.turns or 1),
                f"{words.clean(c.follower)} past {words.clean(c.leader)} at {compare_words.at(c)}",
            )
            for c in found
        ),
    )


def _across(turns: int) -> float:
    return 100 * (turns - 1) / (LONGEST - 1)


def _path(values: Sequence[float], y: Callable[[float], float]) -> str:
    """Up to where it leaves the drawing."""
    points = [
        (BOX * _across(n) / 100, y(value))
        for n, value in enumerate(values, start=1)
        if 0 < value < math.inf
    ]
    inside = [(x, at) for x, at in points if at >= 0]
    # One point beyond the edge, cut there, so that a line is seen to leave.
    beyond = points[len(inside) : len(inside) + 1]
    if inside and beyond:
        (x0, y0), (x1, y1) = inside[-1], beyond[0]
        inside.append((x0 + (x1 - x0) * y0 / (y0 - y1), 0.0))
    return "M" + " L".join(f"{x:.1f} {at:.1f}" for x, at in inside) if inside else ""


def _dollars(usd: float) -> str:
    return f"${compare_words.digits(usd, 2)}"
