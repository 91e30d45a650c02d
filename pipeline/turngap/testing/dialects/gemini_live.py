"""The agent's half of the `gemini-live` dialect."""

import json
from typing import Any

import numpy as np

from turngap.caller.dialects.encoding import Encoding
from turngap.caller.dialects.gemini_live import RATE_DOWN, RATE_UP, audio_of
from turngap.caller.said import Message
from turngap.testing.dialects.half import Begun, FromCaller, Spoken


class GeminiLiveHalf:
    """Speaks as Gemini's Live API does: JSON in binary messages."""

    in_rate = RATE_UP
    out_rate = RATE_DOWN

    def opens(self) -> list[Message]:
        return []

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        event = json.loads(message)
        if "setup" in event:
            return [Begun()], []
        # Google's own SDK writes it the second way, as JSON of protobuf may.
        if spoken := event.get("realtimeInput") or event.get("realtime_input"):
            return [Spoken(np.frombuffer(audio_of(spoken["audio"], RATE_UP), dtype="<i2"))], []
        return [], []

    def ready(self) -> list[Message]:
        return [_message({"setupComplete": {}})]

    def audio(self, pcm: bytes) -> list[Message]:
        blob = {
            "mimeType": f"audio/pcm;rate={self.out_rate}",
            "data": Encoding("pcm", self.out_rate).encode(pcm),
        }
        return [_content(modelTurn={"parts": [{"inlineData": blob}]})]

    def flush(self) -> list[Message]:
        return [_content(interrupted=True)]

    def turn_over(self, transcript: str) -> list[Message]:
        # In two pieces, as the real ones come.
        half = len(transcript) // 2
        pieces = (transcript[:half], transcript[half:])
        return [_content(inputTranscription={"text": piece}) for piece in pieces]

    def reply_text(self, text: str) -> list[Message]:
        return [_content(outputTranscription={"text": text})]

    def reply_done(self) -> list[Message]:
        return [_content(generationComplete=True), _content(turnComplete=True)]

    def told(self, data: dict[str, Any]) -> list[Message]:
        return []


def _content(**values: Any) -> Message:
    return _message({"serverContent": values})


def _message(value: dict[str, Any]) -> Message:
    return json.dumps(value).encode()
