"""A line at work: one connection's two legs on a clock, and what has crossed it."""

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import Literal

from turngap.caller.line.leg import Leg
from turngap.caller.line.spec import LineSpec, Way
from turngap.clocks import pace, unhurried
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns

WayName = Literal["up", "down"]
OnPiece = Callable[[int, bytes], None]

# What an end takes beyond TCP's window before a write has to wait: an agent's kernel 64 KB. The
# person goes on speaking, whatever the line does, so a client keeps half a minute of it.
AGENT_BUFFER, CALLER_BUFFER = 2**16, 2**20
# A call of some hours; of a longer one, what crossed first is dropped.
MOST_CROSSINGS = 2**20
# What comes out less than this late has not stalled.
STALL_MS = 100.0
MOST_STALLS = 10_000
NO_FAULTS, NO_LINE = Way(), LineSpec("")


class LineEndedError(ConnectionResetError):
    """A line that ended by itself; the text says why, for the user."""


class Crossing:
    """The bytes that crossed one way, in the order of the stream.

    Bytes that entered together are one entry, such as a message. Each that has come out whole has
    an item in each of the arrays.

    Attributes:
        entered_ns, arrived_ns: when each entered, and when its last byte came out. No two came
            out at the same instant: of those that a stall released together, each has a
            nanosecond of its own.
        ends: the bytes up to the end of each, counted from the start of the connection.
        waiting: those that have not come out whole: when each entered, and its bytes left.
        most_waiting: the most bytes that were in it at once.
        delay_ns: the time that every byte takes.
        stalls: when each began and ended: times of `STALL_MS` and more in which nothing came out
            although something had been in it for longer than its delay and jitter.
    """

    def __init__(
        self, way: Way = NO_FAULTS, most: int = MOST_CROSSINGS, *, packets: bool = False
    ) -> None:
        self.delay_ns = ms_to_ns(way.delay_ms)
        self._due_after_ns = self.delay_ns + ms_to_ns(way.jitter_ms)
        self.stalls: deque[tuple[int, int]] = deque(maxlen=MOST_STALLS)
        self.entered_ns, self.arrived_ns = array("q"), array("q")
        self.ends = array("q")
        self.waiting: deque[tuple[int, int, bytes]] = deque()
        self.most_waiting = 0
        self.bytes = self.bytes_waiting = 0
        self._most, self._packets = most, packets
        self._last_entered_ns = self._last_ns = 0

    def enter(self, at_ns: int, data: bytes) -> int:
        """Note bytes that enter; return the instant, which is never before the last one's."""
        at_ns = self._last_entered_ns = max(at_ns, self._last_entered_ns)
        self.waiting.append((at_ns, len(data), data if self._packets else b""))
        self.bytes_waiting += len(data)
        self.most_waiting = max(self.most_waiting, self.bytes_waiting)
        return at_ns

    def leave(self, at_ns: int, data: bytes) -> list[tuple[int, bytes]]:
        """Note bytes that come out; return them cut into the entries that they were."""
        pieces: list[tuple[int, bytes]] = []
        if not data:
            pieces.append((max(at_ns, self._last_ns + 1), b""))
        while data and self.waiting:
            entered_ns, left, packet = self.waiting.popleft()
            if self._packets and packet is not data:  # it was lost
                self.bytes_waiting -= left
                continue
            self._find_stall(entered_ns, at_ns)
            piece, data = (data, b"") if self._packets else (data[:left], data[left:])
            self._last_ns = max(at_ns, self._last_ns + 1)
            self.bytes += len(piece)
            self.bytes_waiting -= len(piece)
            if len(piece) < left:
                self.waiting.appendleft((entered_ns, left - len(piece), packet))
            else:
                self._note(entered_ns)
            pieces.append((self._last_ns, piece))
        return pieces

    def _find_stall(self, entered_ns: int, at_ns: int) -> None:
        begun_ns = max(self._last_ns, entered_ns + self._due_after_ns)
        if at_ns - begun_ns >= ms_to_ns(STALL_MS):
            self.stalls.append((begun_ns, at_ns))

    def unfinished_stall(self, until_ns: int) -> tuple[int, int] | None:
        """Return the stall that lasts at an instant; None if nothing is due for so long."""
        if not self.waiting:
            return None
        begun_ns = max(self._last_ns, self.waiting[0][0] + self._due_after_ns)
        return (begun_ns, until_ns) if until_ns - begun_ns >= ms_to_ns(STALL_MS) else None

    def _note(self, entered_ns: int) -> None:
        self.entered_ns.append(entered_ns)
        self.arrived_ns.append(self._last_ns)
        self.ends.append(self.bytes)
        if len(self.ends) > self._most:
            for each in (self.entered_ns, self.arrived_ns, self.ends):
                del each[: len(each) - self._most // 2]

    def backlog(self, at_ns: int) -> int:
        """Count the bytes that had entered by an instant and had not come out."""
        ends = self.ends
        entered, arrived = (
            bisect_right(self.entered_ns, at_ns),
            bisect_right(self.arrived_ns, at_ns),
        )
        inside = (ends[entered - 1] if entered else 0) - (ends[arrived - 1] if arrived else 0)
        return max(inside, 0) + sum(left for at, left, _ in self.waiting if at <= at_ns)


class Crossings:
    """The bytes that crossed a line, both ways.

    Attributes:
        both_ms: the delays of both ways together.
        alive_ns: when a packet of any kind last reached the caller.
        half_open_ns: when the line became half-open; None if it has not.
        agent_left_ns: when the agent was seen to close or reset its socket after that. It is
            looked for up to `WATCH_S` of `turngap.caller.line.transport`, which the end of a call
            waits for. Audio that the agent has sent and that nobody reads may hide its leaving
            until the caller has noticed by itself.
    """

    def __init__(
        self, spec: LineSpec = NO_LINE, most: int = MOST_CROSSINGS, *, packets: bool = False
    ) -> None:
        self.both_ms = spec.both_ms
        ways = (spec.up, spec.down)
        self.up, self.down = (Crossing(way, most, packets=packets) for way in ways)
        self.alive_ns = 0
        self.half_open_ns: int | None = None
        self.agent_left_ns: int | None = None

    def entered_ns(self, way: WayName, arrived_ns: int) -> int | None:
        """Return when what came out at an instant had entered; None if nothing came out then."""
        crossing = getattr(self, way)
        at = bisect_left(crossing.arrived_ns, arrived_ns)
        if at < len(crossing.arrived_ns):
            return crossing.entered_ns[at]
        entered_ns = crossing.waiting[0][0] if crossing.waiting else None  # a part of it came out
        return entered_ns if entered_ns is not None and entered_ns <= arrived_ns else None

    def arrived_ns(self, way: WayName, entered_ns: int) -> int | None:
        """Return when what entered at an instant, or next after it, came out whole; else None."""
        crossing = getattr(self, way)
        at = bisect_left(crossing.entered_ns, entered_ns)
        return crossing.arrived_ns[at] if at < len(crossing.arrived_ns) else None


def _ignore() -> None:
    pass


class RunningLine:
    """One connection's line on a clock; it begins now.

    What comes out is passed on with the leg's own instant, which does not depend on how late the
    event loop is, in the pieces that entered. An empty piece is the end of the stream. Nothing is
    passed on from within `send_up` and the like.

    Args:
        on_up, on_down: receive what comes out at the agent's end and at the caller's.
        on_change: is called when room may have changed.
        on_half_open: is called once from when on nothing comes out any more.
        on_reset: is called when the line breaks; it is closed by then.
        packets: carry packets, which may be lost, and no stream.
        most: how many crossings are kept.
    """

    def __init__(
        self,
        spec: LineSpec,
        call: str,
        clock: Clock,
        on_up: OnPiece,
        on_down: OnPiece,
        *,
        on_change: Callable[[], None] = _ignore,
        on_half_open: Callable[[], None] = _ignore,
        on_reset: Callable[[], None] = _ignore,
        packets: bool = False,
        most: int = MOST_CROSSINGS,
    ) -> None:
        self._clock = unhurried(clock)
        begins_ns = clock.now_ns()
        make = spec.packet_legs if packets else spec.legs
        self.up, self.down = make(call, begins_ns)
        self.crossings = Crossings(spec, most, packets=packets)
        self._ways: tuple[tuple[Leg, Crossing, OnPiece], ...] = (
            (self.up, self.crossings.up, on_up),
            (self.down, self.crossings.down, on_down),
        )
        self._on_change, self._on_half_open, self._on_reset = on_change, on_half_open, on_reset
        self._half_open_ns = _after(begins_ns, spec.half_open_s)
        self._reset_ns = _after(begins_ns, spec.reset_s)
        self._task: asyncio.Task[None] | None = None
        self._due_ns = 0
        self._moving = self.closed = False
        self._arm()

    @property
    def is_half_open(self) -> bool:
        return self.crossings.half_open_ns is not None

    @property
    def unsent(self) -> int:
        """Return the bytes that a writer at the caller's end has to keep itself."""
        return max(0, -self.up.room - CALLER_BUFFER)

    def send_up(self, at_ns: int, data: bytes) -> None:
        """Take bytes that enter at the caller's end."""
        self._send(self.up, self.crossings.up, at_ns, data)

    def send_down(self, at_ns: int, data: bytes) -> None:
        """Take bytes that enter at the agent's end."""
        self._send(self.down, self.crossings.down, at_ns, data)

    def _send(self, leg: Leg, crossing: Crossing, at_ns: int, data: bytes) -> None:
        if data and not self.closed:
            leg.send(crossing.enter(at_ns, data), data)
            self._arm()

    def finish_up(self, at_ns: int) -> None:
        """End the stream from the caller."""
        self._finish(self.up, at_ns)

    def finish_down(self, at_ns: int) -> None:
        """End the stream from the agent."""
        self._finish(self.down, at_ns)

    def _finish(self, leg: Leg, at_ns: int) -> None:
        if not self.closed:
            leg.finish(at_ns)
            self._arm()

    def close(self) -> None:
        """Stop at once: what is in the line never comes out, and no task is left."""
        self.closed = True
        if self._task is not None and not self._moving:
            self._task.cancel()
        self._task = None

    def _next_ns(self) -> int | None:
        legs = () if self.is_half_open else (self.up.next_ns, self.down.next_ns)
        instants = (*legs, self._half_open_ns, self._reset_ns)
        return min((each for each in instants if each is not None), default=None)

    def _arm(self) -> None:
        """Sleep until something happens, unless that is what the task does."""
        due_ns = None if self.closed or self._moving else self._next_ns()
        if due_ns is None:
            return
        if self._task is not None and not self._task.done():
            if self._due_ns <= due_ns:
                return
            self._task.cancel()
        self._due_ns = due_ns
        self._task = asyncio.create_task(pace(self._clock, due_ns, self._beat), name="turngap-line")

    def _beat(self) -> int | None:
        if self.closed:
            return None
        self._moving = True
        try:
            self._move(self._clock.now_ns())
        finally:
            self._moving = False
        due_ns = None if self.closed else self._next_ns()
        self._due_ns = due_ns or 0
        if due_ns is None:
            self._task = None
        return due_ns

    def _move(self, now_ns: int) -> None:
        """Pass on what has come out by now."""
        if self._reset_ns is not None and self._reset_ns <= now_ns:
            self.closed = True
            self._on_reset()
            return
        ends_ns = self._half_open_ns if self._half_open_ns is not None else now_ns + 1
        for leg, crossing, on_piece in self._ways:
            for at_ns, data in leg.receive(now_ns):
                if at_ns >= ends_ns or self.is_half_open:
                    break
                for piece in crossing.leave(at_ns, data):
                    if self.closed:
                        return
                    on_piece(*piece)
        self.crossings.alive_ns = max(self.down.heard_ns, self.up.answered_ns)
        if ends_ns <= now_ns:
            self.crossings.half_open_ns, self._half_open_ns = ends_ns, None
            self._on_half_open()
        if not self.closed:
            self._on_change()


def _after(begins_ns: int, seconds: float | None) -> int | None:
    return None if seconds is None else begins_ns + round(seconds * NS_PER_S)
