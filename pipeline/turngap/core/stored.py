"""The base of stored documents, types for their fields that hold no secrets, and parts of turns."""

import pickle
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from turngap.core.budget import TurnEnd
from turngap.core.clock import LONGEST_MS
from turngap.core.events import Event, EventKind, ToolCall
from turngap.core.secrets import (
    header_without_secret,
    pieces_without_secrets,
    text_without_secrets,
    texts_without_secrets,
    without_secrets,
)
from turngap.core.untrusted import MOST_LABEL

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
Counts = Annotated[dict[str, float], AfterValidator(texts_without_secrets)]

# Of turngap itself, among the names and the texts of an event.
_OWN = {
    *get_args(TurnEnd),
    *get_args(EventKind),
    *(word for kind in (*get_args(Event), ToolCall) for word in kind.__slots__),
    ToolCall.__name__,
}


class Packed(Sequence[Any]):
    """Values as compressed bytes, unpacked on access: they make up most of a turn.

    In a run's memory they take less space than in its file, whatever they are.
    """

    def __init__(self, values: Iterable[Any] = ()) -> None:
        kept = tuple(values)
        self._count, self._packed = len(kept), zlib.compress(pickle.dumps(kept), 1)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return pickle.loads(zlib.decompress(self._packed))[index]

    def __iter__(self) -> Any:
        return iter(self[:])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == tuple(cast("Sequence[Any]", other))

    def __hash__(self) -> int:
        return hash(self._packed)


def _events(events: Sequence[dict[str, Any]]) -> Packed:
    kept = texts_without_secrets([*events], _OWN)
    for kind in ("AgentText", "UserTranscript"):
        said = [e for e in kept if e.get("event") == kind and isinstance(e.get("text"), str)]
        for event, text in zip(
            said, pieces_without_secrets([e["text"] for e in said]), strict=True
        ):
            event["text"] = text
    return Packed(kept)


Events = Annotated[Sequence[dict[str, Any]], AfterValidator(_events), PlainSerializer(list)]

Label = Annotated[Said, Field(max_length=MOST_LABEL)]


def _notes(notes: dict[str, int]) -> dict[str, int]:
    cleaned: Counter[str] = Counter()
    for note, times in notes.items():
        cleaned[text_without_secrets(note)] += times
    return dict(cleaned)


def _calls(calls: Sequence[ToolCall]) -> Packed:
    return Packed(replace(call, **texts_without_secrets(asdict(call), _OWN)) for call in calls)


# What was odd about what an agent sent, and how often.
Notes = Annotated[dict[str, int], AfterValidator(_notes), PlainSerializer(_notes)]
Calls = Annotated[Sequence[ToolCall], AfterValidator(_calls), PlainSerializer(list)] | None

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


class Stored(BaseModel):
    """Any part of a stored document."""

    # JSON has no inf or nan: written as null, they could not be read back. Dataclasses check
    # nothing themselves, so their instances are checked here.
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, revalidate_instances="always"
    )


