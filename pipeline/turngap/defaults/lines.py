"""Finds the line of a key in a TOML text, which `tomllib` does not tell."""

import re

# Possessive, so that each line is read once whatever it says.
_TABLE = re.compile(r"[ \t]*+\[{1,2}+([^\[\]]++)\]{1,2}+[ \t]*+(?:#|$)")
_PART = r"""(?:[A-Za-z0-9_-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+"""
_KEY = re.compile(rf"[ \t]*+({_PART}(?:\.[ \t]*+{_PART})*+)=")
_PARTS = re.compile(_PART)
_LONG_TEXT = re.compile(r'"""|' + "'''")


def line_of(text: str, key: tuple[str, ...]) -> int:
    """Return the line, from 1, of a key of TOML that was parsed before.

    Where the key has none of its own, as within an inline table, it is that of the nearest key or
    table around it; 1 where there is none.
    """
    best, depth = 1, 0
    for line, path in _keys(text):
        common = 0
        while common < min(len(path), len(key)) and path[common] == key[common]:
            common += 1
        if common == len(path) and common > depth:
            best, depth = line, common
    return best


def _keys(text: str) -> list[tuple[int, tuple[str, ...]]]:
    """Each table and key with its line, those within texts of several lines left out."""
    found: list[tuple[int, tuple[str, ...]]] = []
    table: tuple[str, ...] = ()
    within = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if not within:
            if header := _TABLE.match(line):
                table = _parts(header[1])
                found.append((number, table))
            elif assigned := _KEY.match(line):
                found.append((number, (*table, *_parts(assigned[1]))))
        for mark in _LONG_TEXT.findall(line):
            within = mark if not within else "" if mark == within else within
    return found


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip(" \t\"'") for part in _PARTS.findall(dotted))
