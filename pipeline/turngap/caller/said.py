"""Events that a dialect makes of an agent's messages: its reports, and what the line reads.

The reports are events of `turngap.core.events`, which check the agent's values. The rest is audio,
and what only the conversation needs to know.
"""

from dataclasses import dataclass, field

import numpy as np

from turngap.core.audio import Pcm
from turngap.core.events import Fault as Fault
from turngap.core.events import Flush as Flush
from turngap.core.events import Marks as Marks
from turngap.core.events import NoReply as NoReply
from turngap.core.events import ReplyText as ReplyText
from turngap.core.events import Transcript as Transcript
from turngap.core.events import TurnOver as TurnOver
from turngap.core.untrusted import instant, whole
from turngap.core.wire import Law

# From telephony to studio. Any other rate is a mistake, and would size the caller's buffers.
RATES = range(8_000, 192_001)

_INT16 = np.dtype(np.int16)


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
class Packet:
    """The place in time of audio that came in a packet of a real-time stream (RTP).

    Attributes:
        arrived_ns: its arrival; of lost audio, as if it had ended with the next packet's arrival.
        early_ns: how much earlier it is in a recording, where jitter is smoothed as by a buffer.
        behind_ns: how much later a playout buffer would play it.
        goes_on: it follows the audio before it without a hole in the stream.
        lost: its packets were lost, and it is silence in their place.
    """

    arrived_ns: int
    early_ns: int
    behind_ns: int
    goes_on: bool
    lost: bool = False


@dataclass(frozen=True, slots=True)
class AudioChunk:
    """Audio to play, mono.

    `wav` says that it came with WAV headers, which have been taken off. `left_out` counts the
    bytes after a WAV file's samples that were not well-formed chunks. Audio of a real-time stream
    has its place in time as its `packet`; other audio plays as soon as it can. `goes_on` says that
    the agent sent it without a pause, so that a silence before it is the line's.

    Raises (when made):
        UnplayableError: the audio is not mono int16 at one of `RATES`.
    """

    pcm: Pcm
    rate: int
    wav: bool = False
    left_out: int = 0
    packet: Packet | None = None
    goes_on: bool = False

    def __post_init__(self) -> None:
        if self.pcm.dtype != _INT16 or self.pcm.ndim != 1 or self.rate not in RATES:
            raise UnplayableError(f"audio that is no PCM16 mono ({self.rate} Hz)")


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
class Pong:
    """The answer to a ping; `agent_ns` is when the agent answered, on its clock."""

    ping: int
    agent_ns: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "ping", whole(self.ping))
        object.__setattr__(self, "agent_ns", instant(self.agent_ns))


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A note by the line itself: something that the agent sent was left out; the turn continues.

    It was so `n` times.
    """

    why: str
    n: int = 1


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A note by the line itself: a message could not be read, so the turn cannot be measured.

    `traceback` is set if turngap failed on it. `unplayable`: the message is audio of this dialect.
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
    | NoReply
    | Pong
    | Fault
    | LeftOut
    | Unreadable
)

Message = bytes | str
