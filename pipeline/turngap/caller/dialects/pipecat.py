"""The `pipecat` dialect: pipecat's protobuf frames with RTVI messages in them.

`ProtobufFrameSerializer` speaks it from pipecat 0.0.108 on; earlier versions send no RTVI. Both
directions are here, because the scripted agent of `turngap.testing` speaks the other one.
"""

from typing import Any

from turngap.caller.dialects.registry import DialectSettings, DialectSpec
from turngap.caller.dialects.rtvi import (
    RtviReader,
    client_ready,
    ping,
)
from turngap.caller.dialects.session import PlainSession
from turngap.caller.said import AudioBytes, Flush, Incoming, Message, NotSpokenError, Ready
from turngap.core.untrusted import parse_json, printable, shown
from turngap.core.wire import Frame, frame_in, message_frame


def audio_frame(pcm: bytes, rate: int) -> bytes:
    """Make a protobuf audio frame of PCM16 mono."""
    frame = Frame()
    frame.audio.audio = pcm
    frame.audio.sample_rate = rate
    frame.audio.num_channels = 1
    return frame.SerializeToString()


def interruption_frame() -> bytes:
    """Make a protobuf interruption frame, which drops audio that has not been played."""
    frame = Frame()
    frame.interruption.SetInParent()
    return frame.SerializeToString()


def parse(message: Message) -> Any:
    """Parse the protobuf frame in a message.

    Raises:
        NotSpokenError: the message is text, or not such a frame.
    """
    if isinstance(message, str):
        raise NotSpokenError(f"a text message ({shown(message)})")
    frame = frame_in(message)
    if frame is None:
        raise NotSpokenError(f"{len(message)} bytes that are no protobuf frame")
    return frame


def payload_of(frame: Any) -> dict[str, Any]:
    """Return the JSON object in a message frame; empty if it is JSON of another kind.

    Raises:
        NotSpokenError: the frame holds no JSON, which pipecat always sends.
    """
    try:
        payload = parse_json(frame.message.data)
    except ValueError as e:
        raise NotSpokenError(f"a message frame that is not JSON: {printable(str(e), 80)}") from e
    return payload if isinstance(payload, dict) else {}


class PipecatSession(PlainSession):
    """Speaks to any pipecat bot with `ProtobufFrameSerializer` and RTVI on (the default)."""

    name = "pipecat"
    rate = 16_000

    def __init__(self, *, rtvi: bool = True) -> None:
        super().__init__()
        self._has_rtvi, self._rtvi = rtvi, RtviReader()

    def open(self) -> list[Incoming]:
        if not self._has_rtvi:
            return [Ready()]
        self._waiting.append(message_frame(client_ready()))
        return []

    def receive_data(self, message: Message) -> list[Incoming]:
        frame = parse(message)
        match frame.WhichOneof("frame"):
            case "audio":
                audio = frame.audio
                return [AudioBytes(audio.audio, audio.sample_rate, audio.num_channels)]
            case "interruption":
                self._rtvi.flush_told = True
                return [Flush()]
            case "message":
                return self._rtvi.read(payload_of(frame))
            case _:
                return []

    def send_audio(self, pcm: bytes) -> None:
        self._waiting.append(audio_frame(pcm, self.rate))

    def ping(self, number: int) -> bool:
        if not self._has_rtvi:
            return False
        self._waiting.append(message_frame(ping(number)))
        return True


class PipecatSettings(DialectSettings):
    """Settings of the `pipecat` dialect."""

    rtvi: bool = True
    """Whether the bot speaks RTVI. Without it, a bot is measured by ear alone: nothing says when
    it is ready, what it understood and what it says."""


def _create(settings: PipecatSettings) -> PipecatSession:
    return PipecatSession(rtvi=settings.rtvi)


SPEC = DialectSpec(
    name="pipecat",
    about="pipecat's WebSocket transports with ProtobufFrameSerializer, and RTVI",
    create=_create,
    settings_type=PipecatSettings,
    tried=1,
    unready="a bot with RTVI off, or of pipecat before 0.0.108, never says that it is ready; "
    "measure it by ear alone: --dialect pipecat,rtvi=false",
)
