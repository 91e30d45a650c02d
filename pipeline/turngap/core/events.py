"""Events on the line, as one closed union, and the turn that is tracked from them.

All instants are nanoseconds of the caller's clock.

A dialect makes a `Report` or `Marks` of an agent's message, and what listens to the line sets its
instant (`stamped`, `Marks.placed`). The agent's values are checked when a report is made, so that
no dialect has to: those that can be kept become finite, printable and bounded; the rest are
refused.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, TypeVar, cast

from turngap.core.budget import DEFAULT_BUDGET_MS, Outcome, TurnEnd
from turngap.core.counts import (
    AGENT_GAP,
    COLD,
    OTHERS,
    OUTSIDE,
    RATE,
    SERVER,
    THOUGHT,
    THOUGHT_MS,
    TTFT,
    USER_BOT_LATENCY,
    WINDOW,
    add_counts,
)
from turngap.core.stages import Stage
from turngap.core.untrusted import MOST_NAME, MOST_SENTENCE, finite, instant, plain, text_of, whole

# What one message about a turn may hold. The built-in agent reports 11 marks and 20 counts; a task
# of ten steps calls 10 to 30 tools.
MOST_NAMES = 100
MOST_CALLS = 100

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class UserSpeech:
    """The user's turn `turn` sounds from `start_ns` to `end_ns` by the pacing schedule.

    `over_reply` says that the turn is meant to interrupt the agent's reply to the turn before.
    """

    kind: ClassVar[Literal["UserSpeech"]] = "UserSpeech"
    turn: int
    start_ns: int
    end_ns: int
    over_reply: bool = False
    budget_ms: float = DEFAULT_BUDGET_MS


@dataclass(frozen=True, slots=True)
class UserBackchannel:
    """The person says "mm-hm" over the reply, from `at_ns` on, and expects no answer."""

    kind: ClassVar[Literal["UserBackchannel"]] = "UserBackchannel"
    at_ns: int


@dataclass(frozen=True, slots=True)
class AgentSpeech:
    """The agent began to speak. `received_ns`: arrival of the chunk that holds the onset.

    `lead_ns` is how much audio without speech was played directly before the onset. `spread_ns` is
    how far off the onset may be. `instead_of_ns` is an onset reported before, which this event
    corrects because more of the speech was heard. `dbfs` is the level at the onset. `playout_ns` is
    how much later a playout buffer would play the onset, if the line has packets.
    """

    kind: ClassVar[Literal["AgentSpeech"]] = "AgentSpeech"
    onset_ns: int
    received_ns: int
    lead_ns: int = 0
    spread_ns: int | None = None
    instead_of_ns: int | None = None
    dbfs: float | None = None
    playout_ns: int | None = None


@dataclass(frozen=True, slots=True)
class AgentSilence:
    """The agent's speech was last audible at `at_ns`; `dbfs` of its loud parts, if known."""

    kind: ClassVar[Literal["AgentSilence"]] = "AgentSilence"
    at_ns: int
    dbfs: float | None = None


@dataclass(frozen=True, slots=True)
class AgentSound:
    """A sound of the agent that is no speech, from `at_ns` on.

    `dbfs` is the level of its loudest 10 ms.
    """

    kind: ClassVar[Literal["AgentSound"]] = "AgentSound"
    at_ns: int
    dbfs: float


@dataclass(frozen=True, slots=True)
class AgentBed:
    """A sound of this level continues from `at_ns` while no one speaks; None if it stopped."""

    kind: ClassVar[Literal["AgentBed"]] = "AgentBed"
    at_ns: int
    dbfs: float | None


