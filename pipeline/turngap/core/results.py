"""A stored turn: a line of `turns.jsonl`, built from a tracked turn, and a table's row."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import Field

from turngap.core.budget import REPLIED, Outcome, TurnEnd
from turngap.core.clock import ns_to_ms
from turngap.core.counts import claimed_gap
from turngap.core.cue import Utterance
from turngap.core.events import EventKind, TrackedTurn, calls_of
from turngap.core.stages import AGENT_MARKS, STAGES, UNATTRIBUTED, Stage
from turngap.core.stored import (
    AnswerRecord,
    AudioRecord,
    BackchannelRecord,
    BudgetMs,
    Calls,
    Column,
    Counts,
    Document,
    Events,
    HoleRecord,
    JudgeRecord,
    LineTurn,
    MarkRecord,
    Notes,
    PacingRecord,
    PauseRecord,
    Row,
    Said,
    row_of,
)

# What the note of a turn begins with if what was heard may belong to another.
AMBIGUOUS = "ambiguous: "
# A hole this soon after a reply's onset parts its first words from the rest.
DISCONTIGUOUS_MS = 2000.0

# Scenario, turn, phase and round.
TurnKey = tuple[str, int, float, int]

UNJUDGED = AnswerRecord(verdict="not_judged", why="nothing is expected of this reply")


class Turn(Document):
    """One line of `turns.jsonl`.

    `turn` and `repeat` count from 1. `gap_ms` is None with the reason in `why_no_gap`. `error` is
    the agent's reason for making none or only part of the reply, or the reason why the caller could
    not measure the turn. `notes` count other oddities of the agent's messages, such as values that
    were left out. `first_sound_ms` is the gap to the agent's first sound, speech or not.
    `onset_spread_ms` is how far off the agent's first word may be, or the first word of its answer
    if that is further off. `playout_ms` is how much later the first word sounds behind a playout
    buffer (WebRTC). `bed_dbfs` is the level of the agent's audible background while no one speaks.
    `waited_ms`, of an abandoned turn, is the time from the person's end to their next word.
    `first_answer_ms` is the gap to the first word that is no hold phrase, also of an answer that
    came too late to have a gap. `holes` are the reply's silences: those over 150 ms in which no
    audio came, and all of 500 ms or more. `false_starts` counts speech that the agent dropped at
    once and replaced. `backchannels_heard` counts the agent's sounds of assent while the person
    spoke. `greeting_ms`, of a call's first turn, is the time from the open line to the agent's
    greeting. `speech_ms` is the time from the person's first sound to the last. `pauses` are the
    labelled silences between them; None if the turn was not searched for any. `endpoints_ms` are
    the times, from the person's first sound, at which the agent decided that the turn was over;
    None if it does not say. `agent_turns` holds every turn the agent reported meanwhile, also those
    never heard. `faults` are the errors that the agent itself reported. `counts` are the agent's
    own figures by name, such as tokens spent on answers that no one heard. `endpoint_why` is the
    reason for the hold that ended the user's turn. `llm` names the LLM that answered, if a
    conversation may change it. `calls` are the tools that the agent called, in order; None if not
    reported. `answer` says whether the answer was right by the agent's own words; `transcribed`
    says the same by its recorded sound, if a recogniser was asked (the run's `transcribed_with`).
    `talk_over_ms`, of a recorded call, is how long both sides spoke at once, and `dead_air_ms` how
    long both were silent for 2 s or more.
    `left_out` is the reason why no figure of a run counts this turn. `judged` is a judge model's
    verdict. `line` says what a line did to the turn; None without one.
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
    playout_ms: float | None = None
    bed_dbfs: float | None = None
    waited_ms: float | None = None
    talk_over_ms: float | None = None
    dead_air_ms: float | None = None
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
    answer: AnswerRecord = UNJUDGED
    transcribed: AnswerRecord | None = None
    judged: JudgeRecord | None = None
    left_out: str | None = None
    line: LineTurn | None = None
    events: Events = ()

    @classmethod
    def of(
        cls,
        turn: TrackedTurn,
        said: Utterance,
        *,
        pacing: PacingRecord,
        audio: AudioRecord | None,
        repeat: int = 1,
        phase_ms: float = 0.0,
        greeting_ms: float | None = None,
        holes: tuple[HoleRecord, ...] = (),
        backchannels: tuple[BackchannelRecord, ...] = (),
        faults: tuple[str, ...] = (),
        notes: Mapping[str, int] = MappingProxyType({}),
        llm: str | None = None,
        answer: AnswerRecord = UNJUDGED,
        left_out: str | None = None,
        line: LineTurn | None = None,
        events: Sequence[Mapping[str, Any]] = (),
    ) -> "Turn":
        """Build the record of a tracked turn; a turn without `audio` was not played."""
        heard = turn.heard_agent_turn
        odd = {AMBIGUOUS + why: 1 for why in turn.ambiguous} | dict.fromkeys(turn.guesses, 1)
        if turn.why_no_marks is not None:
            odd[f"no marks: {turn.why_no_marks}"] = 1
        return cls(
            scenario=said.scenario,
            turn=turn.turn,
            repeat=repeat,
            phase_ms=phase_ms,
            say=said.say,
            speech_ms=None if audio is None else ns_to_ms(turn.user_end_ns - turn.user_start_ns),
            pauses=said.pauses,
            endpoints_ms=None
            if turn.endpoints_ns is None
            else tuple(ns_to_ms(at - turn.user_start_ns) for at in turn.endpoints_ns),
            outcome=turn.outcome,
            ended=turn.ended,
            budget_ms=said.budget_ms,
            gap_ns=turn.gap_ns,
            gap_ms=_ms(turn.gap_ns),
            why_no_gap=turn.why_no_gap,
            first_answer_ms=_ms(turn.first_answer_ns),
            holes=holes,
            false_starts=turn.false_starts,
            backchannels_heard=turn.backchannels_heard,
            greeting_ms=greeting_ms,
            error=turn.error,
            stages=turn.stages,
            transcript=turn.transcript,
            reply=turn.reply,
            lead_ms=_ms(turn.lead_ns),
            yield_ms=_ms(turn.yield_ns),
            first_sound_ms=None
            if turn.first_sound_ns is None
            else ns_to_ms(turn.first_sound_ns - turn.user_end_ns),
            onset_spread_ms=_ms(turn.onset_spread_ns),
            playout_ms=_ms(turn.playout_ns),
            bed_dbfs=turn.bed_dbfs,
            waited_ms=_ms(turn.waited_ns),
            backchannels=backchannels,
            marks=()
            if audio is None
            else _marks(turn.marks, heard.raw if heard else {}, AGENT_MARKS),
            agent_turns=tuple(
                _marks(each.marks, each.raw, each.marks) for each in turn.agent_turns
            ),
            pacing=pacing,
            audio=audio,
            faults=faults,
            notes=odd | dict(notes),
            counts=turn.counts,
            endpoint_why=heard.why if heard else None,
            llm=llm,
            calls=calls_of(turn.agent_turns),
            answer=answer,
            left_out=left_out,
            line=line,
            events=[dict(event) for event in events],
        )

    @property
    def key(self) -> TurnKey:
        """Return the key that identifies the turn in its run and finds its twin in another run."""
        return (self.scenario, self.turn, self.phase_ms, self.repeat)

    @property
    def take(self) -> tuple[str, int, int]:
        """Return the recorded turn that was played, and its round."""
        return (self.scenario, self.turn, self.repeat)

    @property
    def call(self) -> tuple[str, float, int]:
        """Return the key of the call in its run: scenario, phase and round."""
        return (self.scenario, self.phase_ms, self.repeat)

    @property
    def lost(self) -> bool:
        """Return whether the call was lost: the line failed, or the agent hung up unanswered."""
        return self.ended == "line_lost" or (self.ended == "hung_up" and self.gap_ms is None)

    @property
    def discontiguous(self) -> bool:
        """Return whether the reply had a hole within its first two seconds."""
        return any(hole.at_ms < DISCONTIGUOUS_MS for hole in self.holes)

    @property
    def ambiguous(self) -> bool:
        """Return whether the reply may belong to another turn; a note says why."""
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

    def instants(self, event: EventKind, field: str = "at_ns") -> list[int]:
        """Return the instants of the events of that name, in ns; a blank text is no event."""
        found = [e for e in self.events if e.get("event") == event]
        spoken = [e for e in found if str(e.get("text", event)).strip()]
        return [at for e in spoken if isinstance(at := e.get(field), int)]

    def row(self) -> Row:
        """Build a flat row of plain values from the turn, for a table of turns.

        The columns are the same for every turn: `TURN_COLUMNS`, which
        docs/data.md lists. A missing value is None.
        """
        return row_of(TURN_COLUMNS, self)

    def __repr_args__(self) -> Iterator[tuple[str, Any]]:
        for name in ("scenario", "turn", "repeat", "outcome", "gap_ms"):
            yield name, getattr(self, name)


def _ms(ns: int | None) -> float | None:
    return None if ns is None else ns_to_ms(ns)


def _marks(
    marks: Mapping[str, int], raw: Mapping[str, int], of_agent: Collection[str]
) -> tuple[MarkRecord, ...]:
    return tuple(
        MarkRecord(
            name=name,
            at_ns=at_ns,
            vantage="agent" if name in of_agent else "caller",
            raw_ns=raw.get(name),
        )
        for name, at_ns in marks.items()
    )


# Each column of a table of turns. Whatever writes a turn as a row takes its columns from here:
# `Run.rows`, CSV, Parquet and docs/data.md.


def _stage(name: str) -> Column[Turn]:
    about = f"The stage `{name}`: from the mark before to the mark of this name, in ms."
    if name == UNATTRIBUTED:
        about = "The part of the gap that no mark explains, in ms; all of a negative gap."
    return Column(f"{name}_ms", "number", about, lambda turn: turn.stage_ms.get(name), True)


TURN_COLUMNS: Sequence[Column[Turn]] = (
    Column("scenario", "text", "The scenario's name.", lambda turn: turn.scenario),
    Column("turn", "integer", "Which turn of the scenario it is, from 1.", lambda turn: turn.turn),
    Column("repeat", "integer", "In which round it was played, from 1.", lambda turn: turn.repeat),
    Column(
        "phase_ms",
        "number",
        "By how much the person's audio was shifted against a frame of the agent's VAD, in ms.",
        lambda turn: turn.phase_ms,
    ),
    Column("say", "text", "What the person says.", lambda turn: turn.say),
    Column(
        "speech_ms",
        "number",
        "From the person's first sound to the last, in ms. Missing in runs from before it was "
        "stored.",
        lambda turn: turn.speech_ms,
        True,
    ),
    Column(
        "outcome",
        "text",
        "`answered`, `late`, `no_reply`, `cut_in`, `abandoned` or `error`. Every turn has one.",
        lambda turn: turn.outcome,
    ),
    Column(
        "ended",
        "text",
        "How the turn ended: `reply_done`, `timeout`, `interrupted`, `line_lost` or `hung_up`.",
        lambda turn: turn.ended,
    ),
    Column(
        "budget_ms",
        "number",
        "The gap up to which the turn is `answered`, in ms.",
        lambda turn: turn.budget_ms,
    ),
    Column(
        "gap_ms",
        "number",
        "From the person's last sound to the agent's first, at the caller's ear, in ms. Negative "
        "where the agent cut in. Missing without a reply; then `why_no_gap` says why.",
        lambda turn: turn.gap_ms,
        True,
    ),
    Column(
        "gap_ns",
        "integer",
        "The same gap, exactly, in ns: the stages of a turn sum to it.",
        lambda turn: turn.gap_ns,
        True,
    ),
    Column(
        "first_answer_ms",
        "number",
        'The same to the first word that is no hold phrase ("one moment"), in ms; also of an '
        "answer that came after the caller had stopped waiting.",
        lambda turn: turn.first_answer_ms,
        True,
    ),
    Column(
        "longest_hole_ms",
        "number",
        "The longest silence within the reply, in ms: over 150 in which no audio came, or 500 in "
        "which nothing was said.",
        lambda turn: max((hole.ms for hole in turn.holes), default=None),
        True,
    ),
    Column(
        "false_starts",
        "integer",
        "How often the agent broke off what it had just begun, and said something else.",
        lambda turn: turn.false_starts,
    ),
    Column(
        "backchannels_heard",
        "integer",
        'How often the agent said "mm-hm" while the person spoke.',
        lambda turn: turn.backchannels_heard,
    ),
    Column(
        "ambiguous",
        "boolean",
        "Whether what was heard may belong to another turn; `notes` say why.",
        lambda turn: turn.ambiguous,
    ),
    Column(
        "greeting_ms",
        "number",
        "Of a call's first turn: how long after the line was open the agent greeted, in ms.",
        lambda turn: turn.greeting_ms,
        True,
    ),
    Column(
        "waited_ms",
        "number",
        "Of an `abandoned` turn: from the person's end until they spoke again, in ms.",
        lambda turn: turn.waited_ms,
        True,
    ),
    Column(
        "claimed_gap_ms",
        "number",
        "The gap as the agent itself claims it, in ms, where it reports it.",
        lambda turn: claimed_gap(turn.counts)[0],
        True,
    ),
    Column(
        "claimed_by",
        "text",
        "Where the claim is from: `pipecat`, which is its own measurement, the agent's `marks`, or "
        "the `platform` that recorded the call.",
        lambda turn: claimed_gap(turn.counts)[1],
        True,
    ),
    Column("why_no_gap", "text", "Why there is no gap.", lambda turn: turn.why_no_gap, True),
    Column(
        "error",
        "text",
        "What kept the agent from making its reply, or the caller from measuring the turn.",
        lambda turn: turn.error,
        True,
    ),
    Column(
        "left_out",
        "text",
        "Why no figure of the run counts this turn. Leave such rows out of yours, too.",
        lambda turn: turn.left_out,
        True,
    ),
    *map(_stage, STAGES),
    Column(
        "lead_ms",
        "number",
        "How much silence the agent sent directly before its first audible sample, in ms. It is "
        "part of the gap.",
        lambda turn: turn.lead_ms,
        True,
    ),
    Column(
        "first_sound_ms",
        "number",
        "From the person's last sound to the agent's first sound, be it speech or not, in ms.",
        lambda turn: turn.first_sound_ms,
        True,
    ),
    Column(
        "onset_spread_ms",
        "number",
        "How far off the first word may be, or the answer's if more, by three levels and what a "
        "bed hides, in ms.",
        lambda turn: turn.onset_spread_ms,
        True,
    ),
    Column(
        "playout_ms",
        "number",
        "How much later than at its arrival the first word sounds behind a playout buffer, in ms.",
        lambda turn: turn.playout_ms,
        True,
    ),
    Column(
        "bed_dbfs",
        "number",
        "The level of what the agent plays in silence, where that is audible.",
        lambda turn: turn.bed_dbfs,
        True,
    ),
    Column(
        "yield_ms",
        "number",
        "Where the person interrupted: from their first sound to the agent's silence, in ms.",
        lambda turn: turn.yield_ms,
        True,
    ),
    Column(
        "talk_over_ms",
        "number",
        "Of a recorded call: how long both sides spoke at the same time, in ms.",
        lambda turn: turn.talk_over_ms,
        True,
    ),
    Column(
        "dead_air_ms",
        "number",
        "Of a recorded call: the sum of the silences of both sides of 2 s and more, in ms.",
        lambda turn: turn.dead_air_ms,
        True,
    ),
    Column(
        "plain_gap_ms",
        "number",
        "Of a turn over a line: the gap of the same turn without it, in ms.",
        lambda turn: turn.line and turn.line.plain_gap_ms,
        True,
    ),
    Column(
        "transcript",
        "text",
        "What the agent understood, as far as it reports it; else an empty text.",
        lambda turn: turn.transcript,
    ),
    Column(
        "reply",
        "text",
        "What the agent said, as far as it reports it; else an empty text.",
        lambda turn: turn.reply,
    ),
    Column(
        "right",
        "boolean",
        "Whether the reply was right by the scenario's rule and the agent's own words. Missing "
        "where that was not judged.",
        lambda turn: turn.right,
        True,
    ),
    Column(
        "right_by_sound",
        "boolean",
        "The same by the words that a recogniser took from the recorded reply (`turngap judge "
        "--transcribe`).",
        lambda turn: None if turn.transcribed is None else turn.transcribed.right,
        True,
    ),
    Column(
        "right_by_judge",
        "boolean",
        "The verdict of a judge model (`turngap judge --llm`).",
        lambda turn: None if turn.judged is None else turn.judged.right,
        True,
    ),
    Column(
        "llm",
        "text",
        "The LLM that answered, where a conversation may change it.",
        lambda turn: turn.llm,
        True,
    ),
    Column(
        "starved",
        "boolean",
        "Whether turngap itself was later in sending or reading than its run accepts "
        "(`--starved-ms`), so that the gap may be wrong by as much.",
        lambda turn: turn.pacing.starved,
    ),
    Column(
        "caller_error_ms",
        "number",
        "The most that turngap's own lateness can have added to the gap, in ms. Missing where "
        "nothing was sent that could be late.",
        lambda turn: None if turn.pacing.late_ms_max is None else turn.pacing.error_ms,
        True,
    ),
    Column(
        "label_error_ms",
        "number",
        "How far off the end of the person's speech may be in the recording, and with it the gap, "
        "in ms.",
        lambda turn: None if turn.audio is None else turn.audio.label_error_ms,
        True,
    ),
    Column(
        "audio",
        "text",
        "The stereo recording, from the run's folder on: the person left, the agent right.",
        lambda turn: None if turn.audio is None else turn.audio.file,
        True,
    ),
)
