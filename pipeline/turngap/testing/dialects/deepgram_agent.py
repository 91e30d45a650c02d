"""The agent's half of the `deepgram-agent` dialect."""

import json
from typing import Any

import numpy as np

from turngap.caller.dialects.deepgram_agent import RATE_DOWN, RATE_UP
from turngap.caller.said import Message
from turngap.testing.dialects.half import Begun, FromCaller, Spoken


class DeepgramAgentHalf:
    """Speaks as Deepgram's Voice Agent does, in linear16 at the rates that the caller asks for."""

    in_rate = RATE_UP
    out_rate = RATE_DOWN

    def opens(self) -> list[Message]:
        return [_event("Welcome", request_id="00000000-0000-0000-0000-000000000000")]

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        if isinstance(message, bytes):
            return [Spoken(np.frombuffer(message, dtype="<i2"))], []
        event = json.loads(message)
        if event.get("type") != "Settings":
            return [], []
        audio = event["audio"]
        self.in_rate = audio["input"]["sample_rate"]
        self.out_rate = audio["output"]["sample_rate"]
        return [Begun()], []

    def ready(self) -> list[Message]:
        return [_event("SettingsApplied")]

    def audio(self, pcm: bytes) -> list[Message]:
        return [pcm]

    def flush(self) -> list[Message]:
        return [_event("UserStartedSpeaking")]

    def turn_over(self, transcript: str) -> list[Message]:
        return [_event("ConversationText", role="user", content=transcript)]

    def reply_text(self, text: str) -> list[Message]:
        return [_event("ConversationText", role="assistant", content=text)]

    def reply_done(self) -> list[Message]:
        return [_event("AgentAudioDone")]

    def told(self, data: dict[str, Any]) -> list[Message]:
        return []


def _event(kind: str, **values: Any) -> Message:
    return json.dumps({"type": kind, **values})
