"""Events on the line, as one closed union.

All instants are nanoseconds of the caller's clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal

from turngap.core.budget import DEFAULT_BUDGET_MS, TurnEnd


@dataclass(frozen=True, slots=True)
class UserSpeech:
    """The user's turn `turn` sounds from `start_ns` to `end_ns` by the pacing schedule.

    `over_reply` says that it was meant to fall into the agent's reply to the turn before.
    """

    kind: ClassVar[Literal["UserSpeech"]] = "UserSpeech"
    turn: int
    start_ns: int
    end_ns: int
    over_reply: bool = False
    budget_ms: float = DEFAULT_BUDGET_MS


@dataclass(frozen=True, slots=True)
class UserBackchannel:
    """The person says "mm-hm" over the reply, from `at_ns` on, and wants no answer to it."""

    kind: ClassVar[Literal["UserBackchannel"]] = "UserBackchannel"
    at_ns: int


@dataclass(frozen=True, slots=True)
class AgentSpeech:
    """The agent began to speak. `received_ns`: arrival of the chunk that holds the onset.

    `lead_ns` is how much audio without speech was played directly before the onset. `spread_ns` is
    how far off the onset may be. More of the speech may correct an onset that was
    reported before: `instead_of_ns`. `dbfs` is the level at which it began.
    """

    kind: ClassVar[Literal["AgentSpeech"]] = "AgentSpeech"
    onset_ns: int
    received_ns: int
    lead_ns: int = 0
    spread_ns: int | None = None
    instead_of_ns: int | None = None
    dbfs: float | None = None


@dataclass(frozen=True, slots=True)
class AgentSilence:
    """The agent's speech was last audible at `at_ns`; `dbfs` of its loud parts, if known."""

    kind: ClassVar[Literal["AgentSilence"]] = "AgentSilence"
    at_ns: int
    dbfs: float | None = None


@dataclass(frozen=True, slots=True)
class AgentSound:
    """Something of the agent that is no speech sounded from `at_ns` on.

    `dbfs` is the level of its loudest 10 ms.
    """

    kind: ClassVar[Literal["AgentSound"]] = "AgentSound"
    at_ns: int
    dbfs: float


@dataclass(frozen=True, slots=True)
class AgentBed:
    """From `at_ns` on, sound of this level continues while no one speaks; None: no longer."""

    kind: ClassVar[Literal["AgentBed"]] = "AgentBed"
    at_ns: int
    dbfs: float | None


@dataclass(frozen=True, slots=True)
class PlayoutFlushed:
    """The dialect asked the caller to drop what it has not played yet (barge-in)."""

    kind: ClassVar[Literal["PlayoutFlushed"]] = "PlayoutFlushed"
    at_ns: int


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the agent's LLM called.

    Attributes:
        ms: how long the tool took, by the agent's clock; None: it has not come back.
        result: what it gave, as JSON, cut where it is long.
        error: why it gave none.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ms: float | None = None
    result: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class AgentMarks:
    """Marks that the agent reported for its own turn `agent_turn`.

    `marks` are mapped to the caller's clock, `raw` are as the agent's clock gave them. `counts` are
    other figures of the turn, `why` what the hold before it was chosen for, `error` what kept it
    from making its reply, or the whole of it; an empty one takes back what an earlier report of the
    turn said. `calls` are the tools that were called for it, in order; None: the agent does not
    tell. Where there are no marks, which also is so if they cannot be placed on the caller's clock,
    `told_ns`, when the report arrived, says to which of the user's turns it belongs.
    """

    kind: ClassVar[Literal["AgentMarks"]] = "AgentMarks"
    agent_turn: int
    marks: Mapping[str, int]
    raw: Mapping[str, int] = field(default_factory=dict[str, int])
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    why: str | None = None
    error: str | None = None
    calls: tuple[ToolCall, ...] | None = None
    told_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AgentFault:
    """The agent reported an error of its own in a message, which does not say of which turn."""

    kind: ClassVar[Literal["AgentFault"]] = "AgentFault"
    at_ns: int
    error: str


@dataclass(frozen=True, slots=True)
class AgentSilent:
    """The agent says why it has no reply to give, though nothing failed."""

    kind: ClassVar[Literal["AgentSilent"]] = "AgentSilent"
    at_ns: int
    why: str


@dataclass(frozen=True, slots=True)
class EndpointTold:
    """The agent said that it took the user's turn to be over, in the words of its protocol."""

    kind: ClassVar[Literal["EndpointTold"]] = "EndpointTold"
    at_ns: int


@dataclass(frozen=True, slots=True)
class UserTranscript:
    """The agent's final word on what it heard."""

    kind: ClassVar[Literal["UserTranscript"]] = "UserTranscript"
    at_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class AgentText:
    """A piece of what the agent says it speaks."""

    kind: ClassVar[Literal["AgentText"]] = "AgentText"
    at_ns: int
    text: str


@dataclass(frozen=True, slots=True)
class TurnBroken:
    """Something came at `at_ns` that keeps its turn from being measured, and `why`.

    It is a message that could not be read, or one too many.
    """

    kind: ClassVar[Literal["TurnBroken"]] = "TurnBroken"
    at_ns: int
    why: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The caller is done with `turn`: its reply ended, or one of the ways in which none will.

    `more` of the reply is `due` by the agent's words, or `may` come, as none called it whole.
    """

    kind: ClassVar[Literal["TurnEnded"]] = "TurnEnded"
    turn: int
    at_ns: int
    reason: TurnEnd
    more: Literal["due", "may"] | None = None


Event = (
    UserSpeech
    | UserBackchannel
    | AgentSpeech
    | AgentSilence
    | AgentSound
    | AgentBed
    | PlayoutFlushed
    | AgentMarks
    | AgentFault
    | AgentSilent
    | EndpointTold
    | UserTranscript
    | AgentText
    | TurnBroken
    | TurnEnded
)
# What `kind` an event has: the name by which it is stored, whatever its class is called.
EventKind = Literal[
    "UserSpeech",
    "UserBackchannel",
    "AgentSpeech",
    "AgentSilence",
    "AgentSound",
    "AgentBed",
    "PlayoutFlushed",
    "AgentMarks",
    "AgentFault",
    "AgentSilent",
    "EndpointTold",
    "UserTranscript",
    "AgentText",
    "TurnBroken",
    "TurnEnded",
]


def plain_event(event: Event) -> dict[str, Any]:
    """Convert an event to the form in which JSON stores it."""
    return {"event": event.kind, **asdict(event)}


def calls_of(agent_turns: Sequence[AgentMarks]) -> tuple[ToolCall, ...] | None:
    """Collect all tool calls of a turn, whatever their result; None if they are not reported."""
    told = [turn.calls for turn in agent_turns if turn.calls is not None]
    return tuple(call for calls in told for call in calls) if told else None
