"""Figures of one turn over a line: what was late, what stalled, and where the reply ran dry."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from turngap.caller.ear import Heard
from turngap.caller.line.running import Crossing, Crossings, WayName
from turngap.caller.said import AudioChunk, Incoming
from turngap.caller.stream import UserStream
from turngap.core.audio import Pcm, rms_dbfs
from turngap.core.clock import ms_to_ns, ns_to_ms, ns_to_samples, samples_to_ns
from turngap.core.events import TrackedTurn
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
    """Audio of the agent that came in one message: its arrival and its length, in ns."""

    arrived_ns: int
    length_ns: int


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
        self._chunks: list[Chunk] = []

    def on_message(self, now_ns: int, incoming: Incoming) -> None:
        if self._crossings is not None and isinstance(incoming, AudioChunk):
            length_ns = samples_to_ns(len(incoming.pcm), incoming.rate)
            self._chunks.append(Chunk(now_ns, length_ns))

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
        figures = figures_of(placed, self._crossings, self._chunks, heard)
        self._chunks = [each for each in self._chunks if each.arrived_ns > turn.ended_ns]
        marks = {**turn.marks, **line_marks(placed, self._crossings)}
        marks = {name: marks[name] for name in MARKS if name in marks}
        stages = stages_of(marks) if turn.stages else ()
        unheard = turn.onset_ns is not None and marks.get("line_up", 0) > marks["received"]
        ambiguous = (*turn.ambiguous, UNHEARD) if unheard else turn.ambiguous
        return replace(turn, marks=marks, stages=stages, ambiguous=ambiguous), figures


def line_marks(turn: TurnOnLine, crossings: Crossings) -> dict[str, int]:
    """Return the marks that a line adds to a turn; `received` is when the line took it in."""
    marks: dict[str, int] = {}
    up_ns = crossings.arrived_ns("up", turn.last_packet_ns)
    if up_ns is not None:
        marks["line_up"] = up_ns
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
    entered = [crossings.entered_ns("down", chunk.arrived_ns) for chunk in reply]
    times = [(at, chunk) for at, chunk in zip(entered, reply, strict=True) if at is not None]
    ends_ns = turn.ended_ns if not times else times[-1][1].arrived_ns
    lag_ns = None if not times else ends_ns - times[-1][0] - down.delay_ns
    up_ns = marks.get("line_up")
    up_lag_ns = None
    if up_ns is not None and (sent_ns := crossings.entered_ns("up", up_ns)) is not None:
        up_lag_ns = up_ns - sent_ns - up.delay_ns
    stalls = (*stalls_of("up", up, turn), *stalls_of("down", down, turn))
    ideal = played_from(times)
    return LineTurn(
        up_ms=None if up_ns is None else ns_to_ms(up_ns - turn.end_ns),
        down_ms=ns_to_ms(marks["line_down"] - marks["received"]) if "line_down" in marks else None,
        dry=dry_of(turn, times, ideal, heard),
        buffer_ms=None if not times else ns_to_ms(buffer_of(times, ideal)),
        lag_ms=None if lag_ns is None else ns_to_ms(max(0, lag_ns)),
        up_lag_ms=None if up_lag_ns is None else ns_to_ms(max(0, up_lag_ns)),
        backlog_bytes=max(backlog_of(each, turn) for each in (up, down)),
        stalls=tuple(sorted(stalls, key=lambda stall: stall.at_ms)),
    )


Times = Sequence[tuple[int, Chunk]]  # each chunk with the instant at which it entered the line


def _reply(turn: TurnOnLine, chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    """Return the chunks of a reply, from the one that holds its first word."""
    if turn.received_ns is None or not turn.parts_ns:
        return ()
    ends_ns = turn.parts_ns[-1][1] or turn.ended_ns
    first = bisect_left(chunks, turn.received_ns, key=lambda chunk: chunk.arrived_ns)
    last = bisect_right(chunks, ends_ns, key=lambda chunk: chunk.arrived_ns)
    return chunks[first:last]


def played_from(times: Times) -> list[int]:
    """Return when each chunk would play if the line took no time: an agent's pauses stay."""
    ideal: list[int] = []
    free_ns = 0
    for entered_ns, chunk in times:
        ideal.append(max(entered_ns, free_ns))
        free_ns = ideal[-1] + chunk.length_ns
    return ideal


def buffer_of(times: Times, ideal: Sequence[int]) -> int:
    """Return the least delay of the playout behind which no chunk would come too late, in ns."""
    late = [chunk.arrived_ns - at for (_, chunk), at in zip(times, ideal, strict=True)]
    return max(late) - late[0]


def dry_of(
    turn: TurnOnLine, times: Times, ideal: Sequence[int], heard: Sequence[Heard]
) -> tuple[DryRecord, ...]:
    """Find the holes that the line made in a reply; the agent's own pauses are none."""
    if not times or not turn.parts_ns:
        return ()
    onset_ns, found = turn.parts_ns[0][0], list[DryRecord]()
    free_ns, ideal_free_ns = times[0][1].arrived_ns, ideal[0]
    loudest = max((rms_dbfs(piece.pcm) for piece in heard if len(piece.pcm)), default=0.0)
    for (_, chunk), at_ns in zip(times, ideal, strict=True):
        dry_ns = chunk.arrived_ns - free_ns - (at_ns - ideal_free_ns)
        if dry_ns >= ms_to_ns(DRY_MS) and free_ns > onset_ns:
            before = _piece(heard, free_ns - ms_to_ns(EDGE_MS))
            after = _piece(heard, chunk.arrived_ns)
            found.append(
                DryRecord(
                    at_ms=ns_to_ms(free_ns - onset_ns),
                    ms=ns_to_ms(dry_ns),
                    in_word=min(map(rms_dbfs, (before, after))) > loudest - SOFTER_DB,
                )
            )
        free_ns = max(free_ns, chunk.arrived_ns) + chunk.length_ns
        ideal_free_ns = at_ns + chunk.length_ns
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
