"""What a check finds wrong in a file or a flag, in the words of its user instead of pydantic's."""

from pydantic import ValidationError
from pydantic_core import ErrorDetails

UNKNOWN_KEY = "unknown key"
# More than anybody mends at a time; a file of another kind has tens of thousands.
MOST_SHOWN = 20


def problems(error: ValidationError) -> list[ErrorDetails]:
    """What is wrong, each thing once, and the first twenty of them.

    pydantic counts a list's valid items: one bad item of one is "too short" as well.
    """
    found = error.errors()
    return [
        problem
        for problem in found
        if problem["type"] != "too_short" or not any(_within(p, problem) for p in found)
    ][:MOST_SHOWN]


def in_a_line(error: ValidationError) -> str:
    """What is wrong with settings, each with its name, in one line."""
    return "; ".join(
        f"{'.'.join(map(str, p['loc'])) or 'settings'}: {reason(p)}" for p in problems(error)
    )


def _within(inner: ErrorDetails, outer: ErrorDetails) -> bool:
    at, of = inner["loc"], outer["loc"]
    return len(at) > len(of) and at[: len(of)] == of


def reason(problem: ErrorDetails) -> str:
    """What is wrong with one value and what was expected; where it is, the caller knows."""
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
