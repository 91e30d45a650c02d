"""RTP streams of audio: packets by their arrival, in order, with every loss counted."""

import struct
from collections import Counter, deque
from dataclasses import dataclass
from typing import Self

from turngap.core.clock import ms_to_ns, samples_to_ns

# Opus runs RTP's clock at this rate, whatever is coded (RFC 7587).
RATE = 48_000
FRAME_MS = 20
FRAME = RATE * FRAME_MS // 1000

# A packet that is missing this long after the next one came is lost. Buffers of the field keep 40
# to 80 ms.
REORDER_NS = ms_to_ns(60)
# A jump of the timestamps over lost packets that is longer is no measure of the loss.
LONGEST_LOSS = 10 * RATE
# Numbers further from the one that is due are of a stream that has begun anew (RFC 3550, A.1).
MOST_LATE, MOST_AHEAD = 100, 3000
# Another source is heard once the first has been silent for this long.
SOURCE_NS = ms_to_ns(1000)
# The fastest packet of this time sets when each sample would have sounded without jitter.
FASTEST_NS = ms_to_ns(2000)
# A packet this late is no jitter: the stream had stopped. What then comes at once is played in its
# order, this much faster than it was spoken, as clients do to catch up.
STALL_NS = ms_to_ns(200)
CATCH_UP = 1.25
# A payload this short is Opus's discontinuous transmission: comfort noise in place of sound.
DTX_BYTES = 2

_HEADER = struct.Struct("!BBHII")


class Datagram(bytes):
    """A datagram with the instant of its arrival, ns of the caller's clock.

    Attributes:
        is_stamped: whether the instant is the kernel's, and not that of reading.
    """

    arrived_ns: int = 0
    is_stamped: bool = True

    @classmethod
    def at(cls, data: bytes, arrived_ns: int) -> Self:
        """Make a datagram that arrived at this instant."""
        made = cls(data)
        made.arrived_ns = arrived_ns
        return made


@dataclass(frozen=True, slots=True)
class RtpPacket:
    """An RTP packet (RFC 3550) without its contributing sources and header extensions."""

    payload_type: int
    sequence: int
    timestamp: int
    ssrc: int
    payload: bytes
    marker: bool = False

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read a packet.

        Raises:
            ValueError: it is no RTP, or is cut short.
        """
        if len(data) < _HEADER.size or data[0] >> 6 != 2:
            raise ValueError(f"{len(data)} bytes that are no RTP packet")
        first, second, sequence, timestamp, ssrc = _HEADER.unpack_from(data)
        at = _HEADER.size + 4 * (first & 0x0F)
        if first & 0x10:
            if len(data) < at + 4:
                raise ValueError("an RTP packet that ends in its header")
            at += 4 + 4 * int.from_bytes(data[at + 2 : at + 4])
        end = len(data) - (data[-1] if first & 0x20 else 0)
        if at > end:
            raise ValueError("an RTP packet that ends in its header")
        return cls(
            second & 0x7F, sequence, timestamp, ssrc, bytes(data[at:end]), bool(second & 0x80)
        )

    def pack(self) -> bytes:
        """Write the packet."""
        second = self.payload_type | (0x80 if self.marker else 0)
        header = _HEADER.pack(0x80, second, self.sequence, self.timestamp, self.ssrc)
        return header + self.payload


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the stream, in its order.

    Attributes:
        payload: the coded audio; None if its packets were lost.
        samples: its length, at `RATE`.
        arrived_ns: the arrival of its packet; of lost ones, as if it had ended with the arrival of
            the packet after them. Of what comes at once after the stream had stopped, when it can
            be played.
        jitter_ns: how much later it came than the fastest packet of the last two seconds would
            have; None while a backlog is played.
        goes_on: it follows the piece before it without a hole in the stream.
    """

    payload: bytes | None
    samples: int
    arrived_ns: int
    jitter_ns: int | None
    goes_on: bool


@dataclass(frozen=True, slots=True)
class _Waiting:
    sequence: int
    timestamp: int
    payload: bytes
    arrived_ns: int


