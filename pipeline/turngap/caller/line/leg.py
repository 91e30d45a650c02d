"""One direction of a connection over a faulty path, without I/O: bytes in, bytes out later.

`TcpLeg` is a model of Linux's TCP (RFC 9293) for streams of small writes: RACK-TLP (RFC 8985),
retransmission timeouts (RFC 6298) and a window that is cut by losses. Left out, because voice does
not meet them: receive windows, delayed acknowledgements, lost acknowledgements.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol

from turngap.caller.line.faults import Coalescing, Fault
from turngap.core.clock import NS_PER_MS, ms_to_ns

# Payload and headers of a segment on Ethernet: IPv4, TCP and its timestamps.
MSS, HEADERS = 1448, 52
# Linux's: the first window, and the least retransmission timeout above the round trip.
FIRST_WINDOW = 10
_LEAST_VARIANCE_NS = ms_to_ns(200)
_LONGEST_RTO_NS = ms_to_ns(120_000)
# What CUBIC keeps of its window after a loss.
_KEPT = 0.7
_DUPLICATES = 3

Pieces = list[tuple[int, bytes]]


class Leg(Protocol):
    """One direction of one connection. Instants never go back.

    Attributes:
        waiting: how many bytes are in it.
        room: how many bytes the sender's window takes at once; where it is 0 or less, whoever
            writes should wait, as at a full socket.
    """

    @property
    def waiting(self) -> int: ...

    @property
    def room(self) -> int: ...

    @property
    def next_ns(self) -> int | None:
        """Return when something happens next without further input; None if nothing does."""
        ...

    def send(self, at_ns: int, data: bytes) -> None:
        """Take bytes that enter at an instant."""
        ...

    def finish(self, at_ns: int) -> None:
        """End the stream: an empty piece comes out behind the last byte."""
        ...

    def receive(self, now_ns: int) -> Pieces:
        """Return what has come out since the last call, each piece with its own instant."""
        ...


class PacketLeg:
    """A leg of packets, as of a call over WebRTC: they keep their order, and may be lost."""

    room = 1 << 30

    def __init__(self, path: Fault) -> None:
        self._path = path
        self._way: deque[tuple[int, bytes]] = deque()
        self._last_ns = 0
        self.waiting = 0

    @property
    def next_ns(self) -> int | None:
        return self._way[0][0] if self._way else None

    def send(self, at_ns: int, data: bytes) -> None:
        arrives_ns = self._path.carry(at_ns, len(data) + HEADERS)
        if arrives_ns is not None:
            self._last_ns = max(self._last_ns, arrives_ns)
            self._way.append((self._last_ns, data))
            self.waiting += len(data)

    def finish(self, at_ns: int) -> None:
        self._way.append((max(at_ns, self._last_ns), b""))

    def receive(self, now_ns: int) -> Pieces:
        arrived: Pieces = []
        while self._way and self._way[0][0] <= now_ns:
            arrived.append(self._way.popleft())
            self.waiting -= len(arrived[-1][1])
        return arrived


# The end of a stream has a place in it, as a byte has.
_FIN = b"\0"


class TcpLeg:
    """A TCP sender and receiver with a path between them.

    Args:
        path: the way of the segments.
        back_ns: the way of an acknowledgement.
        rtt_ns: the round trip that the opening handshake measured.
        later_ns: a delay of the stream behind the receiver, such as a relay's second connection.
        coalescing: a hop behind that.
    """

    def __init__(
        self,
        path: Fault,
        *,
        back_ns: int,
        rtt_ns: int,
        later_ns: int = 0,
        coalescing: Coalescing | None = None,
    ) -> None:
        self._path, self._back_ns, self._later_ns = path, back_ns, later_ns
        self._coalescing = coalescing
        self._now_ns = 0
        self.waiting = 0
        # What is under way, by instant: a copy of a segment sent then, on its way or acknowledged.
        self._arrivals: deque[tuple[int, _Segment, int]] = deque()
        self._acks: deque[tuple[int, int, _Segment, int]] = deque()
        self._out: deque[tuple[int, bytes]] = deque()
        # The sender.
        self._unsent: deque[bytearray] = deque()
        self._unsent_bytes = 0
        self._flight: deque[_Segment] = deque()  # in order, from the first not acknowledged
        self._next = 0  # the place of the next new byte
        self._fin: int | None = None
        self._window, self._threshold = float(FIRST_WINDOW), inf
        self._srtt_ns, self._variance_ns, self._least_rtt_ns = rtt_ns, rtt_ns // 2, rtt_ns
        self._backoff = 1
        self._repairs_to: int | None = None  # a loss is being repaired, up to this place
        self._timed_out = self._probed = False
        self._newest = (-1, 0)  # when the last sent of the arrived was sent, and its end
        self._newest_rtt_ns = rtt_ns
        self._timer: tuple[int, _Timer] | None = None
        self._reorder_ns: int | None = None
        self._rto_from_ns = self._probe_from_ns = self._last_sent_ns = 0
        # The receiver.
        self._got = 0
        self._early: dict[int, bytes] = {}

    @property
    def room(self) -> int:
        flying = sum(len(s.data) for s in self._flight if not s.sacked)
        return int(self._window) * MSS - flying - self._unsent_bytes

    @property
    def next_ns(self) -> int | None:
        queues = (self._arrivals, self._acks, self._out)
        heads = [queue[0][0] for queue in queues if queue]
        return min([*heads, self._timer[0]] if self._timer else heads, default=None)

    def send(self, at_ns: int, data: bytes) -> None:
        at_ns = self._advance(at_ns)
        self.waiting += len(data)
        self._write(at_ns, data)

    def finish(self, at_ns: int) -> None:
        if self._fin is None:
            at_ns = self._advance(at_ns)
            self._fin = self._next + self._unsent_bytes
            self._write(at_ns, _FIN)

    def receive(self, now_ns: int) -> Pieces:
        self._advance(now_ns)
        arrived: Pieces = []
        while self._out and self._out[0][0] <= now_ns:
            arrived.append(self._out.popleft())
            self.waiting -= len(arrived[-1][1])
        return arrived

    def _advance(self, to_ns: int) -> int:
        """Do all that happens until an instant; return it, or the present if that is later."""
        while True:
            arrives_ns = self._arrivals[0][0] if self._arrivals else inf
            acked_ns = self._acks[0][0] if self._acks else inf
            rings_ns = self._timer[0] if self._timer else inf
            if min(arrives_ns, acked_ns, rings_ns) > to_ns:
                break
            if arrives_ns <= min(acked_ns, rings_ns):
                self._now_ns, segment, sent_ns = self._arrivals.popleft()
                self._arrive(self._now_ns, segment, sent_ns)
            elif acked_ns <= rings_ns:
                self._now_ns, got, segment, sent_ns = self._acks.popleft()
                self._acknowledge(self._now_ns, got, segment, sent_ns)
            elif self._timer is not None:
                self._now_ns, kind = self._timer
                self._ring(self._now_ns, kind)
        self._now_ns = max(self._now_ns, to_ns)
        return self._now_ns

    # The sender.

    def _write(self, at_ns: int, data: bytes) -> None:
        if not self._flight and at_ns - self._last_sent_ns > self._rto_ns():
            self._window = min(self._window, FIRST_WINDOW)
        self._unsent_bytes += len(data)
        while data:
            if not self._unsent or len(self._unsent[-1]) == MSS:
                self._unsent.append(bytearray())
            room = MSS - len(self._unsent[-1])
            self._unsent[-1] += data[:room]
            data = data[room:]
        self._transmit(at_ns)

    def _transmit(self, at_ns: int) -> None:
        """Send what the window allows: first what was lost, then what is new."""
        flying = sum(not (s.sacked or s.lost) for s in self._flight)
        lost = (s for s in self._flight if s.lost)
        while flying < int(self._window):
            if (segment := next(lost, None)) is not None:
                segment.lost = False
            elif self._unsent:
                segment = self._new_segment(at_ns)
            else:
                break
            self._put(at_ns, segment)
            flying += 1
        self._set_timer()

    def _new_segment(self, at_ns: int) -> "_Segment":
        data = bytes(self._unsent.popleft())
        segment = _Segment(self._next, data)
        self._next, self._unsent_bytes = segment.end, self._unsent_bytes - len(data)
        if not self._flight:
            self._rto_from_ns = at_ns
        self._probe_from_ns = at_ns
        self._flight.append(segment)
        return segment

    def _put(self, at_ns: int, segment: "_Segment") -> None:
        segment.sent_ns = self._last_sent_ns = at_ns
        arrives_ns = self._path.carry(at_ns, len(segment.data) + HEADERS)
        if arrives_ns is not None:
            self._arrivals.append((arrives_ns, segment, at_ns))

    def _acknowledge(self, at_ns: int, got: int, segment: "_Segment", sent_ns: int) -> None:
        """Take an acknowledgement: all bytes before `got` have arrived, and `segment`."""
        flight, flying = self._flight, sum(not (s.sacked or s.lost) for s in self._flight)
        arrived = 0
        while flight and flight[0].end <= got:
            arrived += not flight.popleft().sacked
            self._rto_from_ns = self._probe_from_ns = at_ns
            self._backoff, self._probed = 1, False
        if segment.first >= got and not segment.sacked:
            segment.sacked, segment.lost = True, False
            arrived += 1
        self._note_round_trip(at_ns - sent_ns)
        if (sent_ns, segment.end) > self._newest:
            self._newest, self._newest_rtt_ns = (sent_ns, segment.end), at_ns - sent_ns
        if self._repairs_to is not None and got >= self._repairs_to:
            self._repairs_to, self._timed_out = None, False
        if self._repairs_to is None or self._timed_out:
            self._open_window(arrived, is_used=flying >= int(self._window))
        self._find_losses(at_ns)
        self._transmit(at_ns)

    def _note_round_trip(self, rtt_ns: int) -> None:
        self._least_rtt_ns = min(self._least_rtt_ns, rtt_ns)
        self._variance_ns += (abs(rtt_ns - self._srtt_ns) - self._variance_ns) // 4
        self._srtt_ns += (rtt_ns - self._srtt_ns) // 8

    def _open_window(self, arrived: int, *, is_used: bool) -> None:
        """Grow the window for segments that arrived, if it was what held the sender up."""
        if not (is_used or self._unsent or self._timed_out):
            return
        if self._window < self._threshold:
            self._window += arrived
        else:
            self._window += arrived / self._window

    def _find_losses(self, at_ns: int) -> None:
        """Take for lost what was sent before something that has arrived, by RACK's time."""
        sacked = sum(s.sacked for s in self._flight)
        sure = sacked >= _DUPLICATES or self._repairs_to is not None
        late_ns = self._newest_rtt_ns + (0 if sure else self._least_rtt_ns // 4)
        found, self._reorder_ns = False, None
        for segment in self._flight:
            if segment.sacked or segment.lost or (segment.sent_ns, segment.end) >= self._newest:
                continue
            if (due_ns := segment.sent_ns + late_ns) <= at_ns:
                segment.lost = found = True
            else:
                self._reorder_ns = min(due_ns, self._reorder_ns or due_ns)
        if found and self._repairs_to is None:
            self._threshold = self._window = max(self._window * _KEPT, 2)
            self._repairs_to = self._next

    def _rto_ns(self) -> int:
        rto_ns = self._srtt_ns + max(_LEAST_VARIANCE_NS, 4 * self._variance_ns)
        return min(rto_ns * self._backoff, _LONGEST_RTO_NS)

    def _set_timer(self) -> None:
        if not self._flight:
            self._timer = None
            return
        rto_ns = self._rto_from_ns + self._rto_ns()
        self._timer = (rto_ns, "timeout")
        if self._reorder_ns is not None:
            self._timer = min(self._timer, (self._reorder_ns, "reorder"))
        elif not self._probed and self._repairs_to is None:
            alone = len(self._flight) == 1  # its acknowledgement may be delayed
            wait_ns = 2 * self._srtt_ns + (_LEAST_VARIANCE_NS if alone else 2 * NS_PER_MS)
            self._timer = (min(rto_ns, self._probe_from_ns + wait_ns), "probe")
        self._timer = (max(self._timer[0], self._now_ns), self._timer[1])

    def _ring(self, at_ns: int, kind: "_Timer") -> None:
        if kind == "reorder":
            self._find_losses(at_ns)
        elif kind == "probe":
            self._probed, self._rto_from_ns = True, at_ns
            self._put(at_ns, self._new_segment(at_ns) if self._unsent else self._flight[-1])
        else:
            for segment in self._flight:
                segment.lost = not segment.sacked
            if not self._timed_out:
                self._threshold = max(self._window * _KEPT, 2)
            self._window, self._timed_out, self._repairs_to = 1.0, True, self._next
            self._backoff, self._rto_from_ns, self._reorder_ns = self._backoff * 2, at_ns, None
        self._transmit(at_ns)

    # The receiver.

    def _arrive(self, at_ns: int, segment: "_Segment", sent_ns: int) -> None:
        if segment.first >= self._got:
            self._early[segment.first] = segment.data
        while (data := self._early.pop(self._got, None)) is not None:
            self._got += len(data)
            self._pass_on(at_ns + self._later_ns, data)
        self._acks.append((at_ns + self._back_ns, self._got, segment, sent_ns))

    def _pass_on(self, at_ns: int, data: bytes) -> None:
        if self._coalescing is not None:
            at_ns = self._coalescing.hold(at_ns)
        is_last = self._fin is not None and self._got > self._fin
        if data := data[:-1] if is_last else data:
            self._out.append((at_ns, data))
        if is_last:
            self._out.append((at_ns, b""))


_Timer = Literal["timeout", "probe", "reorder"]


@dataclass(slots=True, eq=False)
class _Segment:
    """Bytes in flight, from the place `first` on; `sent_ns` is when they were sent last."""

    first: int
    data: bytes
    sent_ns: int = 0
    sacked: bool = False
    lost: bool = False

    @property
    def end(self) -> int:
        return self.first + len(self.data)
