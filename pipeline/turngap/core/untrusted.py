"""Read another program's output into values that cannot do harm.

Numbers are finite and fit into 64 bits, texts are printable and of bounded length, JSON is of
bounded depth and size. Use these functions where bytes from a peer become values. Code that shows a
text makes it `printable` once more, since a stored document may come from anywhere.
"""

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast

from turngap.core.errors import InputError
from turngap.core.secrets import cut_without_secrets

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


# A peer's reason or error: a few sentences, or the end of a traceback.
MOST_SENTENCE = 2_000
# A name of a tool, a mark or a count.
MOST_NAME = 100
# One JSON message. It takes about 25 times as much memory when it is parsed into the smallest
# values there are, and 20 ms.
MOST_JSON = 2**20
# Of an instant, in ns (2043 of a clock from 1970): differences of any two fit into 64 bits.
MOST_INSTANT = 2**61
# What a tool is called with: real arguments were seen to nest up to 5 deep.
MOST_DEPTH = 16
MOST_ITEMS = 1_000
MOST_TEXT = 10_000

CUT = "…"

# What begins a command to a CI server: `::` first in a line, `##[` or as `##vso[` anywhere.
_COMMAND = re.compile(r"(?im)^[^\S\n]*:(?=:)|##(?=\w*\[)")

_SPACES = ("Cc", "Zl", "Zp", "Zs")
# What XML 1.0 cannot hold, not even escaped (https://www.w3.org/TR/xml/#charsets).
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


# Texts


def harmless(text: str, most: int = MOST_TEXT) -> str:
    """Make a text printable and cut it after `most` characters; all spaces in it stay.

    An escape sequence must not reach a terminal, and a direction override must not reverse a
    report. Control characters and line ends become spaces, half a surrogate pair becomes U+FFFD,
    and other invisible characters are left out.
    """
    kept = text if len(text) <= most else cut_without_secrets(text, most)
    if not kept.isprintable():
        kept = "".join(map(_harmless, kept))
    return kept + CUT if len(text) > most else kept


def printable(text: str, most: int | None = None) -> str:
    """Make one line of printable text, cut after `most` characters; see `harmless`."""
    return " ".join(harmless(text, len(text) if most is None else most).split())


def inert(text: str) -> str:
    """Break up text that a CI server would read as a command in the output of a step."""
    return _COMMAND.sub(lambda found: f"{found[0]} ", text)


def xml_text(text: str) -> str:
    """Leave out the characters that XML documents, such as SVG or JUnit files, cannot hold."""
    return _NOT_XML.sub("", text)


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if category in _SPACES:
        return " "
    if category == "Cs":
        return "\ufffd"
    return character if character.isprintable() else ""


# JSON


def parse_json(text: str | bytes, most: int = MOST_JSON) -> Any:
    """Parse JSON from a peer.

    Values are not checked here: Python accepts `NaN` and `1e999`, so code that uses a value must
    check it.

    Raises:
        ValueError: the text is longer than `most`, nested too deep, or not JSON.
    """
    if len(text) > most:
        raise ValueError(f"JSON of {len(text)} characters, expected at most {most}")
    try:
        return json.loads(text)
    except RecursionError as e:
        raise ValueError("JSON that is nested too deep") from e


def whole(value: Any, most: int = 2**63) -> int:
    """Read a count, or an instant below `MOST_INSTANT`; JSON writers without integers send 5.0.

    Raises:
        ValueError: the value is not a whole number, or not below `most`.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= most:
        raise ValueError(f"expected a {most.bit_length()}-bit whole number, got {shown(value)}")
    return value


instant = partial(whole, most=MOST_INSTANT)


def finite(value: Any) -> float:
    """Read a number.

    Raises:
        ValueError: the value is not a number, or is NaN, infinite or beyond 64 bits.
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    raise ValueError(f"expected a finite number, got {shown(value)}")


