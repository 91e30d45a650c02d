"""What a wire protocol translates: bytes on one side, what is said on the line on the other."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from turngap.core.audio import Pcm
from turngap.core.events import ToolCall


@dataclass(frozen=True, slots=True)
class Ready:
    """The agent is ready to listen."""


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """Audio to play, mono."""

    pcm: Pcm
    rate: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop what has not been played yet."""


@dataclass(frozen=True, slots=True)
class TurnOver:
    """The agent says that it takes the person's turn to be over."""


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """The agent says that it has sent its whole reply."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """What the agent heard, as its final transcript."""

    text: str


@dataclass(frozen=True, slots=True)
class ReplyText:
    """A piece of the reply's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Marks:
    """The agent's marks for one of its turns, in ns of its own clock.

    `counts` are other figures by name. `why` is the reason for the hold before the turn. `error`
    says what kept the agent from making its reply, or all of it. `calls` are the tools that were
    called for the reply; None if the agent does not report them.
    """

    agent_turn: int
    marks: Mapping[str, int]
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    why: str | None = None
    error: str | None = None
    calls: tuple[ToolCall, ...] | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping; `agent_ns` is when the agent answered, on its clock."""

    ping: int
    agent_ns: int


@dataclass(frozen=True, slots=True)
class Truth:
    """A loopback agent's own account of the gap that it injected (calibration only)."""

    gap_ns: int
    intended_gap_ns: int


@dataclass(frozen=True, slots=True)
class Fault:
    """The agent reports an error of its own, or refuses a message of the caller's."""

    text: str
    fatal: bool
    refuses: bool = False


Incoming = (
    Ready
    | AudioChunk
    | Flush
    | TurnOver
    | ReplyDone
    | Transcript
    | ReplyText
    | Marks
    | Pong
    | Truth
    | Fault
)

Message = bytes | str


class NotSpokenError(Exception):
    """The message that arrived is not of this dialect."""


class Dialect(Protocol):
    """A translator without I/O and without state, for one message at a time."""

    name: str

    def opening(self) -> list[Message]:
        """Return what the caller sends first."""
        ...

    def audio(self, pcm: bytes, rate: int) -> Message:
        """Encode one packet of the user's audio, PCM16 mono."""
        ...

    def ping(self, number: int) -> Message | None:
        """Return a question for the agent's clock; None if the dialect has none."""
        ...

    def decode(self, message: Message) -> Incoming | None:
        """Return what a message says; None if it says nothing that the caller needs.

        Raises:
            NotSpokenError: the message is not of this dialect.
        """
        ...
