"""The scenario library, and its text as it is spoken: lower-case words, numbers written out."""

import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turngap.scenario.model import Scenario

_INITIALS = re.compile(r"\b(?:[a-z]\.){2,}")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
# Marks that are not spoken; `unspoken` returns anything else that is not a letter or a digit.
_SILENT = set(" \t\r\n.,;:?!'\"()-–—…")
_CLAUSE = re.compile(r"[,;?!—…]+|[.:](?!\S)|\s[-–]\s")


def _folded(text: str) -> str:
    """Return `text` in lower case, with plain apostrophes and no accents."""
    decomposed = unicodedata.normalize("NFKD", text.lower().replace("’", "'"))
    return "".join(c for c in decomposed if not unicodedata.combining(c))


def spoken_words(text: str) -> list[str]:
    """Return the words as they are said: "Table 4 at 7:30" gives table, four, at, seven, thirty."""
    folded = _INITIALS.sub(lambda m: m.group().replace(".", "") + " ", _folded(text))
    return _WORD.findall(_NUMBER.sub(lambda m: f" {_number(m.group())} ", folded))


def clauses(text: str) -> list[list[str]]:
    """Return the spoken words of each part of `text` between marks at which people pause."""
    return [words for part in _CLAUSE.split(text) if (words := spoken_words(part))]


def unspoken(text: str) -> set[str]:
    """Return characters of `text` that cannot be read aloud: "$", letters of other scripts."""
    return {c for c in _folded(text) if not re.match(r"[a-z0-9]", c) and c not in _SILENT}


def _number(digits: str) -> str:
    from num2words import num2words

    return num2words(float(digits) if "." in digits else int(digits)).replace("-", " ")


@cache
def scenarios(library: Path | None) -> tuple["Scenario", ...]:
    """Return every scenario of the library, read once a process; recordings are not opened.

    Raises:
        InputError: there is no library, or a scenario in it cannot be read.
    """
    # ruamel.yaml and soundfile cost 0.1 s to import: not at the registry's import.
    from turngap.scenario.model import library_dir, library_paths, read_scenario

    return tuple(read_scenario(path) for path in library_paths(library_dir(library)))
