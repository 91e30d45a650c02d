"""Opus, coded and decoded by libopus in PyAV, packet by packet and apart from any track."""

from fractions import Fraction

import numpy as np
from av import AudioFrame, CodecContext
from av.audio.codeccontext import AudioCodecContext
from av.packet import Packet

from turngap.caller.rtc.rtp import FRAME, RATE
from turngap.core.audio import Pcm

# aiortc's own. With it and "audio", an edge of the sound is decoded within 0.1 ms of its place;
# with 32 kbit/s and "voip", within 5 ms.
BIT_RATE = 96_000
# The encoder's look-ahead at `RATE`: what is decoded is late by it (RFC 6716, section 2.1.4).
LOOKAHEAD = 312

_TIME_BASE = Fraction(1, RATE)


class OpusEncoder:
    """Encoder of mono speech in frames of 20 ms."""

    def __init__(self, bit_rate: int = BIT_RATE) -> None:
        codec = CodecContext.create("libopus", "w")
        assert isinstance(codec, AudioCodecContext)
        codec.bit_rate = bit_rate
        codec.format, codec.layout = "s16", "mono"
        codec.options = {"application": "audio", "frame_duration": "20"}
        codec.sample_rate, codec.time_base = RATE, _TIME_BASE
        self._codec = codec
        self._pts = 0

    def encode(self, pcm: Pcm) -> bytes:
        """Return the packet of one frame, `FRAME` samples at `RATE`."""
        frame = AudioFrame.from_ndarray(pcm[None, :], format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._pts, _TIME_BASE
        self._pts += FRAME
        (packet,) = self._codec.encode(frame)
        return bytes(packet)


class OpusDecoder:
    """Decoder of one stream; stereo is mixed to mono."""

    def __init__(self) -> None:
        codec = CodecContext.create("libopus", "r")
        assert isinstance(codec, AudioCodecContext)
        codec.format, codec.layout, codec.sample_rate = "s16", "mono", RATE
        self._codec = codec

    def decode(self, payload: bytes) -> Pcm:
        """Return the samples of a packet, mono at `RATE`.

        Raises:
            ValueError: it is no Opus packet.
        """
        frames = self._codec.decode(Packet(payload))
        pieces = [np.atleast_2d(frame.to_ndarray())[0] for frame in frames]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=np.int16)
