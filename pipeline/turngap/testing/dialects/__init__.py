"""The agent's halves of the dialects, which scripted agents speak; imported when needed."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

import numpy as np

from turngap.caller.said import Message
from turngap.core.audio import Pcm
from turngap.core.errors import InputError, known_names


@dataclass(frozen=True, slots=True)
class Begun:
    """The caller's opening is complete; the agent may say that it is ready."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A packet of the person's audio, at the half's `in_rate`."""

    pcm: Pcm

    @classmethod
    def of(cls, pcm: bytes) -> "Spoken":
        """Make it of PCM16, mono."""
        return cls(np.frombuffer(pcm, dtype="<i2"))


@dataclass(frozen=True, slots=True)
class Pinged:
    """The caller asks for the agent's clock."""

    number: int


@dataclass(frozen=True, slots=True)
class Played:
    """The caller says that the audio before a mark has been played, or dropped (Twilio)."""

    mark: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """The caller says how much of a dropped reply was heard (OpenAI)."""

    heard_ms: int


@dataclass(frozen=True, slots=True)
class HungUp:
    """The caller says goodbye."""


FromCaller = Begun | Spoken | Pinged | Played | Truncated | HungUp


class AgentHalf:
    """One conversation in a dialect, as the agent holds it: without sockets, sleeps or clocks.

    Make a new one for each connection. Send the messages that a method returns in their order. The
    list is empty if the dialect has no such message; in this base class it always is.

    Attributes:
        in_rate: of the person's audio, Hz.
        out_rate: of the audio that `audio` takes, Hz.
    """

    in_rate: int
    out_rate: int

    def opens(self) -> list[Message]:
        """Return the agent's messages as soon as the WebSocket is open."""
        return []

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        """Take a message of the caller; return its events, and the messages to answer at once."""
        raise NotImplementedError

    def ready(self) -> list[Message]:
        """Return the messages that report that the agent is ready."""
        return []

    def audio(self, pcm: bytes) -> list[Message]:
        """Return a chunk of the agent's voice, PCM16 mono at `out_rate`."""
        raise NotImplementedError

    def flush(self) -> list[Message]:
        """Return the messages that make the caller drop the audio that it has not played."""
        return []

    def turn_over(self, transcript: str) -> list[Message]:
        """Return the messages that end the person's turn, with its transcript."""
        return []

    def reply_text(self, text: str) -> list[Message]:
        """Return a piece of the reply's text; the first begins the reply."""
        return []

    def reply_done(self) -> list[Message]:
        """Return the message that the whole reply has been sent."""
        return []

    def own_message(self, data: dict[str, Any]) -> list[Message]:
        """Return a message of turngap's own (marks, a pong), where the dialect carries them."""
        return []


# The dialect whose audio is RTP; `turngap.testing.rtc` sends and hears it.
WEBRTC = "webrtc"

_HERE = "turngap.testing.dialects"
# The class of each dialect's half, by the dialect's name.
HALVES = {
    "deepgram-agent": f"{_HERE}.services:DeepgramAgentHalf",
    "elevenlabs": f"{_HERE}.services:ElevenLabsHalf",
    "exotel": f"{_HERE}.telephony:ExotelHalf",
    "gemini-live": f"{_HERE}.services:GeminiLiveHalf",
    "gpt-live": f"{_HERE}.services:GptLiveHalf",
    "openai-realtime": f"{_HERE}.services:OpenAIRealtimeHalf",
    "pipecat": f"{_HERE}.pipecat:PipecatHalf",
    "pipecat-eval": f"{_HERE}.pipecat:PipecatEvalHalf",
    "plivo": f"{_HERE}.telephony:PlivoHalf",
    "telnyx": f"{_HERE}.telephony:TelnyxHalf",
    "twilio": f"{_HERE}.telephony:PhoneHalf",
    "vonage": f"{_HERE}.telephony:VonageHalf",
    WEBRTC: f"{_HERE}.pipecat:WebRtcHalf",
}


def make_half(dialect: str, **options: Any) -> AgentHalf:
    """Make the agent's half of a dialect, for one connection.

    `options` are those of its class, such as the `rate` of pipecat's.

    Raises:
        InputError: no scripted agent speaks this dialect.
    """
    require_half(dialect)
    return resolve_name(HALVES[dialect])(**options)


def require_half(dialect: str) -> None:
    """Check that a scripted agent speaks a dialect.

    Raises:
        InputError: no scripted agent does.
    """
    if dialect not in HALVES:
        raise InputError(
            "dialect.half",
            f"no scripted agent speaks the dialect {dialect!r}",
            hint=known_names(dialect, HALVES),
        )
