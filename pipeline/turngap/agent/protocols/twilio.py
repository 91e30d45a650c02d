"""Twilio Media Streams: a telephone line, in base64 of µ-law at 8 kHz."""

from typing import Any

from pipecat.serializers.twilio import TwilioFrameSerializer
from starlette.types import Message

from turngap.agent import limits as of
from turngap.agent.limits import HangUpError
from turngap.agent.protocols.base import Taken, WireProtocol, decoded, object_of, text_of
from turngap.agent.resampling import StreamResampler
from turngap.core.untrusted import printable

EXPECTED = "Twilio Media Streams"
RATE = 8000
FORMAT = {"encoding": "audio/x-mulaw", "sampleRate": RATE, "channels": 1}


class TwilioStream(WireProtocol):
    """A call. It is not told what the agent hears or says, and its `mark` needs no answer."""

    out_rate = RATE

    def __init__(self) -> None:
        self.serializer = self._stream = _Serializer()

    async def take(self, message: Message) -> Taken:
        payload = object_of(text_of(message, EXPECTED), EXPECTED)
        match payload.get("event"):
            case "start":
                self._stream.begin(_stream_of(payload))
            case "media":
                return Taken(passes=True, audio_s=self._seconds(payload))
            case "stop":
                raise HangUpError(of.CODE_DONE, "the stream has stopped")
            case _:  # connected, dtmf, mark, and what Twilio may add
                pass
        return Taken()

    def _seconds(self, payload: dict[str, Any]) -> float:
        if not self._stream.begun:
            raise HangUpError(of.CODE_MALFORMED, "expected Twilio's start before its media")
        media = payload.get("media")
        audio = decoded(media.get("payload")) if isinstance(media, dict) else None
        if not audio:
            raise HangUpError(of.CODE_MALFORMED, "expected media.payload with µ-law in base64")
        return len(audio) / RATE

    def is_speech(self, data: str | bytes) -> bool:
        return isinstance(data, str) and data.startswith('{"event": "media"')


class _Serializer(TwilioFrameSerializer):
    """pipecat's, for a stream whose name is not known yet, and with our resampling."""

    def __init__(self) -> None:
        super().__init__("", params=TwilioFrameSerializer.InputParams(auto_hang_up=False))
        self._input_resampler = StreamResampler()
        self._output_resampler = StreamResampler()

    @property
    def begun(self) -> bool:
        return bool(self._stream_sid)

    def begin(self, stream: str) -> None:
        self._stream_sid = stream


def _stream_of(payload: dict[str, Any]) -> str:
    """Return the name of a stream that starts.

    Raises:
        HangUpError: it has none, or its audio is not what Twilio sends.
    """
    start = payload.get("start")
    start = start if isinstance(start, dict) else {}
    stream = payload.get("streamSid") or start.get("streamSid")
    if not isinstance(stream, str) or len(stream) > 100:
        raise HangUpError(of.CODE_MALFORMED, "expected a streamSid in Twilio's start")
    if (media := start.get("mediaFormat", FORMAT)) != FORMAT:
        got = printable(str(media))[:40]
        raise HangUpError(of.CODE_MALFORMED, f"expected audio/x-mulaw, 8000 Hz, mono; got {got}")
    return stream
