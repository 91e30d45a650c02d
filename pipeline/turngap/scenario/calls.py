"""Whether the tools that were called are those that were expected. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from turngap.scenario.phrases import says, tokens

if TYPE_CHECKING:
    from turngap.scenario.model import ToolsExpectation


class Called(Protocol):
    """A call, made or expected: the tool's name, and its arguments by name."""

    @property
    def name(self) -> str: ...

    @property
    def arguments(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class CallFindings:
    """Failures of an expectation: calls that are missing, and calls that are unwanted."""

    missing: tuple[str, ...]
    unwanted: tuple[str, ...]


def find(expected: "ToolsExpectation", made: Sequence[Called]) -> CallFindings:
    """Compare the calls that were made with those expected, whether they succeeded or not."""
    unwanted = [
        f"tools: {call_text(call)} was called"
        for call in made
        if expected.none or any(meets(call, banned) for banned in expected.forbid)
    ]
    return CallFindings(tuple(_missing(expected, made)), tuple(unwanted))


def _missing(expected: "ToolsExpectation", made: Sequence[Called]) -> Iterator[str]:
    wanted = expected.all_of
    matched = _matched(wanted, made)
    absent = [call for i, call in enumerate(wanted) if i not in matched]
    called = ", ".join(map(call_text, made)) or "nothing"
    for call in absent:
        yield f"tools: {call_text(call)} was not called, but {called}"
    if expected.in_order and not absent and not _in_order(wanted, made):
        order = ", then ".join(map(call_text, wanted))
        yield f"tools: not in the order {order}, but {called}"


def _matched(wanted: Sequence[Called], made: Sequence[Called]) -> set[int]:
    """Return which of `wanted` were called, each by its own call, as many as possible.

    The usual search for augmenting paths: one call may meet several wants, some of which no other
    call can meet.
    """
    taken: dict[int, int] = {}  # index of a call made, to that of the want that it meets

    def place(want: int, tried: set[int]) -> bool:
        for i, call in enumerate(made):
            if i not in tried and meets(call, wanted[want]):
                tried.add(i)
                if i not in taken or place(taken[i], tried):
                    taken[i] = want
                    return True
        return False

    return {want for want in range(len(wanted)) if place(want, set())}


def _in_order(wanted: Sequence[Called], made: Sequence[Called]) -> bool:
    """Return whether the wanted calls were made in their order; the earliest of each counts."""
    left = iter(made)
    return all(any(meets(call, want) for call in left) for want in wanted)


def meets(call: Called, wanted: Called) -> bool:
    """Return whether a call is of the wanted tool and has at least the wanted arguments."""
    return call.name == wanted.name and all(
        key in call.arguments and same_value(call.arguments[key], value)
        for key, value in wanted.arguments.items()
    )


def same_value(a: Any, b: Any) -> bool:
    """Return whether two arguments mean the same.

    Models write a number as a number or as text, and text in any case: text is compared as phrases
    are, numbers by their value. Of two objects the second may be a part of the first.
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
        return _same_text(str(a), str(b))
    return False


def _number(value: float | str) -> float | None:
    # "0047" is a code and not a number, and is compared as it is written.
    if isinstance(value, str) and value.strip().startswith("0") and value.strip() != "0":
        return None
    try:
        return float(value)
    except ValueError:
        return None


def _same_text(a: str, b: str) -> bool:
    if not tokens(a) or not tokens(b):
        return a.strip() == b.strip()
    return says(a, b) and says(b, a)


def call_text(call: Called) -> str:
    """Return a call in readable form: `weather(day=tomorrow)`."""
    values = (
        f"{key}={value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in call.arguments.items()
    )
    return f"{call.name}({', '.join(values)})"
