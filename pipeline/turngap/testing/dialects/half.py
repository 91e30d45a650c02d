"""The contract of the agent's half of a dialect, which a scripted agent speaks."""

from dataclasses import dataclass
from typing import Any, Protocol

from turngap.caller.said import Message
from turngap.core.audio import Pcm


@dataclass(frozen=True, slots=True)
class Begun:
    """The caller's opening is complete; the agent may say that it is ready."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A packet of the person's audio, at the half's `in_rate`."""

    pcm: Pcm


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


class AgentHalf(Protocol):
    """One conversation in a dialect, as the agent holds it: without sockets, sleeps or clocks.

    Make a new one for each connection. What a method returns is sent in order; it is empty where
    the dialect has no word for it.

    Attributes:
        in_rate: of the person's audio, Hz.
        out_rate: of the audio that `audio` takes, Hz.
    """

    in_rate: int
    out_rate: int

    def opens(self) -> list[Message]:
        """Return what the agent says as soon as the WebSocket is open."""
        ...

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        """Take a message of the caller; return what it says, and what must be answered at once."""
        ...

    def ready(self) -> list[Message]:
        """Return what says that the agent is ready."""
        ...

    def audio(self, pcm: bytes) -> list[Message]:
        """Return a chunk of the agent's voice, PCM16 mono at `out_rate`."""
        ...

    def flush(self) -> list[Message]:
        """Return what makes the caller drop the audio that it has not played."""
        ...

    def turn_over(self, transcript: str) -> list[Message]:
        """Return what says that the person's turn is over, and what was understood."""
        ...

    def reply_text(self, text: str) -> list[Message]:
        """Return a piece of the reply's text; the first begins the reply."""
        ...

    def reply_done(self) -> list[Message]:
        """Return what says that the whole reply has been sent."""
        ...

    def told(self, data: dict[str, Any]) -> list[Message]:
        """Return a message of turngap's own (marks, a pong), where the dialect carries them."""
        ...