class RtpReader:
    """Puts the packets of one stream in order; a missing one is awaited for `REORDER_NS`.

    Attributes:
        counts: what happened to packets: `lost`, `late` (after they were given up), `reordered`,
            `repeated`, of `another source`, `stalled` (the stream had stopped), `restarted` and
            `comfort noise`.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._source: int | None = None
        self._source_ns = 0  # its last arrival
        self._begin(0, 0)

    def _begin(self, sequence: int, timestamp: int) -> None:
        """Begin a stream with the packet of this number."""
        self._waiting: dict[int, _Waiting] = {}
        self._next = self._newest = sequence  # the number that is due, unwrapped
        self._clock = timestamp  # the timestamp that is due, unwrapped
        self._frame = FRAME  # samples of the packet before
        self._ended = True  # a stretch without sound has begun
        self._restart = -1  # the number after one that is far from all others
        # Arrival less timestamp of the latest packets, ever smaller ones first.
        self._delays: deque[tuple[int, int]] = deque()
        self._busy_ns: int | None = None  # until when a backlog is played

    def read(self, packet: RtpPacket, arrived_ns: int) -> list[Piece]:
        """Take a packet; return what is next in the stream, in order."""
        if packet.ssrc != self._source:
            if self._source is not None and arrived_ns - self._source_ns < SOURCE_NS:
                self.counts["another source"] += 1
                return []
            self._source = packet.ssrc
            self._begin(packet.sequence, packet.timestamp)
        self._source_ns = arrived_ns
        sequence = _unwrapped(packet.sequence, self._next, 16)
        if not -MOST_LATE <= sequence - self._next <= MOST_AHEAD:  # RFC 3550, A.1
            if packet.sequence != self._restart:
                self._restart = packet.sequence + 1 & 0xFFFF
                return []
            self.counts["restarted"] += 1
            self._begin(packet.sequence, packet.timestamp)
            sequence = packet.sequence
        timestamp = _unwrapped(packet.timestamp, self._clock, 32)
        if sequence in self._waiting or sequence == self._next - 1:
            self.counts["repeated"] += 1
            return []
        if sequence < self._next:
            self.counts["late"] += 1
            return []
        if sequence < self._newest:
            self.counts["reordered"] += 1
        self._newest = max(self._newest, sequence)
        self._waiting[sequence] = _Waiting(sequence, timestamp, packet.payload, arrived_ns)
        return self._in_order(arrived_ns)

    def _in_order(self, now_ns: int) -> list[Piece]:
        pieces: list[Piece] = []
        while self._waiting:
            first = min(self._waiting)
            packet = self._waiting[first]
            missing = first - self._next
            if missing and now_ns - min(w.arrived_ns for w in self._waiting.values()) < REORDER_NS:
                break
            del self._waiting[first]
            pieces += self._pieces(packet, missing)
            self._next = first + 1
        return pieces

    def _pieces(self, packet: _Waiting, missing: int) -> list[Piece]:
        if missing:
            self.counts["lost"] += missing
        if not packet.payload:  # of another payload type: it has a number and no sound
            return []
        arrived_ns, jitter_ns = self._placed(packet)
        gap = packet.timestamp - self._clock
        goes_on = not self._ended and gap == 0
        pieces: list[Piece] = []
        if missing:
            # How much sound was lost is known by the clock, or else by how many packets were.
            known = not self._ended and 0 < gap <= LONGEST_LOSS
            lost = gap if known else missing * self._frame
            began_ns = arrived_ns - samples_to_ns(lost, RATE)
            pieces.append(Piece(None, lost, began_ns, jitter_ns, known))
            goes_on = True
        samples = opus_samples(packet.payload)
        self._clock, self._frame = packet.timestamp + samples, samples or self._frame
        self._ended = len(packet.payload) <= DTX_BYTES
        if self._ended:
            self.counts["comfort noise"] += 1
            return pieces
        pieces.append(Piece(packet.payload, samples, arrived_ns, jitter_ns, goes_on))
        return pieces

    def _placed(self, packet: _Waiting) -> tuple[int, int | None]:
        """Return when a packet sounds without a buffer, and how late it came; None in a backlog."""
        jitter_ns = self._jitter_ns(packet)
        if jitter_ns > STALL_NS:
            self.counts["stalled"] += 1
            self._delays.clear()
            self._jitter_ns(packet)
            self._ended, self._busy_ns = True, packet.arrived_ns
        if self._busy_ns is None:
            return packet.arrived_ns, jitter_ns
        if packet.arrived_ns > self._busy_ns:  # it has caught up
            self._busy_ns = None
            return packet.arrived_ns, jitter_ns
        length_ns = samples_to_ns(opus_samples(packet.payload), RATE)
        begins_ns, self._busy_ns = self._busy_ns, self._busy_ns + int(length_ns / CATCH_UP)
        return begins_ns, None

    def _jitter_ns(self, packet: _Waiting) -> int:
        delay_ns = packet.arrived_ns - samples_to_ns(packet.timestamp, RATE)
        while self._delays and self._delays[-1][1] >= delay_ns:
            self._delays.pop()
        self._delays.append((packet.arrived_ns, delay_ns))
        while self._delays[0][0] < packet.arrived_ns - FASTEST_NS:
            self._delays.popleft()
        return delay_ns - self._delays[0][1]


def opus_samples(payload: bytes) -> int:
    """Return the length of an Opus packet, in samples at `RATE` (RFC 6716, section 3.1).

    Empty and malformed packets have none.
    """
    if not payload:
        return 0
    config, code = payload[0] >> 3, payload[0] & 3
    if config < 12:  # SILK
        frame_ms = (10, 20, 40, 60)[config % 4]
    elif config < 16:  # hybrid
        frame_ms = (10, 20)[config % 2]
    else:  # CELT
        frame_ms = (2.5, 5, 10, 20)[config % 4]
    frames = 1 if code == 0 else 2 if code < 3 else (payload[1] & 0x3F if len(payload) > 1 else 0)
    return round(frames * frame_ms * RATE / 1000)


def _unwrapped(value: int, near: int, bits: int) -> int:
    """Return the number nearest to `near` whose last bits are `value`."""
    size = 1 << bits
    return near + (value - near + size // 2) % size - size // 2
