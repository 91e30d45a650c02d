"""Models of a stored turn, of the instrument's state and of the machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from turngap.core.budget import REPLIED, Outcome, TurnEnd
from turngap.core.columns import TURN_COLUMNS, Row, row_of
from turngap.core.stages import Stage
from turngap.core.stats import Proportion
from turngap.core.stored import (
    BudgetMs,
    Calls,
    Counts,
    Document,
    Events,
    Notes,
    Said,
    Settings,
    Stored,
)

# What the note of a turn begins with if what was heard may belong to another.
AMBIGUOUS = "ambiguous: "
# A hole this soon after a reply's onset parts its first words from the rest.
DISCONTIGUOUS_MS = 2000.0

# Scenario, turn, phase and round.
TurnKey = tuple[str, int, float, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRecord:
    """A named instant. `at_ns`: caller's clock; `raw_ns`: as the agent's own clock gave it."""

    name: Said
    at_ns: int
    vantage: Literal["caller", "agent"]
    raw_ns: int | None = None


class PacingRecord(Stored):
    """The caller's own lateness between the user's start and the agent's onset.

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
        """Return the most that the caller's lateness (sent late, read late) can add to the gap."""
        return (self.late_ms_max or 0.0) + (self.loop_lag_ms_max or 0.0)


class AudioRecord(Stored):
    """The place of a turn in its stereo file (left user, right agent), ms from the file's start.

    `label_error_ms`: how far off the person's end may be, and with it the gap; None: no one said.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRecord:
    """A labelled silence of the person inside their turn, ms from the turn's first sound."""

    start_ms: float
    end_ms: float

    @property
    def ms(self) -> float:
        return self.end_ms - self.start_ms


NO_TEXT = "the agent did not report what it said"


class HoleRecord(Stored):
    """Silence within a reply: from when on, ms from the reply's onset, and for how long."""

    at_ms: float
    ms: float


class AnswerRecord(Stored):
    """A verdict on a turn's answer, judged on what was heard and on what was called.

    `failed` says what of the expectation was not met, of a wrong one; `why` is the reason why none
    was judged. `source` says whose words `heard` are: the agent's own, or a recogniser's.
    """

    verdict: Literal["right", "wrong", "not_judged"]
    source: Literal["agent text", "transcribed"] = "agent text"
    heard: Said = ""
    failed: tuple[Said, ...] = ()
    why: str | None = None

    @property
    def right(self) -> bool | None:
        """Return whether the reply was right; None if that was not judged."""
        return None if self.verdict == "not_judged" else self.verdict == "right"


class JudgedWith(Stored):
    """The recogniser with which a run was judged after it was played.

    `closed_domain`: a recogniser that hears nothing but sentences that it was given, whatever is
    said. `prompt`: the prompt of a judge model.
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
    `first_sound_ms` is the gap to the agent's first sound, speech or not; `onset_spread_ms` is how
    far off its first word may be; `bed_dbfs` is the level of what it plays while
    no one speaks, where that is audible. `waited_ms`, of an abandoned turn, is the time from the
    person's end to their next word.
    `first_answer_ms` is the gap to the first word that is no hold phrase, also of an answer that
    came too late to have a gap. `holes` are the reply's silences of over 150 ms in which no audio
    came, and any of 500 ms. `false_starts` counts what the agent broke off at once and replaced,
    and `backchannels_heard` its sounds of assent while the person spoke. `greeting_ms`, of a call's
    first turn: how long after the line was open the agent greeted.
    `speech_ms` is the time from the person's first sound to the last, and `pauses` are the labelled
    silences between them; None: no one looked for any. `endpoints_ms`: when the agent decided that
    the turn was over, each time, from the person's first sound on; None: it does not say.
    `agent_turns` holds every turn the agent reported meanwhile, also those never heard; `faults`
    the errors that the agent itself reported. `counts` are figures that the agent counted by name,
    as tokens spent on answers that no one heard; `endpoint_why` is what it chose the hold for that
    ended the user's turn. `llm` names the LLM that answered, where a conversation may change it.
    `calls` are the tools that the agent called, in order; None: not reported. `answer` is
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
    first_answer_ms: float | None = None
    holes: tuple[HoleRecord, ...] = ()
    false_starts: int = 0
    backchannels_heard: int = 0
    greeting_ms: float | None = None
    error: Said | None = None
    stages: tuple[Stage, ...]
    transcript: Said
    reply: Said
    lead_ms: float | None
    yield_ms: float | None
    first_sound_ms: float | None = None
    onset_spread_ms: float | None = None
    bed_dbfs: float | None = None
    waited_ms: float | None = None
    backchannels: tuple[BackchannelRecord, ...] = ()
    marks: tuple[MarkRecord, ...]
    agent_turns: tuple[tuple[MarkRecord, ...], ...] = ()
    pacing: PacingRecord
    audio: AudioRecord | None
    faults: tuple[Said, ...] = ()
    notes: Notes = Field(default_factory=dict[str, int])
    counts: Counts = Field(default_factory=dict[str, float])
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
        """Return the key that identifies the turn in its run and finds its twin in another run."""
        return (self.scenario, self.turn, self.phase_ms, self.repeat)

    @property
    def take(self) -> tuple[str, int, int]:
        """Return the recorded turn that was played, and in which round."""
        return (self.scenario, self.turn, self.repeat)

    @property
    def call(self) -> tuple[str, float, int]:
        """Return the key of the call in its run: scenario, phase and round."""
        return (self.scenario, self.phase_ms, self.repeat)

    @property
    def lost(self) -> bool:
        """Return whether its call was lost: the line went, or the agent hung up without a reply."""
        return self.ended == "line_lost" or (self.ended == "hung_up" and self.gap_ms is None)

    @property
    def discontiguous(self) -> bool:
        """Return whether the reply had a hole before it had lasted for two seconds."""
        return any(hole.at_ms < DISCONTIGUOUS_MS for hole in self.holes)

    @property
    def ambiguous(self) -> bool:
        """Return whether what was heard may belong to another turn; a note says why."""
        return any(note.startswith(AMBIGUOUS) for note in self.notes)

    @property
    def replied(self) -> bool:
        """Return whether the agent replied after the person's end, within the budget or late."""
        return self.outcome in REPLIED

    @property
    def stage_ms(self) -> dict[str, float]:
        """Return the time of each stage by name; several unexplained pieces are added up."""
        spent: dict[str, float] = {}
        for stage in self.stages:
            spent[stage.name] = spent.get(stage.name, 0.0) + stage.ms
        return spent

    @property
    def right(self) -> bool | None:
        """Return whether the reply was right; None if that was not judged."""
        return self.answer.right

    def instants(self, event: str, field: str = "at_ns") -> list[int]:
        """Return when the events of that name were, in ns; a blank text is no event."""
        found = [e for e in self.events if e.get("event") == event]
        told = [e for e in found if str(e.get("text", event)).strip()]
        return [at for e in told if isinstance(at := e.get(field), int)]

    def row(self) -> Row:
        """Build a flat row of plain values from the turn, for a table of turns.

        The columns are the same for every turn: `turngap.core.columns.TURN_COLUMNS`, which
        docs/data.md lists. A missing value is None.
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
    """Return the comparison with the wider bound; an unanswered one never replaces another."""
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


class HeldOutRecord(Stored):
    """The share of right answers of a model on dialogues that were held out when it was made.

    It comes with the model and was not measured in the run. `right` is of all turns of `dialogues`
    dialogues in writing; its interval allows for turns of one dialogue being alike.
    """

    model: str
    dialogues: int
    right: Proportion
