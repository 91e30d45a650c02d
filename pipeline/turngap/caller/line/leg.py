"""One direction of a connection over a faulty path, without I/O: bytes in, bytes out later.

`TcpLeg` is a model of Linux's TCP (RFC 9293) for streams of small writes: RACK-TLP (RFC 8985),
retransmission timeouts (RFC 6298, 5682), and CUBIC's window (RFC 9438, 6937). Left out, because
voice does not meet them: receive windows, delayed acknowledgements, and a queue that data and
acknowledgements share.
"""

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import Literal, Protocol

from turngap.caller.line.faults import Coalescing, Fault
from turngap.core.clock import NS_PER_S, ms_to_ns

# Payload and headers of a segment on Ethernet: IPv4, TCP and its timestamps.
MSS, HEADERS = 1448, 52
# Linux's: the first window, the least timer, and the least timeout above the round trip.
FIRST_WINDOW = 10
_LEAST_TIMER_NS = ms_to_ns(2)
_LEAST_VARIANCE_NS = ms_to_ns(200)
_LONGEST_RTO_NS = ms_to_ns(120_000)
# CUBIC (RFC 9438): what is kept of the window after a loss, and of its goal after two in a row; how
# it grows with time cubed, in s; and how much at least for each window that arrives.
_KEPT, _KEPT_GOAL, _CUBIC, _FAIR = 0.7, 0.85, 0.4, 8 / 15
_DUPLICATES = 3

Pieces = list[tuple[int, bytes]]


