"""The agent's half of the `pipecat-eval` dialect: RTVI and audio as JSON."""

import json
from typing import Any

import numpy as np

from turngap.caller.dialects.encoding import Encoding
from turngap.caller.dialects.pipecat_eval import AUDIO_DOWN, AUDIO_UP
from turngap.caller.dialects.rtvi import RTVI_VERSION, rtvi
from turngap.caller.said import Message
from turngap.core.messages import PING
from turngap.testing.dialects.half import Begun, FromCaller, Pinged, Spoken


class PipecatEvalHalf:
    """Speaks as a pipecat bot with an eval entry does, and turngap's observer.

    Args:
        rate: of the audio that it sends, Hz.
    """

    in_rate = 16_000

    def __init__(self, rate: int = 24_000) -> None:
        self.out_rate = rate

    def opens(self) -> list[Message]:
        return []

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        payload = json.loads(message)
        data = payload.get("data") or {}
        match payload.get("type"):
            case "client-ready":
                return [Begun()], []
            case "client-message" if data.get("t") == PING:
                return [Pinged(data["d"]["ping"])], []
            case kind if kind == AUDIO_UP:
                pcm = Encoding("pcm", self.in_rate).decode(data["base64Audio"])
                return [Spoken(np.frombuffer(pcm, dtype="<i2"))], []
            case _:
                return [], []

    def ready(self) -> list[Message]:
        return [_message("bot-ready", {"version": RTVI_VERSION})]

    def audio(self, pcm: bytes) -> list[Message]:
        return [
            _message(
                AUDIO_DOWN,
                {"audio": Encoding("pcm", self.out_rate).encode(pcm), "sampleRate": self.out_rate},
            )
        ]

    def flush(self) -> list[Message]:
        return [_message("user-started-speaking"), _message("bot-interrupted")]

    def turn_over(self, transcript: str) -> list[Message]:
        heard = {"text": transcript, "timestamp": "", "final": True}
        return [
            _message("user-input", {**heard, "input_type": "transcription"}),
            _message("user-transcription", {**heard, "user_id": ""}),
            _message("user-stopped-speaking"),
        ]

    def reply_text(self, text: str) -> list[Message]:
        return [_message("llm-raw-text", {"text": text}), _message("bot-llm-text", {"text": text})]

    def reply_done(self) -> list[Message]:
        return [_message("bot-stopped-speaking")]

    def told(self, data: dict[str, Any]) -> list[Message]:
        return [_message("server-message", data)]


def _message(kind: str, data: Any = None) -> Message:
    return json.dumps(rtvi(kind, data))
