"""The words and the tool calls that are expected of an answer, as in a scenario file."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Protocol, Self

from pydantic import Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError, SchemaError, SchemaValidator, core_schema

from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.core.clock import LONGEST_MS
from turngap.core.cue import Strict
from turngap.scenario.phrases import says, tokens

# Patterns are matched by Rust's `regex`, in time linear in the text: `re` may go back and try again
# for years. It has no look-around and no backreferences.

# A pattern for every way of saying a time of day has some 200 characters.
MOST_PATTERN = 1_000
# Twenty minutes of speech, at fifteen characters a second.
MOST_SEARCHED = 20_000


def check_pattern(pattern: str) -> None:
    """Refuse a pattern that cannot be searched for.

    Raises:
        ValueError: the pattern is too long, not a regular expression, or one that needs to
            backtrack.
    """
    if len(pattern) > MOST_PATTERN:
        raise ValueError(f"{len(pattern)} characters, expected at most {MOST_PATTERN}")
    try:
        _engine(pattern)
    except SchemaError as e:
        why = str(e).strip().splitlines()[-1].strip().removeprefix("SchemaError: ")
        raise ValueError(f"not a regular expression: {why.removeprefix('error: ')}") from e


def pattern_matches(pattern: str, text: str) -> bool:
    """Search a text of at most `MOST_SEARCHED` characters, without regard to case."""
    return _engine(pattern).isinstance_python(text)


@lru_cache(maxsize=256)
def _engine(pattern: str) -> SchemaValidator:
    # Twice: a pattern such as "a)(b" must be one by itself.
    for expression in (pattern, f"(?i){pattern}"):
        engine = SchemaValidator(
            core_schema.str_schema(pattern=expression, regex_engine="rust-regex")
        )
    return engine


class Called(Protocol):
    """A call, made or expected: the tool's name, and its arguments by name."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...


def meets(call: Called, wanted: Called) -> bool:
    """Return whether a call is of the wanted tool and has at least the wanted arguments."""
    return call.name == wanted.name and all(
        key in call.arguments and same_value(call.arguments[key], value)
        for key, value in wanted.arguments.items()
    )


def same_value(a: Any, b: Any) -> bool:
    """Return whether two arguments mean the same.

    Models write a number as a number or as text, and text in any case. Text is compared as phrases
    are, and numbers by their value. The second of two objects may be a part of the first.
    """
    if isinstance(a, bool) or isinstance(b, bool) or a is None or b is None:
        return a is b
    both = (a, b)
    if all(isinstance(value, Mapping) for value in both):
        return all(key in a and same_value(a[key], b[key]) for key in b)
    if all(isinstance(value, list | tuple) for value in both):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, int | float | str) and isinstance(b, int | float | str):
        numbers = _number(a), _number(b)
        if None not in numbers:
            return numbers[0] == numbers[1]
        a = str(a)
        b = str(b)
        if not tokens(a) or not tokens(b):
            return a.strip() == b.strip()
        return says(a, b) and says(b, a)
    return False


def _number(value: float | str) -> float | None:
    # "0047" is a code and not a number, and is compared as it is written.
    if isinstance(value, str) and value.strip().startswith("0") and value.strip() != "0":
        return None
    try:
        return float(value)
    except ValueError:
        return None


def call_text(call: Called) -> str:
    """Return a call in readable form: `weather(day=tomorrow)`."""
    values = (
        f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in call.arguments.items()
    )
    return f"{call.name}({', '.join(values)})"


# If a check of several parts fails, this key of the error's context holds the path from the checked
# field to the wrong part, so that a reader of files can name its line.
AT = "at"


# A reply of a minute has two dozen sentences. Every phrase that is forbidden is looked for in every
# one that is wanted.
MOST_PHRASES = 100
Phrases = Annotated[tuple[str, ...], Field(max_length=MOST_PHRASES)]


class ReplyExpectation(Strict):
    """The words that the reply must hold; `turngap.scenario.phrases` says how text is compared.

    With `unbroken` it must also not stop for a backchannel, even if it begins again.
    """

    any_of: Phrases = ()
    all_of: Phrases = ()
    forbid: Phrases = ()
    regex: str | None = None
    unbroken: bool = False

    @field_validator("regex")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            check_pattern(pattern)
        return pattern

    @field_validator("any_of", "all_of", "forbid")
    @classmethod
    def _have_words(cls, phrases: tuple[str, ...]) -> tuple[str, ...]:
        for i, phrase in enumerate(phrases):
            if not tokens(phrase):
                raise PydanticCustomError(
                    "no_words", "{phrase} holds no word", {"phrase": repr(phrase), AT: (i,)}
                )
        return phrases

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if not (self.any_of or self.all_of or self.forbid or self.regex):
            raise ValueError("expects nothing: give any_of, all_of, forbid or regex")
        for i, phrase in enumerate(self.forbid):
            required = next((p for p in self.all_of if says(p, phrase)), None)
            if required is None and self.any_of and all(says(p, phrase) for p in self.any_of):
                required = self.any_of[0]
            if required is not None:
                raise PydanticCustomError(
                    "never_right",
                    "{phrase} is forbidden, and part of {required}, which is wanted",
                    {"phrase": repr(phrase), "required": repr(required), AT: ("forbid", i)},
                )
        return self


class Call(Strict):
    """A tool call, with its arguments or some of them; `meets` compares them."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
    arguments: dict[str, JsonValue] = Field(default={})


class ToolsExpectation(Strict):
    """The tools that the agent must call for a turn, and those that it must not.

    `all_of`: each is called with at least these arguments; `in_order` asks for this order, with any
    calls in between. `none`: no tool at all is called.
    """

    all_of: tuple[Call, ...] = ()
    in_order: bool = False
    forbid: tuple[Call, ...] = ()
    none: bool = False

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        if not (self.all_of or self.forbid or self.none):
            raise ValueError("expects nothing: give all_of, forbid or none: true")
        if self.none and (self.all_of or self.forbid):
            raise ValueError("none: true stands alone, without all_of and forbid")
        if self.in_order and len(self.all_of) < 2:
            raise ValueError("in_order needs two calls or more in all_of")
        for i, banned in enumerate(self.forbid):
            for wanted in self.all_of:
                if meets(wanted, banned):
                    raise PydanticCustomError(
                        "never_right",
                        "a call of {name} is both wanted and forbidden",
                        {"name": wanted.name, AT: ("forbid", i)},
                    )
        return self


class Expectation(Strict):
    """The expectation that a turn is checked against."""

    reply: ReplyExpectation | None = None
    tools: ToolsExpectation | None = None
    budget_ms: Annotated[float, Field(gt=0, le=LONGEST_MS)] = DEFAULT_BUDGET_MS
