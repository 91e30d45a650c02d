"""pipecat's protobuf with RTVI in it, as its clients, the live page and `turngap replay` speak."""

import json
from typing import Any

import numpy as np
from starlette.types import Message

from turngap.agent import limits as of
from turngap.agent.limits import HangUpError
from turngap.agent.protocols import rtvi
from turngap.agent.protocols.base import Taken, WireProtocol
from turngap.core.audio import AUDIBLE_DBFS, Pcm, rms_dbfs
from turngap.core.clock import Clock
from turngap.core.frames import Frame, frame_in, message_frame
from turngap.core.untrusted import parse_json


class PipecatMessages(WireProtocol):
    """A client of pipecat's whose messages are checked, whatever answers them.

    Args:
        in_rate: the rate that its audio must have, Hz.
    """

    def __init__(self, in_rate: int) -> None:
        self._in_rate = in_rate

    async def take(self, message: Message) -> Taken:
        frame = parsed(message)
        kind = frame.WhichOneof("frame")
        if kind == "audio":
            pcm = pcm_of(frame.audio, self._in_rate)
            return Taken(passes=True, audio_s=len(pcm) / self._in_rate, pcm=pcm)
        if kind != "message":
            raise HangUpError(
                of.CODE_NOT_ALLOWED, f"expected audio or an RTVI message, got a frame of {kind}"
            )
        try:
            payload = parse_json(frame.message.data)
        except ValueError as e:
            raise HangUpError(of.CODE_MALFORMED, "expected JSON in a message frame") from e
        if not rtvi.is_rtvi(payload):
            return Taken()
        return rtvi.taken(payload) or Taken(answers=(message_frame(rtvi.not_taken(payload)),))

    def is_speech(self, data: str | bytes) -> bool:
        frame = Frame.FromString(data)
        if frame.WhichOneof("frame") == "audio":
            # An agent that is relayed may send silence for as long as the line is open.
            pcm = np.frombuffer(frame.audio.audio, dtype="<i2")
            return rms_dbfs(pcm) >= AUDIBLE_DBFS
        if frame.WhichOneof("frame") != "message":
            return False
        payload = json.loads(frame.message.data)
        return isinstance(payload, dict) and payload.get("type") in rtvi.SPEECH_TYPES


class PipecatProtobuf(PipecatMessages):
    """A client of pipecat's that a pipeline answers.

    Args:
        in_rate: the rate that its audio must have, Hz.
        traced: whether it is told the marks of each turn.
    """

    def __init__(self, clock: Clock, in_rate: int, *, traced: bool) -> None:
        from pipecat.serializers.protobuf import ProtobufFrameSerializer

        from turngap.agent.observer import StampedSerializer

        super().__init__(in_rate)
        self.serializer = ProtobufFrameSerializer()
        if traced:
            self.serializer = StampedSerializer(clock)
            self.written = self.serializer.written_ns


def parsed(message: Message) -> Any:
    """Return the frame in a client's message.

    Raises:
        HangUpError: there is none.
    """
    data = message.get("bytes")
    if data is None:
        raise HangUpError(
            of.CODE_NO_TEXT, "expected pipecat's protobuf in binary messages, got text"
        )
    frame = frame_in(data)
    if frame is None:
        raise HangUpError(
            of.CODE_MALFORMED,
            f"expected pipecat's protobuf, got {len(data)} bytes that are no frame of it",
        )
    return frame


def pcm_of(audio: Any, rate: int) -> Pcm:
    """Return a client's audio.

    Raises:
        HangUpError: it is not mono PCM16 of that rate.
    """
    if audio.sample_rate != rate or audio.num_channels != 1 or len(audio.audio) % 2:
        channels = "mono" if audio.num_channels == 1 else f"{audio.num_channels} channels"
        raise HangUpError(
            of.CODE_MALFORMED,
            f"expected PCM16 mono at {rate} Hz, got {len(audio.audio)} bytes, "
            f"{channels}, {audio.sample_rate} Hz",
        )
    return np.frombuffer(audio.audio, dtype="<i2")
