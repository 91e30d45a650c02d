"""The agent's halves of pipecat's dialects: RTVI and audio, in protobuf or in JSON."""

import io
import json
import wave
from typing import Any

from turngap.caller.dialects.encoding import Encoding
from turngap.caller.dialects.pipecat import audio_frame, interruption_frame, parse, payload_of
from turngap.caller.dialects.pipecat_eval import AUDIO_DOWN, AUDIO_UP
from turngap.caller.dialects.rtvi import RTVI_VERSION, rtvi
from turngap.caller.said import Message
from turngap.core.wire import PING, message_frame
from turngap.testing.dialects import AgentHalf, Begun, FromCaller, Pinged, Spoken


class PipecatHalf(AgentHalf):
    """Speaks as a pipecat bot with turngap's observer does.

    Args:
        rate: of the audio that it sends, Hz.
        wav: put a WAV header before each chunk, as pipecat's `add_wav_header` does.
    """

    in_rate = 16_000

    def __init__(self, rate: int = 24_000, wav: bool = False) -> None:
        self.out_rate = rate
        self._wav = wav

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        frame = parse(message)
        match frame.WhichOneof("frame"):
            case "audio":
                return [Spoken.of(frame.audio.audio)], []
            case "message":
                return _events_of(payload_of(frame)), []
            case _:
                return [], []

    def ready(self) -> list[Message]:
        return [_message("bot-ready", {"version": RTVI_VERSION})]

    def audio(self, pcm: bytes) -> list[Message]:
        return [audio_frame(wav_file(pcm, self.out_rate) if self._wav else pcm, self.out_rate)]

    def flush(self) -> list[Message]:
        return [interruption_frame()]

    def turn_over(self, transcript: str) -> list[Message]:
        return [_message("user-transcription", {"text": transcript, "final": True})]

    def reply_text(self, text: str) -> list[Message]:
        return [_message("bot-llm-text", {"text": text})]

    def reply_done(self) -> list[Message]:
        return [_message("bot-stopped-speaking", None)]

    def own_message(self, data: dict[str, Any]) -> list[Message]:
        return [_message("server-message", data)]


def _message(kind: str, data: Any) -> Message:
    return message_frame(rtvi(kind, data))


def _events_of(payload: dict[str, Any]) -> list[FromCaller]:
    data = payload.get("data") or {}
    match payload.get("type"):
        case "client-ready":
            return [Begun()]
        case "client-message" if data.get("t") == PING:
            return [Pinged(data["d"]["ping"])]
        case _:
            return []


def wav_file(pcm: bytes, rate: int) -> bytes:
    """Make a WAV file of PCM16 mono."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, rate, 0, "NONE", ""))
        out.writeframes(pcm)
    return file.getvalue()


class PipecatEvalHalf(AgentHalf):
    """Speaks as a pipecat bot with an eval entry does, and turngap's observer.

    Args:
        rate: of the audio that it sends, Hz.
    """

    in_rate = 16_000

    def __init__(self, rate: int = 24_000) -> None:
        self.out_rate = rate

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        payload = json.loads(message)
        data = payload.get("data") or {}
        match payload.get("type"):
            case "client-ready":
                return [Begun()], []
            case "client-message" if data.get("t") == PING:
                return [Pinged(data["d"]["ping"])], []
            case kind if kind == AUDIO_UP:
                return [Spoken.of(Encoding("pcm", self.in_rate).decode(data["base64Audio"]))], []
            case _:
                return [], []

    def ready(self) -> list[Message]:
        return [_json_message("bot-ready", {"version": RTVI_VERSION})]

    def audio(self, pcm: bytes) -> list[Message]:
        return [
            _json_message(
                AUDIO_DOWN,
                {"audio": Encoding("pcm", self.out_rate).encode(pcm), "sampleRate": self.out_rate},
            )
        ]

    def flush(self) -> list[Message]:
        return [_json_message("user-started-speaking"), _json_message("bot-interrupted")]

    def turn_over(self, transcript: str) -> list[Message]:
        heard = {"text": transcript, "timestamp": "", "final": True}
        return [
            _json_message("user-input", {**heard, "input_type": "transcription"}),
            _json_message("user-transcription", {**heard, "user_id": ""}),
            _json_message("user-stopped-speaking"),
        ]

    def reply_text(self, text: str) -> list[Message]:
        return [
            _json_message("llm-raw-text", {"text": text}),
            _json_message("bot-llm-text", {"text": text}),
        ]

    def reply_done(self) -> list[Message]:
        return [_json_message("bot-stopped-speaking")]

    def own_message(self, data: dict[str, Any]) -> list[Message]:
        return [_json_message("server-message", data)]


def _json_message(kind: str, data: Any = None) -> Message:
    return json.dumps(rtvi(kind, data))


class WebRtcHalf(PipecatEvalHalf):
    """Speaks RTVI over a data channel, as a pipecat bot on SmallWebRTC does; its audio is RTP."""

    in_rate = 48_000

    def __init__(self) -> None:
        super().__init__(48_000)

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        # Its clients also send a bare "ping: NUMBER" to keep the channel open.
        return super().receive_data(message) if message[:1] in ("{", b"{") else ([], [])

    def audio(self, pcm: bytes) -> list[Message]:
        return []

    def turn_over(self, transcript: str) -> list[Message]:
        heard = {"text": transcript, "timestamp": "", "final": True, "user_id": ""}
        return [
            _json_message("user-transcription", heard),
            _json_message("user-stopped-speaking"),
        ]

    def reply_text(self, text: str) -> list[Message]:
        return [_json_message("bot-llm-text", {"text": text})]
