"""Events that every dialect makes of an agent's messages.

Each event checks the agent's values when it is made, so that no dialect has to. Values that can
be kept become finite, printable and bounded; the rest are refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from turngap.core.audio import Pcm
from turngap.core.events import ToolCall
from turngap.core.untrusted import MOST_NAME, MOST_SENTENCE, finite, instant, plain, text_of, whole
from turngap.core.wire import Law

# From telephony to studio. Any other rate is a mistake, and would size the caller's buffers.
RATES = range(8_000, 192_001)

# What one message about a turn may hold. The built-in agent reports 11 marks and 20 counts; a task
# of ten steps calls 10 to 30 tools.
MOST_NAMES = 100
MOST_CALLS = 100

_INT16 = np.dtype(np.int16)

Value = TypeVar("Value")


class NotSpokenError(Exception):
    """The message that arrived is not of this dialect."""


class UnplayableError(NotSpokenError):
    """The message is of this dialect, but its audio is no PCM16 mono at a rate of `RATES`."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The agent is ready to listen."""


@dataclass(frozen=True, slots=True)
class AudioBytes:
    """Audio to play as the agent sent it, maybe with a WAV header before its samples.

    The line converts it to an `AudioChunk`, and refuses audio that is not mono at one of `RATES`.

    Attributes:
        law: how the samples are coded; None for PCM16.
    """

    data: bytes
    rate: int
    channels: int = 1
    law: Law | None = None


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """Audio to play, mono.

    `wav` says that it came with WAV headers, which have been taken off. `left_out` counts the
    bytes after a WAV file's samples that were not well-formed chunks.

    Raises (when made):
        UnplayableError: it is not mono int16 at one of `RATES`.
    """

    pcm: Pcm
    rate: int
    wav: bool = False
    left_out: int = 0

    def __post_init__(self) -> None:
        if self.pcm.dtype != _INT16 or self.pcm.ndim != 1 or self.rate not in RATES:
            raise UnplayableError(f"audio that is no PCM16 mono ({self.rate} Hz)")


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop audio that has not been played yet.

    `guessed`: the agent sent no such message, but did something that implies it.
    """

    guessed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class TurnOver:
    """The agent says that it considers the person's turn over."""


@dataclass(frozen=True, slots=True)
class ReplyDue:
    """The agent says that more of its reply is to come: it is generating, or has called a tool."""


@dataclass(frozen=True, slots=True)
class ReplyDone:
    """The agent says that it has sent its whole reply.

    Without `whole` it only says that it has fallen silent, and more may come.
    """

    whole: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The final transcript of what the agent heard."""

    text: str

    def __post_init__(self) -> None:
        _set(self, text=text_of(self.text))


@dataclass(frozen=True, slots=True)
class ReplyText:
    """A piece of the reply's text."""

    text: str

    def __post_init__(self) -> None:
        _set(self, text=text_of(self.text))


@dataclass(frozen=True, slots=True)
class Marks:
    """The agent's marks for one of its turns, in ns of its own clock.

    `counts` are other figures by name. `why` is the reason for the hold before the turn. `error`
    says what stopped the agent from making all or part of its reply. `no_reply` says why the agent
    has nothing to say although nothing failed. `calls` are the tools that
    were called for the reply; None if the agent does not report them. `left_out` names the parts
    of the message that were refused, and why.

    Raises (when made):
        ValueError: it has no turn, or its parts have the wrong shape.
    """

    agent_turn: int
    marks: Mapping[str, int]
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    why: str | None = None
    error: str | None = None
    calls: tuple[ToolCall, ...] | None = None
    left_out: tuple[str, ...] = ()
    no_reply: str | None = None

    def __post_init__(self) -> None:
        left_out: list[str] = []
        _set(
            self,
            agent_turn=whole(self.agent_turn),
            marks=_named(self.marks, "mark", instant, left_out),
            counts=_named(self.counts, "count", finite, left_out),
            why=_sentence(self.why),
            error=_sentence(self.error),
            no_reply=_sentence(self.no_reply),
            calls=None if self.calls is None else _calls(self.calls, left_out),
            left_out=tuple(left_out),
        )


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to a ping; `agent_ns` is when the agent answered, on its clock."""

    ping: int
    agent_ns: int

    def __post_init__(self) -> None:
        _set(self, ping=whole(self.ping), agent_ns=instant(self.agent_ns))


@dataclass(frozen=True, slots=True)
class Fault:
    """The agent reports an error of its own, or refuses a message from the caller.

    `kind` is the kind of a fatal error.
    """

    text: str
    fatal: bool
    refuses: bool = False
    kind: str = field(default="agent.refused", compare=False)

    def __post_init__(self) -> None:
        _set(self, text=text_of(self.text, MOST_SENTENCE), fatal=bool(self.fatal))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A note by the line itself: something that the agent sent was left out; the turn continues."""

    why: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A note by the line itself: a message could not be read, so the turn cannot be measured.

    `traceback` is set if turngap failed on it. `unplayable`: it is audio of this dialect.
    """

    why: str
    traceback: str = ""
    unplayable: bool = False


Incoming = (
    Ready
    | AudioBytes
    | AudioChunk
    | Flush
    | TurnOver
    | ReplyDue
    | ReplyDone
    | Transcript
    | ReplyText
    | Marks
    | Pong
    | Fault
    | LeftOut
    | Unreadable
)

Message = bytes | str


def _set(instance: Any, **values: Any) -> None:
    """Set the checked values of a frozen instance that is being made."""
    for name, value in values.items():
        object.__setattr__(instance, name, value)


def _sentence(value: Any) -> str | None:
    return None if value is None else text_of(value, MOST_SENTENCE)


def _named(
    values: Any, what: str, read: Callable[[Any], Value], left_out: list[str]
) -> dict[str, Value]:
    """Read values by name; leave out those that cannot be read."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{what}s that are no object")
    found: dict[str, Value] = {}
    for key, value in values.items():
        if len(found) == MOST_NAMES:
            left_out.append(f"more than {MOST_NAMES} {what}s in a message")
            break
        name = text_of(key, MOST_NAME)
        try:
            found[name] = read(value)
        except ValueError as e:
            left_out.append(f"the {what} {name}: {e}")
    return found


def _calls(calls: Any, left_out: list[str]) -> tuple[ToolCall, ...]:
    if len(calls) > MOST_CALLS:
        left_out.append(f"more than {MOST_CALLS} tool calls in a message")
    return tuple(_call(call, left_out) for call in calls[:MOST_CALLS])


def _call(call: ToolCall, left_out: list[str]) -> ToolCall:
    name, ms = text_of(call.name, MOST_NAME), call.ms
    arguments, changed = plain(call.arguments)
    if not isinstance(arguments, dict):
        raise ValueError(f"arguments of {name} that are no object")
    if changed:
        left_out.append(f"arguments of {name} that cannot be kept")
    try:
        ms = None if ms is None else finite(ms)
    except ValueError as e:
        left_out.append(f"how long {name} took: {e}")
        ms = None
    return ToolCall(name, arguments, ms, _sentence(call.result), _sentence(call.error))
