"""Tables of turns: each column with its name, its type, what it holds and where it comes from.

Whatever writes a turn as a row of a table takes its columns from here: `Run.rows`, CSV, Parquet and
docs/data.md.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from turngap.core.counts import claimed_gap
from turngap.core.stages import STAGES, UNATTRIBUTED

if TYPE_CHECKING:
    from turngap.core.results import Turn

Cell = str | int | float | bool | None
Row = dict[str, Any]
# `number` is a 64-bit float, `integer` has 64 bits, too, and `text` is Unicode.
Type = Literal["text", "integer", "number", "boolean"]
Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Column(Generic[Thing]):
    """A column of a table, whose rows are made of one thing each.

    Attributes:
        about: what it holds, in a sentence or a few, with its unit.
        of: takes the value from the thing.
        optional: whether a value may be missing. An empty text is missing there, so that a CSV file
            can tell; in any other column an empty text is a text.
    """

    name: str
    type: Type
    about: str
    of: Callable[[Thing], Cell]
    optional: bool = False

    def cell(self, thing: Thing) -> Cell:
        """Return the value as every table stores it; None if it is missing.

        Half a surrogate pair becomes a question mark, as in a stored document: no file can hold it.
        """
        value = self.of(thing)
        if isinstance(value, str):
            text = value.encode("utf-8", errors="replace").decode("utf-8")
            return text or (None if self.optional else "")
        return float(value) if self.type == "number" and value is not None else value


def row_of(columns: Iterable[Column[Thing]], thing: Thing) -> Row:
    """Build a row of plain values from the thing, keyed by column name."""
    return {column.name: column.cell(thing) for column in columns}


def _stage(name: str) -> "Column[Turn]":
    about = f"The stage `{name}`: from the mark before to the mark of this name, in ms."
    if name == UNATTRIBUTED:
        about = "What of the gap no mark explains, in ms; all of a negative gap."
    return Column(f"{name}_ms", "number", about, lambda turn: turn.stage_ms.get(name), True)


TURN_COLUMNS: "Sequence[Column[Turn]]" = (
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
        "How the turn came to its end: `reply_done`, `timeout`, `interrupted`, `line_lost` or "
        "`hung_up`.",
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
        "Where the claim is from: `pipecat`, which is its own measurement, or the agent's `marks`.",
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
        "How far off the agent's first word may be, by three levels and what a bed hides, in ms.",
        lambda turn: turn.onset_spread_ms,
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
        "By how much the gap may at most read long because turngap itself was late, in ms. Missing "
        "where nothing was sent that could be late.",
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
