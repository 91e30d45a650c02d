"""Figures of one turn over a line: what was late, what stalled, and where the reply ran dry."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from turngap.caller.ear import JITTER_MS, Heard
from turngap.caller.line.running import Crossing, Crossings, WayName
from turngap.caller.said import AudioChunk, Incoming
from turngap.caller.stream import UserStream
from turngap.core.audio import Pcm, rms_dbfs
from turngap.core.clock import ms_to_ns, ns_to_ms, ns_to_samples, samples_to_ns
from turngap.core.events import Flush, TrackedTurn
from turngap.core.stages import MARKS, stages_of
from turngap.core.stored import DryRecord, LineTurn, StallRecord

# A hole shorter than this is not heard.
DRY_MS = 10.0
# What comes out less late than this is in time again after a stall.
IN_TIME_MS = 50.0
# Speech on both sides of a hole: this much sound, at most so far below the reply's loudest.
EDGE_MS, SOFTER_DB = 30.0, 25.0
UNHEARD = (
    "the agent began to speak before the person's last word had crossed the line: it answered "
    "something else, or cut in"
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Audio of the agent that came in one message, in ns; of length 0, a flush.

    Attributes:
        entered_ns, arrived_ns: when it entered the line, and when it came out.
        length_ns: how long it sounds.
        starts_ns: when it plays, after the chunk before it.
        ideal_ns: when it would play if the line took no time: an agent's pauses stay.
    """

    entered_ns: int
    arrived_ns: int
    length_ns: int
    starts_ns: int
    ideal_ns: int


@dataclass(frozen=True, slots=True)
class TurnOnLine:
    """A turn, as its figures need it; instants in ns.

    Attributes:
        begun_ns, ended_ns: the turn's time, from the person's first word to the turn's end.
        end_ns: the person's end; `last_packet_ns` is when the packet that holds it was due.
        parts_ns: the reply's stretches of speech; an end is None while the stretch lasts.
        received_ns: when the chunk that holds the first word came out of the line.
    """

    begun_ns: int
    end_ns: int
    last_packet_ns: int
    ended_ns: int
    parts_ns: Sequence[tuple[int, int | None]] = ()
    received_ns: int | None = None


class CrossedAudio:
    """The agent's audio of the turns that are not finished yet, and the line that it crossed."""

    def __init__(self, crossings: Crossings | None) -> None:
        self._crossings = crossings
        self.chunks: list[Chunk] = []
        self._ends_ns = self._ideal_ends_ns = 0

    @property
    def is_late(self) -> bool:
        """Return whether something is in the line, which may be the audio that is missing."""
        return self._crossings is not None and bool(self._crossings.down.waiting)

    def on_message(self, now_ns: int, incoming: Incoming) -> Incoming:
        """Take a message; mark audio that the agent sent without a pause behind the last."""
        audio = isinstance(incoming, AudioChunk) and incoming.packet is None
        if self._crossings is None or not (audio or isinstance(incoming, Flush)):
            return incoming
        entered_ns = self._crossings.entered_ns("down", now_ns) or now_ns
        if not isinstance(incoming, AudioChunk):
            self._ends_ns = min(self._ends_ns, now_ns)
            self._ideal_ends_ns = min(self._ideal_ends_ns, entered_ns)
            self.chunks.append(Chunk(entered_ns, now_ns, 0, now_ns, entered_ns))
            return incoming
        goes_on = entered_ns - self._ideal_ends_ns <= ms_to_ns(JITTER_MS)
        length_ns = samples_to_ns(len(incoming.pcm), incoming.rate)
        starts_ns, ideal_ns = max(now_ns, self._ends_ns), max(entered_ns, self._ideal_ends_ns)
        self.chunks.append(Chunk(entered_ns, now_ns, length_ns, starts_ns, ideal_ns))
        self._ends_ns, self._ideal_ends_ns = starts_ns + length_ns, ideal_ns + length_ns
        return replace(incoming, goes_on=goes_on)

    def finish(
        self, turn: TrackedTurn, stream: UserStream, heard: Sequence[Heard]
    ) -> tuple[TrackedTurn, LineTurn | None]:
        """Return a turn with the line's marks and stages, and its figures; None without a line."""
        if self._crossings is None:
            return turn, None
        packet = stream.sample_at(turn.user_end_ns) // stream.packet
        placed = TurnOnLine(
            begun_ns=turn.user_start_ns,
            end_ns=turn.user_end_ns,
            last_packet_ns=stream.instant_ns((packet + 1) * stream.packet),
            ended_ns=turn.ended_ns,
            parts_ns=turn.parts_ns,
            received_ns=turn.marks.get("received"),
        )
        figures = figures_of(placed, self._crossings, self.chunks, heard)
        self.chunks = [each for each in self.chunks if each.arrived_ns > turn.ended_ns]
        marks = {**turn.marks, **line_marks(placed, self._crossings)}
        marks = {name: marks[name] for name in MARKS if name in marks}
        stages = stages_of(marks) if turn.stages else ()
        unheard = turn.onset_ns is not None and marks.get("line_up", 0) > marks["received"]
        ambiguous = (*turn.ambiguous, UNHEARD) if unheard else turn.ambiguous
        return replace(turn, marks=marks, stages=stages, ambiguous=ambiguous), figures


def line_marks(turn: TurnOnLine, crossings: Crossings) -> dict[str, int]:
    """Return the marks that a line adds to a turn; `received` is when the line took it in.

    `line_up` is the person's end, later by the time that its packet was in the line.
    """
    marks: dict[str, int] = {}
    arrived_ns = crossings.arrived_ns("up", turn.last_packet_ns)
    if arrived_ns is not None:
        sent_ns = crossings.entered_ns("up", arrived_ns) or turn.last_packet_ns
        marks["line_up"] = turn.end_ns + arrived_ns - sent_ns
    if turn.received_ns is not None:
        entered_ns = crossings.entered_ns("down", turn.received_ns)
        if entered_ns is not None:
            marks |= {"received": entered_ns, "line_down": turn.received_ns}
    return marks