class Leg(Protocol):
    """One direction of one connection. Instants never go back.

    Attributes:
        waiting: how many bytes are in it.
        room: how many bytes the sender's window takes at once; where it is 0 or less, whoever
            writes should wait, as at a full socket.
        heard_ns: when its receiver last had a packet, in order or not; `answered_ns`: when its
            sender last had an acknowledgement.
    """

    heard_ns: int
    answered_ns: int

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
        self.waiting = self.heard_ns = self.answered_ns = 0

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
        back: the way of the acknowledgements.
        rtt_ns: the round trip that the opening handshake measured.
        later_ns: a delay of the stream behind the receiver, such as a relay's second connection.
        coalescing: a hop behind that.
    """

    def __init__(
        self,
        path: Fault,
        *,
        back: Fault,
        rtt_ns: int,
        later_ns: int = 0,
        coalescing: Coalescing | None = None,
    ) -> None:
        self._path, self._back, self._later_ns = path, back, later_ns
        self._coalescing = coalescing
        self._now_ns = 0
        self.waiting = self.heard_ns = self.answered_ns = 0
        # What is under way, by instant: a copy of a segment sent then, on its way or acknowledged.
        self._arrivals: deque[tuple[int, _Segment, int]] = deque()
        self._acks: deque[tuple[int, int, int, _Segment, int]] = deque()
        self._out: deque[tuple[int, bytes]] = deque()
        # The sender.
        self._unsent: deque[bytearray] = deque()
        self._unsent_bytes = 0
        self._flight: deque[_Segment] = deque()  # in order, from the first not acknowledged
        self._next = 0  # the place of the next new byte
        self._full_to = 0  # the place of the last byte in flight when the window was full
        self._fin: int | None = None
        self._window, self._threshold = float(FIRST_WINDOW), inf
        self._srtt_ns, self._variance_ns, self._least_rtt_ns = rtt_ns, rtt_ns // 2, rtt_ns
        self._goal, self._goal_s, self._fair = 0, 0.0, 0.0
        self._grows_from_ns: int | None = None
        self._backoff = 1
        self._repairs_to: int | None = None  # a loss is being repaired, up to this place
        self._before_timeout = self._window, self._threshold
        self._repair_arrived = self._repair_sent = self._window_before = 0
        self._timed_out = self._probed = self._tries_new = self._holds_lost = False
        self._newest = (-1, 0)  # when the last sent of the arrived was sent, and its end
        self._newest_rtt_ns = rtt_ns
        self._timer: tuple[int, _Timer] | None = None
        self._reorder_ns: int | None = None
        self._rto_from_ns = self._probe_from_ns = self._last_sent_ns = 0
        # The receiver.
        self._got = self._arrivals_count = 0
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
                ack = self._acks.popleft()
                self._now_ns = ack[0]
                self._acknowledge(*ack)
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

    @property
    def _flying(self) -> int:
        return sum(not (s.sacked or s.lost) for s in self._flight)

    def _transmit(self, at_ns: int) -> None:
        """Send what the window allows: first what was lost, then what is new."""
        flying = self._flying
        lost = deque(s for s in self._flight if s.lost and not self._holds_lost)
        while flying < int(self._window):
            if lost:
                segment = lost.popleft()
                segment.lost = False
                place = self._flight.index(segment)
                while lost and lost[0].first == segment.end and lost[0].end - segment.first <= MSS:
                    segment = _Segment(segment.first, segment.data + lost.popleft().data, at_ns)
                    self._flight[place] = segment
                    del self._flight[place + 1]
            elif self._unsent:
                segment = self._new_segment(at_ns)
            else:
                break
            self._put(at_ns, segment)
            flying += 1
        if flying >= int(self._window):
            self._full_to = self._next
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
        segment.again = segment.sent_ns >= 0
        segment.sent_ns = self._last_sent_ns = at_ns
        self._repair_sent += 1
        arrives_ns = self._path.carry(at_ns, len(segment.data) + HEADERS)
        if arrives_ns is not None:
            self._arrivals.append((arrives_ns, segment, at_ns))

    def _acknowledge(
        self, at_ns: int, got: int, arrivals: int, segment: "_Segment", sent_ns: int
    ) -> None:
        """Take the acknowledgement of a segment, of all bytes before `got`, and all arrivals."""
        self.answered_ns = at_ns
        flight, flying = self._flight, self._flying
        is_full = bool(flight) and flight[0].first < self._full_to
        news: list[_Segment] = []
        while flight and flight[0].end <= got:
            news.append(flight.popleft())
        if is_new := bool(news):
            self._rto_from_ns = self._probe_from_ns = at_ns
            self._backoff, self._probed = 1, False
        news += [s for s in flight if s.arrival <= arrivals]
        arrived = sum(not s.sacked for s in news)
        originals = [s for s in news if not (s.sacked or s.again)]
        for each in news:
            each.sacked, each.lost = True, False
        self._note_round_trip(at_ns - sent_ns)
        if (sent_ns, segment.end) > self._newest:
            self._newest, self._newest_rtt_ns = (sent_ns, segment.end), at_ns - sent_ns
        if self._timed_out:
            self._try_new(is_new, originals)
        if self._repairs_to is not None and got >= self._repairs_to:
            if not self._timed_out:
                self._window = self._threshold
            self._repairs_to, self._timed_out, self._holds_lost = None, False, False
        if is_new and (self._repairs_to is None or self._timed_out):
            self._open_window(at_ns, arrived, flying, is_full=is_full)
        has_losses = self._find_losses(at_ns)
        self._repair(arrived, more=is_new and not has_losses)
        self._transmit(at_ns)

    def _try_new(self, is_new: bool, originals: "list[_Segment]") -> None:
        """Find whether a timeout was in vain, before all is sent again (F-RTO, RFC 5682)."""
        if not (self._tries_new or self._holds_lost) or self._repairs_to is None:
            return
        if any(segment.end <= self._repairs_to for segment in originals):
            # What was not sent again has arrived: acknowledgements were late or lost.
            self._window, self._threshold = self._before_timeout
            self._repairs_to, self._timed_out = None, False
            self._tries_new = self._holds_lost = False
            for segment in self._flight:
                segment.lost = False
        elif self._holds_lost:
            self._holds_lost = is_new
        elif is_new and self._flight:
            self._repairs_to, self._tries_new = self._next, False
            self._holds_lost = bool(self._unsent)

    def _repair(self, arrived: int, *, more: bool) -> None:
        """Let the window shrink by what arrives meanwhile (RFC 6937), and one segment at once."""
        if self._repairs_to is None or self._timed_out or not arrived:
            return
        self._repair_arrived += arrived
        missing = self._threshold - (flying := self._flying)
        if missing < 0:
            allowed = -(-self._threshold * self._repair_arrived // self._window_before)
            allowed -= self._repair_sent
        else:
            allowed = max(self._repair_arrived - self._repair_sent, arrived)
            allowed = min(allowed + more, missing)
        self._window = flying + max(allowed, 0 if self._repair_sent else 1)

    def _note_round_trip(self, rtt_ns: int) -> None:
        self._least_rtt_ns = min(self._least_rtt_ns, rtt_ns)
        self._variance_ns += (abs(rtt_ns - self._srtt_ns) - self._variance_ns) // 4
        self._srtt_ns += (rtt_ns - self._srtt_ns) // 8

    def _open_window(self, at_ns: int, arrived: int, flying: int, *, is_full: bool) -> None:
        """Grow the window for segments that arrived, if it was what held the sender up."""
        window = int(self._window)
        if window < self._threshold:
            if window < 2 * flying:
                self._window += arrived
            return
        if not is_full:
            return
        if self._grows_from_ns is None:
            self._grows_from_ns, self._fair = at_ns, float(window)
            self._goal = max(self._goal, window)
            self._goal_s = ((self._goal - window) / _CUBIC) ** (1 / 3)
        self._fair += _FAIR * arrived / window
        since_s = (at_ns - self._grows_from_ns + self._least_rtt_ns) / NS_PER_S - self._goal_s
        target = max(self._goal + int(_CUBIC * since_s**3), int(self._fair))
        self._window += min(max((target - window) / window, 0), 0.5) * arrived

    def _cut_window(self) -> None:
        window = int(self._window)
        self._goal = int(window * (_KEPT_GOAL if window < self._goal else 1))
        self._grows_from_ns, self._threshold = None, max(int(window * _KEPT), 2)

    def _find_losses(self, at_ns: int) -> bool:
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
            self._window_before = int(self._window)
            self._cut_window()
            self._repairs_to, self._repair_arrived, self._repair_sent = self._next, 0, 0
        return found

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
            self._timer = min(self._timer, (self._reorder_ns + _LEAST_TIMER_NS, "reorder"))
        elif not self._probed and self._repairs_to is None:
            alone = len(self._flight) == 1  # its acknowledgement may be delayed
            wait_ns = 2 * self._srtt_ns + (_LEAST_VARIANCE_NS if alone else _LEAST_TIMER_NS)
            first_ns = self._flight[0].sent_ns + self._rto_ns()
            self._timer = (min(first_ns, self._probe_from_ns + wait_ns), "probe")
        self._timer = (max(self._timer[0], self._now_ns), self._timer[1])

    def _ring(self, at_ns: int, kind: "_Timer") -> None:
        if kind == "reorder":
            self._find_losses(at_ns)
            self._repair(1, more=False)
        elif kind == "probe":
            self._probed, self._rto_from_ns = True, at_ns
            self._put(at_ns, self._new_segment(at_ns) if self._unsent else self._flight[-1])
        else:
            for segment in self._flight:
                segment.lost = not segment.sacked
            is_new = self._repairs_to is None
            self._holds_lost, self._tries_new = False, is_new or self._backoff > 1
            if is_new or (self._timed_out and self._backoff == 1):
                self._before_timeout = self._window, self._threshold
                self._cut_window()
            self._goal, self._grows_from_ns = 0, None
            self._window, self._timed_out, self._repairs_to = 1.0, True, self._next
            self._backoff, self._rto_from_ns, self._reorder_ns = self._backoff * 2, at_ns, None
        self._transmit(at_ns)

    # The receiver.

    def _arrive(self, at_ns: int, segment: "_Segment", sent_ns: int) -> None:
        self.heard_ns = at_ns
        if segment.end > self._got:
            first = max(segment.first, self._got)
            self._early[first] = segment.data[first - segment.first :]
        while (data := self._early.pop(self._got, None)) is not None:
            self._got += len(data)
            self._pass_on(at_ns + self._later_ns, data)
        self._arrivals_count += 1
        segment.arrival = min(segment.arrival, self._arrivals_count)
        acked_ns = self._back.carry(at_ns, HEADERS)
        if acked_ns is not None:
            self._acks.append((acked_ns, self._got, self._arrivals_count, segment, sent_ns))

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
    sent_ns: int = -1
    arrival: float = inf  # its place among the arrivals
    sacked: bool = False
    lost: bool = False
    again: bool = False

    @property
    def end(self) -> int:
        return self.first + len(self.data)
