"""The `elevenlabs` dialect: the WebSocket of ElevenLabs' agents.

From its WebSocket reference and "Client events" (elevenlabs.io/docs). The URL has the agent's
identifier (`?agent_id=…`). The agent decides how audio is coded: its first message names both
formats, so `rate` is known when the agent is ready. Chunks of the agent's audio are numbered, and
an `interruption` drops all chunks up to its number, even if they come later.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from turngap.caller.dialects.encoding import Encoding, event_of, inside
from turngap.caller.dialects.registry import DialectSpec, Key
from turngap.caller.dialects.session import PlainSession
from turngap.caller.said import (
    RATES,
    Fault,
    Flush,
    Incoming,
    Message,
    Ready,
    ReplyDone,
    ReplyDue,
    ReplyText,
    Transcript,
    UnplayableError,
)
from turngap.core.untrusted import shown, text_of, whole
from turngap.core.wire import RATE as TELEPHONE

U_LAW = "ulaw_8000"
_PCM = re.compile("pcm_([0-9]{1,6})")
# Both ways, until the server names them: that of the documents' example.
_UNTOLD = Encoding("pcm", 16_000)


class ElevenLabsSession(PlainSession):
    """A session with an agent of ElevenLabs, or a compatible server."""

    name = "elevenlabs"

    def __init__(self) -> None:
        super().__init__()
        self._up = self._down = _UNTOLD
        self.rate = self._up.rate
        self._begun = self.due = False
        self._latest = self._dropped = -1  # numbers of the agent's audio

    def open(self) -> list[Incoming]:
        self._send({"type": "conversation_initiation_client_data"})
        return []

    def receive_data(self, message: Message) -> list[Incoming]:
        event = event_of(message)
        read = _READERS.get(event["type"])
        return [] if read is None else read(self, event)

    def send_audio(self, pcm: bytes) -> None:
        self._send({"user_audio_chunk": self._up.encode(pcm)})

    def begin(self, event: Mapping[str, Any]) -> list[Incoming]:
        """Take the audio formats, which then stay."""
        if self._begun:
            return []
        told = inside(event, "conversation_initiation_metadata_event")
        self._up = _format(told, "user_input_audio_format")
        self._down = _format(told, "agent_output_audio_format")
        self.rate, self._begun = self._up.rate, True
        return [Ready()]

    def hear(self, event: Mapping[str, Any]) -> list[Incoming]:
        """Take a chunk of audio, unless it has been dropped already."""
        told = inside(event, "audio_event")
        number = whole(told.get("event_id"))
        if number <= self._dropped:
            return []
        self._latest = max(self._latest, number)
        return [self._down.audio(told.get("audio_base_64"))]

    def interrupt(self, event: Mapping[str, Any]) -> list[Incoming]:
        """Drop the audio up to a chunk's number; without a number, all of it."""
        number = inside(event, "interruption_event").get("event_id")
        self._dropped = max(self._dropped, self._latest if number is None else whole(number))
        return [Flush()]

    def answer_ping(self, event: Mapping[str, Any]) -> list[Incoming]:
        """Answer at once, as the official clients do; the server measures the round trip."""
        number = whole(inside(event, "ping_event").get("event_id"))
        self._send({"type": "pong", "event_id": number})
        return []

    def decline(self, event: Mapping[str, Any]) -> list[Incoming]:
        """Answer that the caller has no tools, since the agent may wait for the result."""
        number = text_of(inside(event, "client_tool_call").get("tool_call_id"))
        result = {"result": "this caller has no tools", "is_error": True}
        self._send({"type": "client_tool_result", "tool_call_id": number, **result})
        return self.await_reply(event)

    def await_reply(self, _: Mapping[str, Any]) -> list[Incoming]:
        """Expect the agent to speak of a tool's result."""
        self.due = True
        return [ReplyDue()]

    def transcribe(self, event: Mapping[str, Any]) -> list[Incoming]:
        """Read the transcript of the person's words."""
        self.due = False
        return [Transcript(inside(event, "user_transcription_event").get("user_transcript", ""))]

    def reply(self, event: Mapping[str, Any]) -> list[Incoming]:
        """Read the agent's reply: about a tool's result, if a tool was called."""
        self.due = False
        text = inside(event, "agent_response_event").get("agent_response", "")
        return [ReplyText(text), ReplyText(" ")]


def _fault(_: ElevenLabsSession, event: Mapping[str, Any]) -> list[Incoming]:
    told = inside(event, "client_error_event") or inside(event, "error_event") or event
    words = (text_of(told.get(name)) for name in ("message", "reason", "code"))
    return [Fault(": ".join(filter(None, words)) or "unspecified", fatal=False)]


# The server's events, and what is made of each. Others repeat what these say, in pieces or
# afterwards (`agent_chat_response_part`, `agent_response_correction`), or are not about a turn.
_READERS: dict[str, Callable[[ElevenLabsSession, Mapping[str, Any]], list[Incoming]]] = {
    "conversation_initiation_metadata": ElevenLabsSession.begin,
    "audio": ElevenLabsSession.hear,
    "interruption": ElevenLabsSession.interrupt,
    "ping": ElevenLabsSession.answer_ping,
    "client_tool_call": ElevenLabsSession.decline,
    "agent_tool_request": ElevenLabsSession.await_reply,
    "agent_tool_response": ElevenLabsSession.await_reply,
    "user_transcript": ElevenLabsSession.transcribe,
    "agent_response": ElevenLabsSession.reply,
    "agent_response_complete": lambda session, _: [] if session.due else [ReplyDone()],
    "client_error": _fault,
}


def _format(told: Mapping[str, Any], name: str) -> Encoding:
    """Return a format of audio.

    Raises:
        UnplayableError: the caller cannot code it.
    """
    value = told.get(name)
    found = _PCM.fullmatch(value) if isinstance(value, str) else None
    if found is not None and int(found[1]) in RATES:
        return Encoding("pcm", int(found[1]))
    if value == U_LAW:
        return Encoding("pcmu", TELEPHONE)
    if value is None:
        return _UNTOLD
    raise UnplayableError(f"{shown(value)} as its {name}, which is neither PCM16 nor {U_LAW}")


SPEC = DialectSpec(
    name="elevenlabs",
    about="ElevenLabs' agents, the agent's identifier in the URL (?agent_id=…)",
    create=lambda _: ElevenLabsSession(),
    hosts=("elevenlabs.io",),
    key=Key("ELEVENLABS_API_KEY", "header", "xi-api-key"),
)