def _words(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        schema = cast("dict[str, Any]", schema)
        yield from (*schema.get("properties", ()), *schema.get("enum", ()), schema.get("const", ""))
        schema = [*schema.values()]
    for inner in cast("list[Any]", schema) if isinstance(schema, list) else ():
        yield from _words(inner)


class Document(Stored):
    """A stored document, or a line of one. Read and write it with `turngap.store.documents`.

    A type gets a new `schema_version` when its fields change; other versions are not read.
    """

    schema_version: int = 1

    @classmethod
    @cache
    def own_words(cls) -> frozenset[str]:
        """Return the names of all fields at any depth, and the fixed words of their values."""
        return frozenset((*_OWN, *_words(cls.model_json_schema())))

    @classmethod
    def current_version(cls) -> int:
        """Return the only version that is read and written."""
        return cls.model_fields["schema_version"].default


# Tables

Cell = str | int | float | bool | None
Row = dict[str, Any]
# `number` is a 64-bit float, `integer` has 64 bits, too, and `text` is Unicode.
Type = Literal["text", "integer", "number", "boolean"]
Thing = TypeVar("Thing")


@dataclass(frozen=True, slots=True)
class Column(Generic[Thing]):
    """A column of a table whose rows each describe one thing.

    Attributes:
        about: its content, in a sentence or a few, with its unit.
        of: reads the value from the thing.
        optional: whether a value may be missing. An empty text then counts as missing, because a
            CSV file has no other way to say so; in any other column an empty text is a text.
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


# Parts of a turn


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRecord:
    """A named instant: `at_ns` on the caller's clock, `raw_ns` on the agent's own clock."""

    name: Said
    at_ns: int
    vantage: Literal["caller", "agent"]
    raw_ns: int | None = None


class PacingRecord(Stored):
    """The caller's own lateness between the user's start and the agent's onset.

    `late_ms_*` is the lateness of its packets against their schedule, `loop_lag_ms_max` the
    lateness of its event loop, which stamps messages. A turn is starved when either exceeds the
    run's `starved_ms`.
    """

    packets: int
    late_ms_p50: float | None
    late_ms_max: float | None
    loop_lag_ms_max: float | None = None
    starved: bool

    @property
    def error_ms(self) -> float:
        """Return the most that the caller's lateness can add to the gap (sent late, read late)."""
        return (self.late_ms_max or 0.0) + (self.loop_lag_ms_max or 0.0)


class AudioRecord(Stored):
    """The place of a turn in its stereo file (left user, right agent), ms from the file's start.

    `label_error_ms` is how far off the person's end, and so the gap, may be; None if not known.
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
    """Silence within a reply: its start, in ms from the reply's onset, and its length."""

    at_ms: float
    ms: float


class StallRecord(Stored):
    """A time in which nothing came out of the line, 100 ms or more beyond its delay.

    `way` is `up` to the agent or `down` to the caller. `at_ms` counts from the person's end.
    `recovered_ms` is the time from the stall's end until what comes out is less than 50 ms late
    again; None if it was not within the turn.
    """

    way: Literal["up", "down"]
    at_ms: float
    ms: float
    recovered_ms: float | None = None


class DryRecord(HoleRecord):
    """A hole that the line made in a reply: 10 ms or more in which the playout had run dry.

    `in_word`: whether there is speech on both sides of it.
    """

    in_word: bool = False


class LineTurn(Stored):
    """The crossing of a line by the audio of one turn, in ms; None where it could not be measured.

    Attributes:
        up_ms: from the person's last sample until its packet had reached the agent.
        down_ms: from the first word's way into the line until it came out.
        plain_gap_ms, plain_yield_ms: the gap of the same turn without the line, and how soon the
            agent was silent there when it was interrupted.
        dry: the holes that the line made in the reply.
        buffer_ms: the smallest playout buffer that hides them all; the gap grows by as much.
        lag_ms: how late the reply's last audio came out.
        up_lag_ms: how late the person's last audio came out.
        backlog_bytes: the most bytes that waited in the line.
        stalls: the line's stalls in the turn, both ways.
    """

    up_ms: float | None = None
    down_ms: float | None = None
    plain_gap_ms: float | None = None
    plain_yield_ms: float | None = None
    dry: tuple[DryRecord, ...] = ()
    buffer_ms: float | None = None
    lag_ms: float | None = None
    up_lag_ms: float | None = None
    backlog_bytes: int | None = None
    stalls: tuple[StallRecord, ...] = ()


class AnswerRecord(Stored):
    """A verdict on a turn's answer, judged by the words that were heard and the tools called.

    `failed` names the unmet parts of the expectation if the answer is wrong; `why` is the reason if
    it was not judged. `source` says whose words `heard` are: the agent's own, or a recogniser's.
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


class JudgeRecord(Stored):
    """A judge model's verdict on a turn, and why; `right` is None if it gave none.

    `source` says whose words it judged: the agent's own, or a recogniser's.
    """

    right: bool | None
    why: Said = ""
    source: Literal["agent text", "transcribed"] = "agent text"
