"""What a run leaves on disk, as models."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from turngap.core.budget import REPLIED, STARVED_MS, Outcome, TurnEnd
from turngap.core.clock import LONGEST_MS
from turngap.core.columns import TURN_COLUMNS, Row, row_of
from turngap.core.events import ToolCall
from turngap.core.labels import MOST_LABEL
from turngap.core.secrets import (
    header_without_secret,
    spoken_without_secrets,
    text_without_secrets,
    texts_without_secrets,
    without_secrets,
)
from turngap.core.stages import Stage
from turngap.core.stats import Proportion

# Changes whenever a figure would come out differently from the same events.
METRICS_VERSION = 3
# What a run's `agent` holds of an agent at a URL once a line to it is open.
TOLD_BY_THE_LINE = ("dialect", "line_rate_hz")
# What a run's `stand_ins` say where a script answered in place of a model.
SIMULATED_LLM = "simulated LLM"


# Secrets are removed when a record is made, so that none can be shown, and again when it is
# written, since `model_copy` validates nothing.
Settings = Annotated[
    dict[str, Any], AfterValidator(without_secrets), PlainSerializer(without_secrets)
]
# What an agent, an engine or an error says, which may repeat a key.
Header = Annotated[
    str, AfterValidator(header_without_secret), PlainSerializer(header_without_secret)
]
Said = Annotated[str, AfterValidator(text_without_secrets), PlainSerializer(text_without_secrets)]
Spoken = Annotated[
    str, AfterValidator(spoken_without_secrets), PlainSerializer(spoken_without_secrets)
]
Events = Annotated[tuple[dict[str, Any], ...], AfterValidator(texts_without_secrets)]


Label = Annotated[
    str,
    Field(max_length=MOST_LABEL),
    AfterValidator(text_without_secrets),
    PlainSerializer(text_without_secrets),
]


def _notes(notes: dict[str, int]) -> dict[str, int]:
    cleaned: Counter[str] = Counter()
    for note, times in notes.items():
        cleaned[text_without_secrets(note)] += times
    return dict(cleaned)


def _calls(calls: tuple[ToolCall, ...] | None) -> tuple[ToolCall, ...] | None:
    return calls and tuple(
        ToolCall(
            text_without_secrets(call.name),
            without_secrets(call.arguments),
            call.ms,
            call.result and text_without_secrets(call.result),
            call.error and text_without_secrets(call.error),
        )
        for call in calls
    )


# What was odd about what an agent sent, and how often.
Notes = Annotated[dict[str, int], AfterValidator(_notes), PlainSerializer(_notes)]
Calls = Annotated[tuple[ToolCall, ...] | None, AfterValidator(_calls)]

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
BudgetMs = Annotated[float, Field(gt=0, le=LONGEST_MS)]


def with_keys(*names: str) -> AfterValidator:
    """Require that a stored mapping has at least these keys."""

    def check(values: dict[str, Any]) -> dict[str, Any]:
        if missing := [name for name in names if name not in values]:
            raise ValueError(f"lacks {', '.join(missing)}")
        return values

    return AfterValidator(check)


# Scenario, turn, phase and round.
TurnKey = tuple[str, int, float, int]


class Stored(BaseModel):
    """Whatever is part of a stored document."""

    # JSON has no inf or nan: written as null, they could not be read back. Dataclasses check
    # nothing themselves, so their instances are checked here.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, revalidate_instances="always"
    )


class Document(Stored):
    """A stored document, or a line of one. Read and write it with `turngap.store.documents`.

    A type whose fields change gets a `schema_version` of its own; no other version is read.
    """

    schema_version: int = 1

    @classmethod
    def current_version(cls) -> int:
        """Return the one version that is read and written."""
        return cls.model_fields["schema_version"].default


class MarkRecord(Stored):
    """A named instant. `at_ns`: caller's clock; `raw_ns`: as the agent's own clock gave it."""

    name: str
    at_ns: int
    vantage: Literal["caller", "agent"]
    raw_ns: int | None = None


class PacingRecord(Stored):
    """How late the caller itself was between the user's start and the agent's onset.

    `late_ms_*`: its packets, against their schedule. `loop_lag_ms_max`: its event loop, which
    stamps what arrives. A turn is starved when either exceeds the run's `starved_ms`.
    """

    packets: int
    late_ms_p50: float | None
    late_ms_max: float | None
    loop_lag_ms_max: float | None = None
    starved: bool

    @property
    def error_ms(self) -> float:
        """By how much the gap may read long for it: the user was sent late, the agent read late."""
        return (self.late_ms_max or 0.0) + (self.loop_lag_ms_max or 0.0)


class AudioRecord(Stored):
    """Where the turn lies in its stereo file (left user, right agent), ms from the file's start.

    `label_error_ms`: how far off the person's end may be, and with it the gap; None: nobody said.
    """

    file: str
    user_start_ms: float
    user_end_ms: float
    onset_ms: float | None
    label_error_ms: float | None = None


class BackchannelRecord(Stored):
    """A backchannel laid over this turn's reply, and whether the agent stopped for it."""

    say: str
    start_ms: float
    reply_stopped: bool


