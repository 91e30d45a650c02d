"""The agent's half of the `elevenlabs` dialect."""

import json
from typing import Any

import numpy as np

from turngap.caller.dialects.encoding import Encoding
from turngap.caller.said import Message
from turngap.testing.dialects.half import Begun, FromCaller, Spoken

_PCM = Encoding("pcm", 16_000)


class ElevenLabsHalf:
    """Speaks as an agent of ElevenLabs does, in PCM16 at 16 kHz both ways."""

    in_rate = 16_000
    out_rate = 16_000

    def __init__(self) -> None:
        self._number = 0  # of the latest audio or interruption

    def opens(self) -> list[Message]:
        return []

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        event = json.loads(message)
        if "user_audio_chunk" in event:
            pcm = _PCM.decode(event["user_audio_chunk"])
            return [Spoken(np.frombuffer(pcm, dtype="<i2"))], []
        if event.get("type") == "conversation_initiation_client_data":
            return [Begun()], []
        return [], []

    def ready(self) -> list[Message]:
        formats = dict.fromkeys(
            ("agent_output_audio_format", "user_input_audio_format"), "pcm_16000"
        )
        told = {"conversation_id": "conv_0", **formats}
        kind = "conversation_initiation_metadata"
        return [
            _event(kind, conversation_initiation_metadata_event=told),
            _event("ping", ping_event={"event_id": self._next(), "ping_ms": None}),
        ]

    def audio(self, pcm: bytes) -> list[Message]:
        chunk = {"audio_base_64": _PCM.encode(pcm), "event_id": self._next()}
        return [_event("audio", audio_event=chunk)]

    def flush(self) -> list[Message]:
        return [_event("interruption", interruption_event={"event_id": self._number})]

    def turn_over(self, transcript: str) -> list[Message]:
        return [_event("user_transcript", user_transcription_event={"user_transcript": transcript})]

    def reply_text(self, text: str) -> list[Message]:
        return [_event("agent_response", agent_response_event={"agent_response": text})]

    def reply_done(self) -> list[Message]:
        return [_event("agent_response_complete")]

    def told(self, data: dict[str, Any]) -> list[Message]:
        return []

    def _next(self) -> int:
        self._number += 1
        return self._number


def _event(kind: str, **values: Any) -> Message:
    return json.dumps({"type": kind, **values})
