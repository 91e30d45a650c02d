"""Figures of a run over a line: what the line cost, and what broke on it."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import inf
from statistics import median
from typing import Any

from turngap.core.budget import SILENT
from turngap.core.clock import NS_PER_S
from turngap.core.results import Turn
from turngap.core.stats import Percentile, percentile_of
from turngap.core.stored import LineTurn

# A slope of fewer turns, or of fewer calls, is not worth a figure.
LEAST_TURNS = LEAST_CALLS = 3


@dataclass(frozen=True, slots=True)
class LineFigures:
    """Figures of the turns that crossed a line; times in ms.

    Attributes:
        pairs: turns that were answered without the line, and over it or not: one that was not is
            later than any.
        plain_ms, with_ms: the median gap of these without the line, and over it.
        difference_ms: the median of their differences.
        parts: turns behind the next three.
        part_ms, part_p95_ms: the line's part of the gap, both ways.
        agent_ms: the rest of the gap.
        replies: those whose holes are known, which those over WebRTC are not.
        dry_replies: replies that ran dry; `dry` counts the holes, `dry_ms` adds them up, and
            `dry_in_word` counts those within a word.
        buffer_ms: the playout buffer that hides all holes in 95 % of the replies.
        buffer_gap_ms: the median gap behind that buffer.
        lag_ms_per_minute: by how much later replies come with each minute of a call, the median
            over `lag_calls`; None with fewer than three calls of three such turns.
        yields, yield_ms, plain_yield_ms: turns in which the agent was interrupted and fell silent
            without the line, and the median time until it was silent; over the line never is later
            than any.
        backlog_bytes: the most bytes that waited in the line; None if not known.
    """

    pairs: int
    plain_ms: Percentile
    with_ms: Percentile
    difference_ms: Percentile
    parts: int
    part_ms: Percentile
    part_p95_ms: Percentile
    agent_ms: Percentile
    replies: int
    dry_replies: int
    dry: int
    dry_ms: float
    dry_in_word: int
    buffer_ms: Percentile
    buffer_gap_ms: Percentile
    lag_ms_per_minute: float | None
    lag_calls: int
    yields: int
    yield_ms: Percentile
    plain_yield_ms: Percentile
    backlog_bytes: int | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def line_figures(turns: Sequence[Turn]) -> LineFigures | None:
    """Compute what a line did to a run's turns; None if no turn crossed one."""
    crossed = [(turn, turn.line) for turn in turns if turn.line is not None]
    if not crossed:
        return None
    replies = [(t, line, t.gap_ms) for t, line in crossed if t.replied and t.gap_ms is not None]
    pairs = [
        (t, inf if t.gap_ms is None else t.gap_ms, line.plain_gap_ms)
        for t, line in crossed
        if line.plain_gap_ms is not None and (t.replied or t.outcome in SILENT)
    ]
    parts = [
        (t, line.up_ms + line.down_ms, gap)
        for t, line, gap in replies
        if line.up_ms is not None and line.down_ms is not None
    ]
    buffers = [(t, line.buffer_ms) for t, line, _ in replies if line.buffer_ms is not None]
    buffer = _at(buffers, 0.95)
    whole = [] if buffer.value is None else [(t, gap + buffer.value) for t, _, gap in replies]
    heard = [line for _, line, _ in replies if line.buffer_ms is not None]
    holes = [hole for line in heard for hole in line.dry]
    slopes = _slopes(crossed)
    yields = [
        (t, inf if t.yield_ms is None else t.yield_ms, line.plain_yield_ms)
        for t, line in crossed
        if line.plain_yield_ms is not None
    ]
    waited = [line.backlog_bytes for _, line in crossed if line.backlog_bytes is not None]
    return LineFigures(
        pairs=len(pairs),
        plain_ms=_at([(t, plain) for t, _, plain in pairs], 0.5),
        with_ms=_at([(t, gap) for t, gap, _ in pairs], 0.5),
        difference_ms=_at([(t, gap - plain) for t, gap, plain in pairs], 0.5),
        parts=len(parts),
        part_ms=_at([(t, part) for t, part, _ in parts], 0.5),
        part_p95_ms=_at([(t, part) for t, part, _ in parts], 0.95),
        agent_ms=_at([(t, gap - part) for t, part, gap in parts], 0.5),
        replies=len(heard),
        dry_replies=sum(bool(line.dry) for line in heard),
        dry=len(holes),
        dry_ms=sum(hole.ms for hole in holes),
        dry_in_word=sum(hole.in_word for hole in holes),
        buffer_ms=buffer,
        buffer_gap_ms=_at(whole, 0.5),
        lag_ms_per_minute=median(slopes) if len(slopes) >= LEAST_CALLS else None,
        lag_calls=len(slopes),
        yields=len(yields),
        yield_ms=_at([(t, over) for t, over, _ in yields], 0.5),
        plain_yield_ms=_at([(t, plain) for t, _, plain in yields], 0.5),
        backlog_bytes=max(waited, default=None),
    )


def _at(values: Sequence[tuple[Turn, float | None]], q: float) -> Percentile:
    known = [(turn, value) for turn, value in values if value is not None]
    return percentile_of([value for _, value in known], [turn.take for turn, _ in known], q)


def _slopes(crossed: Sequence[tuple[Turn, LineTurn]]) -> list[float]:
    """Return each call's growth of lag, in ms a minute: the median slope between two turns."""
    calls: dict[object, list[tuple[float, float]]] = {}
    for turn, line in crossed:
        end_ns = next((mark.at_ns for mark in turn.marks if mark.name == "user_end"), None)
        if line.lag_ms is not None and end_ns is not None:
            minute = end_ns / NS_PER_S / 60
            calls.setdefault(turn.call, []).append((minute, line.lag_ms))
    return [
        median(
            (b - a) / (later - at) for (at, a), (later, b) in combinations(each, 2) if later > at
        )
        for each in calls.values()
        if len({at for at, _ in each}) >= LEAST_TURNS
    ]
