"""The `deepgram-agent` dialect: Deepgram's Voice Agent API, version 1.

From its "Voice Agent Message Flow", "Outputs: Server Events", "Configure the Voice Agent" and
"Function Call Request" (developers.deepgram.com/docs). The server welcomes the caller, the caller
sends `Settings`, and audio may follow once they are applied: PCM16 without a container in binary
messages, both ways. `UserStartedSpeaking` means that what has not been played is dropped. No
`KeepAlive` is sent, because the caller's audio never pauses.
"""

from collections.abc import Mapping
from typing import Any

from turngap.caller.dialects.encoding import event_of
from turngap.caller.dialects.registry import DialectSettings, DialectSpec, Key
from turngap.caller.dialects.session import PlainSession
from turngap.caller.said import (
    AudioBytes,
    Fault,
    Flush,
    Incoming,
    Message,
    NotSpokenError,
    Ready,
    ReplyDone,
    ReplyDue,
    ReplyText,
    Transcript,
)
from turngap.core.untrusted import shown, text_of

# The rates of the documentation's own example.
RATE_UP = 16_000
RATE_DOWN = 24_000

# Events that say all by their type.
_SAYS_ALL: dict[str, Incoming] = {
    "SettingsApplied": Ready(),
    "UserStartedSpeaking": Flush(),
}


class DeepgramSettings(DialectSettings):
    """The parts of the agent. Quote values with commas."""

    agent: str = ""
    "Identifier of an agent that is configured at Deepgram; the other settings are then not sent."
    listen: str = "nova-3"
    "Deepgram's model that recognises speech."
    provider: str = "open_ai"
    "Who provides the language model."
    model: str = "gpt-4o-mini"
    "The language model."
    prompt: str = "Answer in one short spoken sentence."
    "Instructions to the language model."
    speak: str = "aura-2-thalia-en"
    "Deepgram's voice."


class DeepgramAgentSession(PlainSession):
    """A session with Deepgram's Voice Agent, or a compatible server."""

    name = "deepgram-agent"
    rate = RATE_UP

    def __init__(self, settings: DeepgramSettings | None = None) -> None:
        super().__init__()
        self._settings = settings or DeepgramSettings()
        self._welcomed = False
        self._due = False  # a function was called, and its result is not spoken yet

    def open(self) -> list[Incoming]:
        return []  # nothing may be sent before the server's Welcome

    def receive_data(self, message: Message) -> list[Incoming]:
        if isinstance(message, bytes):
            return [AudioBytes(message, RATE_DOWN)]
        event = event_of(message)
        kind = event["type"]
        self._welcomed = self._welcomed or kind in ("Welcome", "Error")
        if not self._welcomed:
            raise NotSpokenError(f"JSON of the type {shown(kind)}, before any Welcome")
        if kind in _SAYS_ALL:
            return [_SAYS_ALL[kind]]
        return self._read(kind, event)

    def send_audio(self, pcm: bytes) -> None:
        self._waiting.append(pcm)

    def _read(self, kind: str, event: Mapping[str, Any]) -> list[Incoming]:
        match kind:
            case "Welcome":
                self._send(_settings(self._settings))
                return []
            case "ConversationText" if event.get("role") == "user":
                return [Transcript(event.get("content", ""))]
            case "ConversationText":
                self._due = False
                return [ReplyText(event.get("content", "")), ReplyText(" ")]
            case "Error" | "Warning":
                # After an error the conversation is over, and with a warning it continues.
                return [Fault(_described(event), kind == "Error", refuses=kind == "Warning")]
            case "FunctionCallRequest":
                self._decline(event)
                self._due = True
                return [ReplyDue()]
            case "AgentAudioDone" if not self._due:
                return [ReplyDone()]
            case _:
                return []

    def _decline(self, event: Mapping[str, Any]) -> None:
        """Answer that the caller has no functions, since the agent waits for their results."""
        functions = event.get("functions")
        for call in functions if isinstance(functions, list) else []:
            if isinstance(call, dict) and call.get("client_side"):
                name, number = text_of(call.get("name")), text_of(call.get("id"))
                content = "this caller has no functions"
                told = {"type": "FunctionCallResponse", "id": number, "name": name}
                self._send({**told, "content": content})


def _settings(settings: DeepgramSettings) -> dict[str, Any]:
    audio = {
        "input": {"encoding": "linear16", "sample_rate": RATE_UP},
        "output": {"encoding": "linear16", "sample_rate": RATE_DOWN, "container": "none"},
    }
    agent = {
        "listen": {"provider": {"type": "deepgram", "model": settings.listen}},
        "think": {
            "provider": {"type": settings.provider, "model": settings.model},
            "prompt": settings.prompt,
        },
        "speak": {"provider": {"type": "deepgram", "model": settings.speak}},
    }
    return {"type": "Settings", "audio": audio, "agent": settings.agent or agent}


def _described(event: Mapping[str, Any]) -> str:
    words = (text_of(event.get(name)) for name in ("description", "code"))
    return ": ".join(filter(None, words)) or "unspecified"


SPEC = DialectSpec(
    name="deepgram-agent",
    about="Deepgram's Voice Agent API",
    create=DeepgramAgentSession,
    settings_type=DeepgramSettings,
    hosts=("agent.deepgram.com",),
    key=Key("DEEPGRAM_API_KEY", "header", "Authorization", "Token "),
)
