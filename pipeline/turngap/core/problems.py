"""Problems in a file or a flag, in the words of its user instead of pydantic's."""

from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from turngap.core.untrusted import shown

UNKNOWN_KEY = "unknown key"
# More than anybody mends at a time; a file of another kind has tens of thousands.
MOST_SHOWN = 20

# pydantic's names for the types that a file's values have, and what people call these.
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a text in quotes",
    "dict_type": "a table, as { gap = 800 }",
}


def problems(error: ValidationError) -> list[ErrorDetails]:
    """Return the first twenty validation errors, without duplicates.

    pydantic counts a list's valid items: one bad item of one is "too short" as well.
    """
    found = error.errors()
    return [
        problem
        for problem in found
        if problem["type"] != "too_short" or not any(_within(p, problem) for p in found)
    ][:MOST_SHOWN]


def in_a_line(error: ValidationError) -> str:
    """Format all invalid settings in one line, each with its name."""
    return "; ".join(
        f"{'.'.join(map(str, p['loc'])) or 'settings'}: {reason(p)}" for p in problems(error)
    )


def _within(inner: ErrorDetails, outer: ErrorDetails) -> bool:
    at, of = inner["loc"], outer["loc"]
    return len(at) > len(of) and at[: len(of)] == of


def reason(problem: ErrorDetails) -> str:
    """Describe what is wrong with one value and what was expected, but not where it is."""
    match problem["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":  # of a model, of a dataclass
            return UNKNOWN_KEY
        case "missing":
            return "missing"
        case "tuple_type" | "list_type":
            return 'expected a list, as ["one", "two"]'
        case "too_short":
            least = problem.get("ctx", {}).get("min_length", 1)
            return f"expected at least {least} item{'' if least == 1 else 's'}"
        case _:
            said = problem["msg"].removeprefix("Value error, ")
            return said.replace("Input should be", "expected")


def reason_in_toml(problem: ErrorDetails) -> str:
    """Describe what is wrong with one value of a TOML file: what was expected and what is there."""
    value: Any = problem["input"]
    expected = _EXPECTED.get(problem["type"])
    if expected is None:
        return reason(problem)
    if not isinstance(value, str):
        found = str(value).lower() if isinstance(value, bool) else shown(value)
        return f"expected {expected}, found {found}"
    said = f"expected {expected}, found the text {shown(value)}"
    bare = value.strip()
    return f"{said}: write {bare} without quotes" if _is_bare(problem["type"], bare) else said


def _is_bare(kind: str, text: str) -> bool:
    """Return whether a text would be valid without its quotes."""
    if kind == "bool_type":
        return text in ("true", "false")
    try:
        (float if kind == "float_type" else int)(text)
    except ValueError:
        return False
    return kind in ("int_type", "float_type")