@dataclass(frozen=True, slots=True)
class Flush:
    """Request to drop audio that has not been played yet (barge-in).

    `guessed`: the agent sent no such message, but did something that implies it.
    """

    kind: ClassVar[Literal["PlayoutFlushed"]] = "PlayoutFlushed"
    at_ns: int = field(default=0, kw_only=True)
    guessed: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class TurnOver:
    """The agent says, in a message of its protocol, that it considers the person's turn over."""

    kind: ClassVar[Literal["EndpointTold"]] = "EndpointTold"
    at_ns: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class Transcript:
    """The final transcript of what the agent heard."""

    kind: ClassVar[Literal["UserTranscript"]] = "UserTranscript"
    at_ns: int = field(default=0, kw_only=True)
    text: str

    def __post_init__(self) -> None:
        _set(self, text=text_of(self.text))


@dataclass(frozen=True, slots=True)
class ReplyText:
    """A piece of the text that the agent says it speaks."""

    kind: ClassVar[Literal["AgentText"]] = "AgentText"
    at_ns: int = field(default=0, kw_only=True)
    text: str

    def __post_init__(self) -> None:
        _set(self, text=text_of(self.text))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that the agent's LLM called.

    Attributes:
        ms: how long the tool took, by the agent's clock; None if it has not returned.
        result: its result as JSON, cut if it is long.
        error: why it returned no result.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ms: float | None = None
    result: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks that the agent reports for its own turn `agent_turn`.

    Raises (when made):
        ValueError: the report has no turn, or its parts have the wrong shape.

    Attributes:
        marks: instants of the agent's clock as a dialect reports them; `placed` maps them to the
            caller's.
        raw: the marks on the agent's clock, once they are placed.
        counts: other figures of the turn by name.
        why: the reason for the hold before the turn.
        error: the reason why the agent made only part of its reply or none; an empty one withdraws
            the error of an earlier report.
        calls: the tools that were called for the turn, in order; None if the agent does not report
            them.
        told_ns: when the report arrived. If there are no marks, or they cannot be placed on the
            caller's clock, it decides to which of the user's turns the report belongs.
        left_out: the parts of the message that were refused, each with the reason.
    """

    kind: ClassVar[Literal["AgentMarks"]] = "AgentMarks"
    agent_turn: int
    marks: Mapping[str, int]
    raw: Mapping[str, int] = field(default_factory=dict[str, int], kw_only=True)
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    why: str | None = None
    error: str | None = None
    calls: tuple[ToolCall, ...] | None = None
    told_ns: int | None = field(default=None, kw_only=True)
    left_out: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        left_out: list[str] = []
        _set(
            self,
            agent_turn=whole(self.agent_turn),
            marks=_named(self.marks, "mark", instant, left_out),
            counts=_named(self.counts, "count", finite, left_out),
            why=_sentence(self.why),
            error=_sentence(self.error),
            calls=None if self.calls is None else _calls(self.calls, left_out),
            left_out=tuple(left_out),
        )

    def placed(self, offset_ns: int | None, at_ns: int) -> "Marks":
        """Return the report with its marks on the caller's clock, as it arrived at `at_ns`.

        `offset_ns`: the agent's clock minus the caller's; if unknown, no mark can be placed.
        """
        marks = {} if offset_ns is None else {k: ns - offset_ns for k, ns in self.marks.items()}
        return _with(self, marks=marks, raw=self.marks, told_ns=at_ns)

    def then(self, later: "Marks") -> "Marks":
        """Return this report of a turn with a later one of the same turn merged into it."""
        return _with(
            self,
            marks={**self.marks, **later.marks},
            raw={**self.raw, **later.raw},
            counts={**self.counts, **later.counts},
            why=later.why or self.why,
            error=self.error if later.error is None else later.error,
            calls=self.calls if later.calls is None else later.calls,
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """The agent reports an error of its own, or refuses a message from the caller (`refuses`).

    The message does not name the turn. `error_kind` is the kind of a `fatal` error.
    """

    kind: ClassVar[Literal["AgentFault"]] = "AgentFault"
    at_ns: int = field(default=0, kw_only=True)
    error: str
    fatal: bool = False
    refuses: bool = False
    error_kind: str = field(default="agent.refused", compare=False)

    def __post_init__(self) -> None:
        _set(self, error=text_of(self.error, MOST_SENTENCE), fatal=bool(self.fatal))


@dataclass(frozen=True, slots=True)
class NoReply:
    """The agent says why it has no reply to give, though nothing failed."""

    kind: ClassVar[Literal["AgentSilent"]] = "AgentSilent"
    at_ns: int = field(default=0, kw_only=True)
    why: str

    def __post_init__(self) -> None:
        _set(self, why=text_of(self.why, MOST_SENTENCE))


@dataclass(frozen=True, slots=True)
class TurnBroken:
    """A message at `at_ns` that makes its turn impossible to measure; `why` has the reason.

    It could not be read, or was one message too many.
    """

    kind: ClassVar[Literal["TurnBroken"]] = "TurnBroken"
    at_ns: int
    why: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The caller is done with `turn`: its reply has ended, or `reason` says why there is none.

    `more` of the reply is `due` by the agent's word, or `may` come if it did not call the reply
    whole.
    """

    kind: ClassVar[Literal["TurnEnded"]] = "TurnEnded"
    turn: int
    at_ns: int
    reason: TurnEnd
    more: Literal["due", "may"] | None = None


