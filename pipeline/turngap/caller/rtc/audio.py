"""Audio of a WebRTC call: the person's as RTP packets, and the agent's as pieces with instants."""

from collections import Counter

import numpy as np

from turngap.caller.rtc.opus import OpusDecoder, OpusEncoder
from turngap.caller.rtc.playout import PlayoutBuffer
from turngap.caller.rtc.rtp import FRAME, RATE, Datagram, Piece, RtpPacket, RtpReader
from turngap.caller.said import AudioChunk, Incoming, LeftOut, Packet
from turngap.core.clock import ms_to_ns

# What counts of packets are called in a turn's notes.
NOTES = {
    "lost": "RTP packets lost",
    "late": "RTP packets that came after they were given up",
    "reordered": "RTP packets out of order",
    "repeated": "RTP packets repeated",
    "another source": "RTP packets of another source, not heard",
    "restarted": "RTP streams that began anew",
    "comfort noise": "RTP packets of comfort noise, heard as silence",
    "malformed": "RTP packets that cannot be read",
    "stalled": "stops of the RTP stream",
    "dry": "RTP packets too late for the playout buffer, which is not in the gap",
}


class RtpMouth:
    """Encoder of the person's audio into RTP packets, one for each packet of 20 ms.

    The peer fills in payload type and source, which it has negotiated.
    """

    def __init__(self) -> None:
        self._encoder = OpusEncoder()
        self._sent = 0

    def pack(self, pcm: bytes) -> bytes:
        """Encode `FRAME` samples, PCM16 mono at `RATE`, and return their packet."""
        payload = self._encoder.encode(np.frombuffer(pcm, dtype="<i2"))
        number, self._sent = self._sent, self._sent + 1
        return RtpPacket(
            0, number & 0xFFFF, number * FRAME & 0xFFFFFFFF, 0, payload, marker=number == 0
        ).pack()


class RtpHearing:
    """Reader of the agent's RTP packets.

    Args:
        buffer: the playout buffer behind which the agent is also measured.
    """

    def __init__(self, buffer: PlayoutBuffer) -> None:
        self._reader, self._decoder = RtpReader(), OpusDecoder()
        self._buffer = buffer

    def read(self, datagram: Datagram) -> list[Incoming]:
        """Return the audio that is next in the stream, and notes on packets."""
        before = Counter(self._reader.counts)
        said: list[Incoming] = []
        counts: Counter[str] = Counter()
        try:
            packet = RtpPacket.parse(datagram)
            for piece in self._reader.read(packet, datagram.arrived_ns):
                said.append(chunk := self._chunk(piece))
                dry = chunk.packet is not None and chunk.packet.behind_ns == 0
                counts["dry"] += dry and bool(piece.jitter_ns)
        except ValueError:
            counts["malformed"] += 1
        counts += self._reader.counts - before
        return [*said, *(LeftOut(NOTES[name], n) for name, n in counts.items() if n)]

    def _chunk(self, piece: Piece) -> AudioChunk:
        if piece.payload is None:
            pcm = np.zeros(piece.samples, dtype=np.int16)
        else:
            pcm = self._decoder.decode(piece.payload)
        jitter_ns = piece.jitter_ns or 0
        about = (piece.arrived_ns, min(jitter_ns, ms_to_ns(self._buffer.delay_ms)))
        behind_ns = 0
        if piece.jitter_ns is not None and piece.payload is not None:
            behind_ns = self._buffer.behind_ns(piece.arrived_ns, jitter_ns)
        return AudioChunk(
            pcm, RATE, packet=Packet(*about, behind_ns, piece.goes_on, piece.payload is None)
        )
