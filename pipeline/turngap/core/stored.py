"""The base of stored documents, and types of their fields, from which secrets are removed."""

import pickle
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Annotated, Any, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer

from turngap.core.budget import TurnEnd
from turngap.core.clock import LONGEST_MS
from turngap.core.events import Event, ToolCall
from turngap.core.labels import MOST_LABEL
from turngap.core.secrets import (
    header_without_secret,
    pieces_without_secrets,
    text_without_secrets,
    texts_without_secrets,
    without_secrets,
)

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
    *(word for kind in (*get_args(Event), ToolCall) for word in (kind.__name__, *kind.__slots__)),
}


class Packed(Sequence[Any]):
    """Values as compressed bytes, made again when asked for: they are most of a turn.

    In the memory of a run they take less than in its file, whatever they are.
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
    """Whatever is part of a stored document."""

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

    A type whose fields change gets a `schema_version` of its own; no other version is read.
    """

    schema_version: int = 1

    @classmethod
    @cache
    def own_words(cls) -> frozenset[str]:
        """Return the names of all fields at any depth, and the words that they choose from."""
        return frozenset((*_OWN, *_words(cls.model_json_schema())))

    @classmethod
    def current_version(cls) -> int:
        """Return the one version that is read and written."""
        return cls.model_fields["schema_version"].default