Report = Flush | TurnOver | Transcript | ReplyText | Fault | NoReply
Event = (
    UserSpeech
    | UserBackchannel
    | AgentSpeech
    | AgentSilence
    | AgentSound
    | AgentBed
    | Report
    | Marks
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


# What of a report is not stored with its turn.
_NOT_STORED = {"guessed", "left_out", "fatal", "refuses", "error_kind"}

_Report = TypeVar("_Report", bound=Report)


def stamped(report: _Report, at_ns: int) -> _Report:
    """Return a report with the instant of its arrival."""
    return _with(report, at_ns=at_ns)


def plain_event(event: Event) -> dict[str, Any]:
    """Convert an event to the form in which JSON stores it."""
    stored = {name: value for name, value in asdict(event).items() if name not in _NOT_STORED}
    return {"event": event.kind, **stored}


def _with(event: Value, **values: Any) -> Value:
    """Copy an event with other values, without repeating the checks of its making."""
    copied = copy(event)
    _set(copied, **values)
    return copied


def _set(instance: Any, **values: Any) -> None:
    """Set values of a frozen instance that is being made."""
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
    kept: dict[str, Value] = {}
    for key, value in cast("Mapping[Any, Any]", values).items():
        if len(kept) == MOST_NAMES:
            left_out.append(f"more than {MOST_NAMES} {what}s in a message")
            break
        name = text_of(key, MOST_NAME)
        try:
            kept[name] = read(value)
        except ValueError as e:
            left_out.append(f"the {what} {name}: {e}")
    return kept


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
    return ToolCall(
        name, cast("dict[str, Any]", arguments), ms, _sentence(call.result), _sentence(call.error)
    )


def calls_of(agent_turns: Sequence[Marks]) -> tuple[ToolCall, ...] | None:
    """Collect all tool calls of a turn, whatever their result; None if they are not reported."""
    told = [turn.calls for turn in agent_turns if turn.calls is not None]
    return tuple(call for calls in told for call in calls) if told else None


# Of a reply; what was never heard adds nothing to them.
_OF_THE_REPLY = frozenset(
    {"hold_ms", TTFT, RATE, WINDOW, THOUGHT, THOUGHT_MS, COLD, OTHERS, OUTSIDE, *SERVER.values()}
    | {AGENT_GAP, USER_BOT_LATENCY}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedTurn:
    """One finished turn. Instants are ns of the caller's clock, None if they never came.

    Attributes:
        marks: the marks that separate the stages, the caller's and the agent's, on the caller's
            clock.
        agent_turns: everything the agent reported in this turn, also for replies never heard.
        why_no_gap: the reason if `gap_ns` is None.
        why_no_marks: why the reply's stages use none of the agent's marks, if it reports any.
        error: the agent's reason for making none or only part of the reply, or the reason why the
            caller could not measure the turn.
        first_answer_ns: time from the user's end to the first word that is no hold phrase, also if
            it came after the caller had stopped waiting.
        parts_ns: the reply's stretches of speech; an end is None while the stretch lasts.
        false_starts: how often the agent dropped speech that it had just begun, and replaced it.
        backchannels_heard: how often the agent said "mm-hm" while the user spoke.
        ambiguous: why the speech that was heard may belong to another turn.
        claimed_by: the earlier turn that the speech may answer, if it is ambiguous.
        guesses: decisions that only the shape of the sound supports.
        yield_ns: barge-in only: time from the user's onset to the agent's silence at the caller's
            ear; None if the reply ended by itself, or continued when the turn ended.
        endpoints_ns: when the agent decided that this turn was over, too early or not, in order;
            None if it does not say.
        lead_ns: the part of the gap in which the agent played inaudible audio up to its onset.
        first_sound_ns: the agent's first sound after the person's end, speech or not; if it cut in,
            its first sound after the person's start.
        onset_spread_ns: how far off the onset may be, or the first answer if that is more.
        playout_ns: how much later a playout buffer would play the onset, if the line has packets.
        bed_dbfs: the level of audible background that the agent plays while no one speaks.
        waited_ns: time from the user's end to the user's next word, in an abandoned turn.
    """

    turn: int
    outcome: Outcome
    ended: TurnEnd
    user_start_ns: int
    user_end_ns: int
    ended_ns: int
    onset_ns: int | None = None
    gap_ns: int | None = None
    why_no_gap: str | None = None
    why_no_marks: str | None = None
    error: str | None = None
    stages: tuple[Stage, ...] = ()
    marks: Mapping[str, int]
    agent_turns: tuple[Marks, ...] = ()
    transcript: str = ""
    reply: str = ""
    first_answer_ns: int | None = None
    parts_ns: tuple[tuple[int, int | None], ...] = ()
    false_starts: int = 0
    backchannels_heard: int = 0
    ambiguous: tuple[str, ...] = ()
    yield_ns: int | None = None
    lead_ns: int | None = None
    endpoints_ns: tuple[int, ...] | None = None
    first_sound_ns: int | None = None
    onset_spread_ns: int | None = None
    playout_ns: int | None = None
    bed_dbfs: float | None = None
    waited_ns: int | None = None
    claimed_by: int | None = None
    guesses: tuple[str, ...] = ()

    @property
    def heard_agent_turn(self) -> Marks | None:
        """Return the agent's own turn that the stages are based on; None if it reported none.

        If none of its turns has marks on the caller's clock, return the last one.
        """
        reported = self.agent_turns
        if self.onset_ns is not None and reported and not any(each.marks for each in reported):
            return reported[-1]
        return next(
            (each for each in reported if each.marks and each.marks.items() <= self.marks.items()),
            None,
        )

    @property
    def counts(self) -> dict[str, float]:
        """Return the sums of all agent turns' counts; the counts of a reply are the heard one's."""
        counts: dict[str, float] = {}
        for reported in self.agent_turns:
            add_counts(counts, reported.counts)
        if (heard := self.heard_agent_turn) is not None:
            counts = {name: n for name, n in counts.items() if name not in _OF_THE_REPLY}
            counts |= {name: n for name, n in heard.counts.items() if name in _OF_THE_REPLY}
        return counts


def unfinished(speech: UserSpeech, end: TurnEnded, why: str) -> TrackedTurn:
    """Build a turn from the caller's own facts, if nothing else is usable."""
    return TrackedTurn(
        turn=speech.turn,
        outcome="error",
        ended=end.reason,
        user_start_ns=speech.start_ns,
        user_end_ns=speech.end_ns,
        why_no_gap=why,
        error=why,
        marks={"user_end": speech.end_ns},
        ended_ns=end.at_ns,
    )