class PauseRecord(Stored):
    """A labelled silence of the person inside their turn, ms from the turn's first sound."""

    start_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        return self.end_ms - self.start_ms


class AnswerRecord(Stored):
    """Whether the turn was answered rightly, judged on what was heard and on what was called.

    `failed` says what of the expectation was not met, of a wrong one; `why` is the reason why none
    was judged. `source` says whose words `heard` are: the agent's own, or a recogniser's.
    """

    verdict: Literal["right", "wrong", "not_judged"]
    source: Literal["agent text", "transcribed"] = "agent text"
    heard: Spoken = ""
    failed: tuple[Said, ...] = ()
    why: str | None = None

    @property
    def right(self) -> bool | None:
        """Whether the reply was right; None where that was not judged."""
        return None if self.verdict == "not_judged" else self.verdict == "right"


class JudgedWith(Stored):
    """What a run was judged with after it was played.

    `closed_domain`: a recogniser that hears nothing but sentences that it was given, whatever is
    said. `prompt`: what a judge model was told.
    """

    backend: str
    settings: Settings
    closed_domain: bool = False
    prompt: str | None = None
    utc: str


class JudgeRecord(Stored):
    """A judge model's verdict on a turn, and why; `right` is None where it gave none.

    `source` says whose words it judged: the agent's own, or a recogniser's.
    """

    right: bool | None
    why: Said = ""
    source: Literal["agent text", "transcribed"] = "agent text"


