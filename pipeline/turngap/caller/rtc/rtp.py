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
# A longer jump of the timestamps is a new stretch of sound: nothing between was ever sent.
LONGEST_LOSS = RATE
# The fastest packet of this time sets when each sample would have sounded without jitter.
FASTEST_NS = ms_to_ns(2000)
# A packet this late is no jitter: the stream had stopped, and what follows plays as it comes.
STALL_NS = ms_to_ns(200)
# A payload this short is Opus's discontinuous transmission: comfort noise in place of sound.
DTX_BYTES = 2

_HEADER = struct.Struct("!BBHII")


class Datagram(bytes):
    """A datagram with the instant of its arrival, ns of the caller's clock."""

    arrived_ns: int = 0

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
        samples: the length of what was lost, at `RATE`; 0 if there is a payload.
        arrived_ns: the arrival of its packet; of lost ones, as if it had ended with the arrival of
            the packet after them.
        jitter_ns: how much later it came than the fastest packet of the last two seconds would
            have.
        goes_on: it follows the piece before it without a hole in the stream.
    """

    payload: bytes | None
    samples: int
    arrived_ns: int
    jitter_ns: int
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
            `repeated`, `stalled` (the stream had stopped) and `comfort noise`.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._waiting: dict[int, _Waiting] = {}
        self._next: int | None = None  # the sequence number that is due, unwrapped
        self._clock = 0  # the timestamp that is due, unwrapped
        self._newest = 0
        self._ssrc: int | None = None
        self._ended = False  # a stretch without sound has begun
        # Arrival less timestamp of the latest packets, ever smaller ones first.
        self._delays: deque[tuple[int, int]] = deque()

    def read(self, packet: RtpPacket, arrived_ns: int) -> list[Piece]:
        """Take a packet; return what is next in the stream, in order."""
        if packet.ssrc != self._ssrc:
            self._ssrc, self._next, self._waiting = packet.ssrc, None, {}
            self._delays.clear()
        if self._next is None:
            self._next, self._clock = packet.sequence, packet.timestamp
            self._newest, self._ended = packet.sequence, True
        sequence = _unwrapped(packet.sequence, self._next, 16)
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
            assert self._next is not None
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
        jitter_ns = self._jitter_ns(packet)
        if jitter_ns > STALL_NS:
            self.counts["stalled"] += 1
            self._delays.clear()
            self._ended, jitter_ns = True, self._jitter_ns(packet)
        gap = packet.timestamp - self._clock
        goes_on = not self._ended and 0 <= gap <= (LONGEST_LOSS if missing else 0)
        pieces: list[Piece] = []
        if missing:
            self.counts["lost"] += missing
            if goes_on and gap:
                began_ns = packet.arrived_ns - samples_to_ns(gap, RATE)
                pieces.append(Piece(None, gap, began_ns, jitter_ns, goes_on=True))
        self._clock = packet.timestamp + opus_samples(packet.payload)
        self._ended = len(packet.payload) <= DTX_BYTES
        if self._ended:
            self.counts["comfort noise"] += 1
            return pieces
        pieces.append(Piece(packet.payload, 0, packet.arrived_ns, jitter_ns, goes_on))
        return pieces

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