def text_of(value: Any, most: int = MOST_TEXT) -> str:
    """Read a text; numbers are spelled, and None is the empty text.

    Raises:
        ValueError: the value is a list or an object.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return harmless(value, most)
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 2**63):
        return str(value)
    raise ValueError(f"expected a text, got {shown(value)}")


def plain(value: Any) -> tuple[Any, int]:
    """Copy a parsed JSON value so that it can be stored and shown.

    Returns:
        The copy, and how many of its values were changed. Numbers that are not finite or beyond 64
        bits become None, texts become `harmless`, and values deeper than `MOST_DEPTH` or after
        `MOST_ITEMS` values are left out.
    """
    left, changed = MOST_ITEMS, 0

    def text(raw: str, most: int) -> str:
        nonlocal changed
        kept = harmless(raw, most)
        changed += kept != raw
        return kept

    def copy(value: Any, depth: int) -> Any:
        nonlocal left, changed
        left -= 1
        if isinstance(value, str):
            return text(value, MOST_TEXT)
        if value is None or (isinstance(value, int | float) and abs(value) < 2**63):
            return value
        kept: list[tuple[Any, Any]] = []
        if not depth or not isinstance(value, Mapping | list | tuple):
            changed += 1
            return None
        named = isinstance(value, Mapping)
        listed = enumerate(cast("list[Any]", value))
        for key, item in cast("Mapping[Any, Any]", value).items() if named else listed:
            if left <= 0:
                changed += 1
                break
            kept.append((text(str(key), MOST_NAME) if named else key, copy(item, depth - 1)))
        return dict(kept) if named else [item for _, item in kept]

    return copy(value, MOST_DEPTH), changed


def shown(value: Any, most: int = 40) -> str:
    """Format a value for an error: the type of a list or an object, else the value, cut."""
    if isinstance(value, list | Mapping):
        return "a list" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) >= 2**63:
        return "a number of more than 64 bits"  # spelled out, it may have millions of digits
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return repr(printable(value, most)) if isinstance(value, str) else str(value)[:most]


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address, as in a URL, is this machine's own loopback."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# TOML

# tomllib takes quadratic time for a dotted key; a stack has 2 kB, and keys of two parts.
MAX_TOML_BYTES = 256 * 2**10
MAX_KEY_PARTS = 32
# Nothing that turngap reads nests deeper than twelve. Python recurses some three calls a level when
# it writes such a value again, and stops at a thousand.
MAX_DEPTH = 100

_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_-]){_PART}(?:\.[ \t]*+{_PART}){{{MAX_KEY_PARTS}}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Read TOML.

    Raises:
        ValueError: the text is not TOML, nests deeper than `MAX_DEPTH`, or has a number that is not
            finite.
    """
    import tomllib  # the pytest plugin, which is in every test run, reads none

    if len(text) > MAX_TOML_BYTES:
        raise ValueError(f"longer than {MAX_TOML_BYTES} characters")
    if found := _LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"a key of more than {MAX_KEY_PARTS} parts (at line {line})")
    try:
        values = tomllib.loads(text)
    except RecursionError as e:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from e
    check_values(values)
    return values


def check_values(value: Any) -> None:
    """Refuse nesting deeper than `MAX_DEPTH`, and numbers that are infinite, NaN or too long.

    Raises:
        ValueError: there is such a value.
    """
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner.extend(cast("dict[str, Any]", one).values())
            elif isinstance(one, list):
                inner.extend(cast("list[Any]", one))
            elif isinstance(one, float) and not math.isfinite(one):
                raise ValueError(f"{one} is not a finite number")
            elif isinstance(one, int) and not -(2**63) <= one < 2**63:
                raise ValueError("a whole number of more than 64 bits")
        level, depth = inner, depth + 1


# One short line, which has to fit into a list.
MOST_LABEL = 100


def checked_label(label: str) -> str:
    """Return a label as it is stored: without spaces around it.

    Raises:
        InputError: the label is longer than `MOST_LABEL`, or has characters that cannot be printed.
    """
    label = label.strip()
    if len(label) > MOST_LABEL or not label.isprintable():
        wrong = f"{len(label)} characters" if label.isprintable() else "what cannot be printed"
        raise InputError(
            "label.invalid",
            f"the label {printable(label, 40)!r} has {wrong}",
            hint=f"give one line of at most {MOST_LABEL} characters",
        )
    return label


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


def problems(error: "ValidationError") -> "list[ErrorDetails]":
    """Return the first twenty validation errors, without duplicates.

    pydantic counts a list's valid items: a list whose one item is bad is "too short" as well.
    """
    found = error.errors()
    return [
        problem
        for problem in found
        if problem["type"] != "too_short" or not any(_within(p, problem) for p in found)
    ][:MOST_SHOWN]


def in_a_line(error: "ValidationError") -> str:
    """Format all invalid settings in one line, each with its name."""
    return "; ".join(
        f"{'.'.join(map(str, p['loc'])) or 'settings'}: {reason(p)}" for p in problems(error)
    )


def _within(inner: "ErrorDetails", outer: "ErrorDetails") -> bool:
    at, of = inner["loc"], outer["loc"]
    return len(at) > len(of) and at[: len(of)] == of


def reason(problem: "ErrorDetails") -> str:
    """Describe the error in one value and what was expected, but not its place."""
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


def reason_in_toml(problem: "ErrorDetails") -> str:
    """Describe the error in one value of a TOML file: what was expected and what is there."""
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