class Turn(Document):
    """One line of `turns.jsonl`.

    `turn` and `repeat` count from 1. `gap_ms` is None with the reason in `why_no_gap`. `error` is
    what the agent said that kept it from making the reply, or the whole of it; or what kept the
    caller from measuring the turn. `notes` say what else was odd about what the agent sent, such as
    values that were left out, and how often.
    `speech_ms` is the time from the person's first sound to the last, and `pauses` are the labelled
    silences between them; None: nobody looked for any. `endpoints_ms`: when the agent decided that
    the turn was over, each time, from the person's first sound on; None: it does not say.
    `agent_turns` holds every turn the agent reported meanwhile, also those never heard; `faults`
    the errors that the agent itself reported. `counts` are figures that the agent counted by name,
    as tokens spent on answers that nobody heard; `endpoint_why` is what it chose the hold for that
    ended the user's turn. `llm` names the LLM that answered, where a conversation may change it.
    `calls` are the tools that the agent called, in order; None: it does not tell. `answer` is
    whether the turn was answered rightly, by the agent's own words; `transcribed` the same by its
    recorded sound, where a recogniser was asked (the run's `transcribed_with`). `left_out` is the
    reason why no figure of a run counts this turn. `judged` is a judge model's verdict.
    """

    scenario: str
    turn: int
    repeat: int
    phase_ms: float = 0.0
    say: str
    speech_ms: float | None = None
    pauses: tuple[PauseRecord, ...] | None = None
    endpoints_ms: tuple[float, ...] | None = None
    outcome: Outcome
    ended: TurnEnd
    budget_ms: BudgetMs
    gap_ns: int | None
    gap_ms: float | None
    why_no_gap: Said | None
    error: Said | None = None
    stages: tuple[Stage, ...]
    transcript: Spoken
    reply: Spoken
    lead_ms: float | None
    yield_ms: float | None
    backchannels: tuple[BackchannelRecord, ...] = ()
    marks: tuple[MarkRecord, ...]
    agent_turns: tuple[tuple[MarkRecord, ...], ...] = ()
    pacing: PacingRecord
    audio: AudioRecord | None
    faults: tuple[Said, ...] = ()
    notes: Notes = {}
    counts: dict[str, float] = {}
    endpoint_why: Said | None = None
    llm: str | None = None
    calls: Calls = None
    answer: AnswerRecord = AnswerRecord(
        verdict="not_judged", why="nothing is expected of this reply"
    )
    transcribed: AnswerRecord | None = None
    judged: JudgeRecord | None = None
    left_out: str | None = None
    events: Events = ()

    @property
    def key(self) -> TurnKey:
        """What tells the turn from all others of its run, and finds its twin in another run."""
        return (self.scenario, self.turn, self.phase_ms, self.repeat)

    @property
    def take(self) -> tuple[str, int, int]:
        """The recorded turn that was played, and in which round."""
        return (self.scenario, self.turn, self.repeat)

    @property
    def replied(self) -> bool:
        """Whether the agent replied after the person's end, within the budget or late."""
        return self.outcome in REPLIED

    @property
    def stage_ms(self) -> dict[str, float]:
        """What each stage took, by name; several unexplained pieces are added up."""
        spent: dict[str, float] = {}
        for stage in self.stages:
            spent[stage.name] = spent.get(stage.name, 0.0) + stage.ms
        return spent

    @property
    def right(self) -> bool | None:
        """Whether the reply was right; None where that was not judged."""
        return self.answer.right

    def instants(self, event: str, field: str = "at_ns") -> list[int]:
        """Return when the events of that name were, in ns; a blank text is no event."""
        found = [e for e in self.events if e.get("event") == event]
        told = [e for e in found if str(e.get("text", event)).strip()]
        return [at for e in told if isinstance(at := e.get(field), int)]

    def row(self) -> Row:
        """The turn as a flat row of plain values, for a table of turns.

        The columns are the same for every turn: `turngap.core.columns.TURN_COLUMNS`, which
        docs/data.md lists. Where the turn has no value for one, it is None.
        """
        return row_of(TURN_COLUMNS, self)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        for name in ("scenario", "turn", "repeat", "outcome", "gap_ms"):
            yield name, getattr(self, name)