def figures_of(
    turn: TurnOnLine,
    crossings: Crossings,
    chunks: Sequence[Chunk],
    heard: Sequence[Heard],
) -> LineTurn:
    """Compute a turn's figures from what crossed, and from the agent's audio as it arrived."""
    marks = line_marks(turn, crossings)
    up, down = crossings.up, crossings.down
    reply = _reply(turn, chunks)
    up_ns = marks["line_up"] - turn.end_ns if "line_up" in marks else None
    lag_ns = reply[-1].arrived_ns - reply[-1].entered_ns - down.delay_ns if reply else None
    stalls = (*stalls_of("up", up, turn), *stalls_of("down", down, turn))
    return LineTurn(
        up_ms=None if up_ns is None else ns_to_ms(up_ns),
        down_ms=ns_to_ms(marks["line_down"] - marks["received"]) if "line_down" in marks else None,
        dry=dry_of(turn, reply, heard),
        buffer_ms=ns_to_ms(buffer_of(reply)) if reply else None,
        lag_ms=None if lag_ns is None else ns_to_ms(max(0, lag_ns)),
        up_lag_ms=None if up_ns is None else ns_to_ms(max(0, up_ns - up.delay_ns)),
        backlog_bytes=max(backlog_of(each, turn) for each in (up, down)),
        stalls=tuple(sorted(stalls, key=lambda stall: stall.at_ms)),
    )


def _reply(turn: TurnOnLine, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    """Return the chunks of a reply, from the one that holds its first word."""
    if turn.received_ns is None or not turn.parts_ns:
        return ()
    ends_ns = turn.parts_ns[-1][1] or turn.ended_ns
    first = bisect_left(chunks, turn.received_ns, key=lambda chunk: chunk.arrived_ns)
    last = bisect_right(chunks, ends_ns, key=lambda chunk: chunk.arrived_ns)
    return [chunk for chunk in chunks[first:last] if chunk.length_ns]


def buffer_of(reply: Sequence[Chunk]) -> int:
    """Return the least delay of the playout behind which no chunk would come too late, in ns."""
    late = max(chunk.arrived_ns - chunk.ideal_ns for chunk in reply)
    return max(0, late - (reply[0].starts_ns - reply[0].ideal_ns))


def dry_of(
    turn: TurnOnLine, reply: Sequence[Chunk], heard: Sequence[Heard]
) -> tuple[DryRecord, ...]:
    """Find the holes that the line made in a reply; the agent's own pauses are none."""
    found: list[DryRecord] = []
    loudest = max((rms_dbfs(piece.pcm) for piece in heard if len(piece.pcm)), default=0.0)
    for before, after in pairwise(reply):
        ends_ns = before.starts_ns + before.length_ns
        own_ns = after.ideal_ns - before.ideal_ns - before.length_ns
        dry_ns = after.starts_ns - ends_ns - own_ns
        if dry_ns >= ms_to_ns(DRY_MS) and ends_ns > turn.parts_ns[0][0]:
            edges = (_piece(heard, ends_ns - ms_to_ns(EDGE_MS)), _piece(heard, after.starts_ns))
            found.append(
                DryRecord(
                    at_ms=ns_to_ms(ends_ns - turn.parts_ns[0][0]),
                    ms=ns_to_ms(dry_ns),
                    in_word=min(map(rms_dbfs, edges)) > loudest - SOFTER_DB,
                )
            )
    return tuple(found)


def _piece(heard: Sequence[Heard], from_ns: int) -> Pcm:
    """Return up to 30 ms of what was heard from an instant on; empty if nothing was."""
    for piece in reversed(heard):
        if piece.start_ns <= from_ns < piece.end_ns:
            first = ns_to_samples(from_ns - piece.start_ns, piece.rate)
            return piece.pcm[first : first + ns_to_samples(ms_to_ns(EDGE_MS), piece.rate)]
    return np.empty(0, dtype=np.int16)


def stalls_of(way: WayName, crossing: Crossing, turn: TurnOnLine) -> Iterator[StallRecord]:
    """Find a turn's stalls, and how soon after each what came out was in time again."""
    entered, arrived = crossing.entered_ns, crossing.arrived_ns
    last = bisect_right(arrived, turn.ended_ns)
    found = [stall for stall in crossing.stalls if turn.begun_ns < stall[1] <= turn.ended_ns]
    if (unfinished := crossing.unfinished_stall(turn.ended_ns)) is not None:
        found.append(unfinished)
    for begun_ns, ended_ns in found:
        in_time = (
            arrived[at] - ended_ns
            for at in range(bisect_left(arrived, ended_ns), last)
            if arrived[at] - entered[at] - crossing.delay_ns < ms_to_ns(IN_TIME_MS)
        )
        recovered_ns = next(in_time, None)
        yield StallRecord(
            way=way,
            at_ms=ns_to_ms(begun_ns - turn.end_ns),
            ms=ns_to_ms(ended_ns - begun_ns),
            recovered_ms=None if recovered_ns is None else ns_to_ms(recovered_ns),
        )


def backlog_of(crossing: Crossing, turn: TurnOnLine) -> int:
    """Return the most bytes that were in a line at once during a turn."""
    entered = crossing.entered_ns
    first, last = bisect_left(entered, turn.begun_ns), bisect_right(entered, turn.ended_ns)
    inside = (crossing.backlog(entered[at]) for at in range(first, last))
    return max(inside, default=crossing.backlog(turn.ended_ns))
