"""Recorded instants at which calls arrived: a text or CSV file of seconds."""

import math
from pathlib import Path

from turngap.core.errors import InputError
from turngap.core.untrusted import harmless, shown
from turngap.load.schedule import MOST_CALLS
from turngap.store.files import read_text

# A day.
LONGEST_S = 86_400.0
MOST_BYTES = 8 * 2**20
HEADERS = ("s", "at_s", "seconds", "time_s")


def read_trace(file: Path) -> tuple[float, ...]:
    """Read when calls arrive, in seconds from the beginning of the step, in order.

    Each line begins with a number of seconds; what follows a comma is not read. A first line of
    `s`, `at_s`, `seconds` or `time_s` is a header; lines that are empty or begin with `#` are left
    out.

    Raises:
        InputError: it cannot be read, a line is no such instant (with its number), or there is
            none.
    """
    hint = "one number of seconds in each line, from 0 on, in order"
    instants: list[float] = []
    for number, line in enumerate(read_text(file, "trace", most=MOST_BYTES).splitlines(), start=1):
        text = line.partition(",")[0].strip().strip('"').lstrip("\ufeff")
        if not line.strip() or text.startswith("#") or (number == 1 and text.lower() in HEADERS):
            continue
        why = _why_not(text, instants[-1] if instants else 0.0)
        if len(instants) == MOST_CALLS:
            why = f"more than {MOST_CALLS:,} calls"
        if why:
            raise InputError("load.trace", f"{harmless(str(file))}:{number}: {why}", hint=hint)
        instants.append(float(text))
    if not instants:
        raise InputError("load.trace", f"{harmless(str(file))}: there is no call in it", hint=hint)
    return tuple(instants)


def _why_not(text: str, before_s: float) -> str:
    """Why a text is no instant after the one before; empty if it is."""
    try:
        at_s = float(text)
    except ValueError:
        at_s = math.nan
    if not math.isfinite(at_s):
        return f"{shown(text)} is no number of seconds"
    if not 0 <= at_s <= LONGEST_S:
        return f"{at_s:g} s: expected 0 to {LONGEST_S:g} s"
    if at_s < before_s:
        return f"{at_s:g} s comes after {before_s:g} s: the instants must be in order"
    return ""