class Quantiles(Stored):
    """Absolute errors or other values in ms; a percentile is None where n is too small."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class CalibrationRecord(Stored):
    """Error of the instrument against injected, known gaps on this machine.

    `dialect`: that of the loopback agent; empty in runs from before there were several. `rate` is
    of the person's audio on the wire and `agent_rate` of the agent's, Hz; None: not known.
    """

    error_ms: Quantiles
    signed_p50_ms: float | None
    note: str = ""
    dialect: str = ""
    rate: int | None = None
    agent_rate: int | None = None


class OffsetRecord(Stored):
    """Agent's clock minus caller's clock, from the fastest of `n` exchanges; None: not answered."""

    offset_ns: int | None
    bound_ns: int | None
    n: int


def worse_offset(a: OffsetRecord | None, b: OffsetRecord) -> OffsetRecord:
    """The comparison with the wider bound speaks for the run; an unanswered one says nothing."""
    if a is None or a.bound_ns is None:
        return b
    return b if b.bound_ns is not None and b.bound_ns > a.bound_ns else a


class MachineRecord(Stored):
    """Fingerprint of the machine: runs from different ones are not comparable as they are."""

    system: str
    python: str
    cpu: str
    cores: int
    memory_gib: float
    fingerprint: str


class PlanRecord(Stored):
    """How a replay was asked for, without its secrets, so that it can be continued.

    `backends` and `sets` are the agent's overrides, `dialect`, `headers` and `subprotocols` are how
    a URL is spoken to. `files` are the scenarios, in the order of play.
    """

    agent: Said
    backends: dict[str, str] = {}
    sets: tuple[Said, ...] = ()
    seed: int | None = None
    marks: bool = True
    dialect: Said = ""
    headers: tuple[Header, ...] = ()
    subprotocols: tuple[Said, ...] = ()
    library: str
    files: tuple[str, ...]
    rounds: int
    phase: int = 0
    budget_ms: float | None = None
    greeting_ms: float | None = None
    calibration_turns: int = 0


class PieceRecord(Stored):
    """A part of a run that was interrupted and continued; `turns` are those that it added.

    `finished_utc` is None where the piece was killed. `failure` is what ended it otherwise.
    `listener` is as in a run.
    """

    started_utc: str
    finished_utc: str | None = None
    turns: int
    turngap_version: str
    commit: str | None
    machine: MachineRecord
    clock_offset: OffsetRecord | None = None
    calibration: CalibrationRecord | None = None
    listener: Said | None = None
    failure: Said | None = None


class HeldOutRecord(Stored):
    """How often a model was right on dialogues that were held out when it was made.

    It comes with the model and was not measured in the run. `right` is of all turns of `dialogues`
    dialogues in writing; its interval allows for turns of one dialogue being alike.
    """

    model: str
    dialogues: int
    right: Proportion


class RunRecord(Document):
    """`run.json`. Written at the start, again when the run ends (`finished_utc`).

    `starved_ms`: how late the caller may be in a turn before the turn counts as starved.
    `planned_turns`: 0 where nobody planned them, as in a live conversation. `stand_ins`: what was
    not real, in words: `SIMULATED_LLM`, "closed-domain recogniser", "synthetic voices". `held_out`:
    what is known of the agent's models beside this run. `found`: what its engines chose of what ran
    on its machine, in a line by kind. `listener`: in words, who listens at the agent's port, where
    that may be another than what `--start` started.
    `voices`: what spoke the turns without a recording, by scenario. `pieces`: empty but for a run
    that was continued, of which the other fields are the first piece's; `clock_offset` and
    `calibration` are then the worst of all pieces'. `label`: what the user calls the run.
    """

    metrics_version: int = METRICS_VERSION
    turngap_version: str
    commit: str | None
    name: str
    started_utc: str
    finished_utc: str | None = None
    machine: MachineRecord
    agent: Settings
    settings: Settings
    scenario_hashes: dict[str, str]
    voices: dict[str, Said] = Field(default_factory=dict[str, Said])
    planned_turns: int
    budget_ms: BudgetMs
    starved_ms: float = STARVED_MS
    stand_ins: tuple[str, ...] = ()
    held_out: tuple[HeldOutRecord, ...] = ()
    found: dict[str, Said] = Field(default_factory=dict[str, Said])
    listener: Said | None = None
    plan: PlanRecord | None = None
    pieces: tuple[PieceRecord, ...] = ()
    clock_offset: OffsetRecord | None = None
    calibration: CalibrationRecord | None = None
    transcribed_with: JudgedWith | None = None
    judged_with: JudgedWith | None = None
    valid: bool = True
    why_invalid: tuple[Said, ...] = ()
    failure: Said | None = None
    label: Label = ""

    @property
    def listeners(self) -> tuple[str, ...]:
        """The `listener` of each piece that has one; the same words once."""
        said = [piece.listener for piece in self.pieces] or [self.listener]
        return tuple(dict.fromkeys(words for words in said if words))

    @property
    def measured_commit(self) -> str:
        """The commit of what was measured; empty if unknown.

        Of an agent from another checkout it is that one's, else that around the working directory.
        """
        return str(self.agent.get("commit") or self.commit or "")
