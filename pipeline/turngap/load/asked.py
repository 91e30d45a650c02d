"""What a load test is asked for, in words and numbers: read, and refused where it cannot be."""

import re
from typing import Any, Literal

from turngap.core.budget import MAX_STARVED_MS, STARVED_MS
from turngap.core.errors import InputError
from turngap.play.plan import require_number

MOST_SESSIONS = 10_000
# The search goes no higher, unless somebody asks.
SESSIONS = 32
MOST_CALLERS = 1000
MOST_PER_S = 1000.0
LEAST_PER_S = 1 / 3600
LONGEST_S = 86_400.0
LONGEST_WARM_UP_S = 3600.0

Mode = Literal["search", "held", "ramp", "rate"]


def ramp(lowest: int, highest: int) -> tuple[int, ...]:
    """Levels from the lowest to the highest, each half as much again or a third more: 4, 6, 8."""
    between = {n for k in range(MOST_SESSIONS.bit_length()) for n in (2**k, 3 * 2**k // 2)}
    return (lowest, *sorted(n for n in between if lowest < n < highest), highest)


_SESSIONS = re.compile(r"\s*(\d{1,6})\s*(?:\.\.\s*(\d{1,6})\s*)?")
_RATE = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*/\s*(s|min)\s*")


def parse_sessions(text: str | int) -> tuple[int, ...]:
    """Read a level, `16`, or a ramp, `1..64`, as the levels to be held.

    Raises:
        InputError: it is neither.
    """
    found = _SESSIONS.fullmatch(str(text))
    levels = [int(part) for part in found.groups() if part is not None] if found else []
    if not levels or not all(1 <= n <= MOST_SESSIONS for n in levels) or levels[0] > levels[-1]:
        raise InputError(
            "load.sessions",
            f"sessions {str(text)[:40]!r}: expected a level from 1 to {MOST_SESSIONS:,}, or two of "
            "them, the lower one first",
            hint="for example --sessions 16, or --sessions 1..64",
        )
    if len(levels) == 1 or levels[0] == levels[1]:
        return (levels[0],)
    return ramp(*levels)


def parse_rate(text: str) -> float:
    """Read `2/s` or `30/min` as calls a second.

    Raises:
        InputError: it is neither, or out of range.
    """
    found = _RATE.fullmatch(text)
    per_s = float(found[1]) / (60 if found[2] == "min" else 1) if found else 0.0
    if not LEAST_PER_S * 0.999 <= per_s <= MOST_PER_S:
        raise InputError(
            "load.rate",
            f"rate {text[:40]!r}: expected a number of calls a second or a minute, from one an "
            f"hour to {MOST_PER_S:g} a second",
            hint="for example --rate 2/s, or --rate 30/min",
        )
    return per_s


def arriving(
    sessions: str | int | None,
    max_sessions: int | None,
    rate: str | None,
    arrivals: str | None,
) -> dict[str, Any]:
    """Return how calls arrive, as the plan's attributes.

    Raises:
        InputError: one of these cannot be used, or two of them say when calls are made.
    """
    if sessions is not None and rate is not None:
        raise InputError(
            "load.arrivals",
            "--sessions and --rate each say when calls are made: give one of them, or none to "
            "search for the most sessions that the agent holds",
        )
    if arrivals is not None and (rate is None or arrivals not in ("poisson", "constant")):
        raise InputError(
            "load.arrivals",
            f"--arrivals {arrivals[:40]!r}: expected poisson or constant, and --arrivals needs "
            "--rate",
            hint="for example --rate 2/s --arrivals constant",
        )
    named = "--rate" if sessions is None else "--sessions"
    if max_sessions is not None and (sessions is not None or rate is not None):
        raise InputError(
            "load.sessions",
            f"--max-sessions cannot be combined with {named}",
            hint=f"drop --max-sessions, or {named}",
        )
    if rate is not None:
        return {"mode": "rate", "per_s": parse_rate(rate), "arrivals": arrivals or "poisson"}
    if sessions is not None:
        levels = parse_sessions(sessions)
        return {"mode": "held" if len(levels) == 1 else "ramp", "levels": levels}
    most = SESSIONS if max_sessions is None else max_sessions
    _require("load.sessions", "max_sessions", most, 1, MOST_SESSIONS, whole=True)
    return {"mode": "search", "levels": (1, most) if most > 1 else (1,)}


def require_ranges(
    budget_ms: float, duration_s: float | None, warm_up_s: float | None, asked: dict[str, Any]
) -> None:
    """Refuse numbers out of their range.

    Raises:
        InputError: there is one, of the kind `load.range`.
    """
    _require("load.range", "budget_ms", budget_ms, 1, 60_000)
    if duration_s is not None:
        _require("load.range", "duration_s", duration_s, 1, LONGEST_S)
        if asked["mode"] == "search":
            raise InputError(
                "load.duration",
                "a search plays as many turns as it needs to be sure: its steps have no duration",
                hint="drop --duration, or hold a level: --sessions 16",
            )
    if warm_up_s is not None:
        _require("load.range", "warm_up_s", warm_up_s, 0, LONGEST_WARM_UP_S)
    for name, least, most, whole in (
        ("target", 0.5, 0.999, False),
        ("confidence", 0.5, 0.999, False),
        ("starved_ms", 1, MAX_STARVED_MS, False),
        ("min_sessions", 1, MOST_SESSIONS, True),
        ("max_minutes", 0.1, LONGEST_S / 60, False),
        ("callers", 1, MOST_CALLERS, True),
        ("calibration_turns", 0, 10_000, True),
        ("greeting_ms", 0, 60_000, False),
    ):
        if asked.get(name) is not None:
            _require("load.range", name, asked[name], least, most, whole=whole)
    asked.setdefault("starved_ms", STARVED_MS)
    least = asked.get("min_sessions")
    if least is not None and asked["mode"] != "search":
        raise InputError(
            "load.sessions",
            "--min-sessions asks whether so many are certified, which only a search does",
            hint=f"search up to that level: --min-sessions {least} --max-sessions {least}",
        )
    if least is not None and least > max(asked["levels"]):
        raise InputError(
            "load.sessions",
            f"at least {least} sessions are asked for, and at most {max(asked['levels'])} are "
            "looked at",
            hint="raise --max-sessions",
        )


# Flags that are called otherwise than what they set.
_FLAGS = {"duration_s": "duration", "warm_up_s": "warm-up", "calibration_turns": "calibration"}
_SHARES = ("target", "confidence")


def _require(
    kind: str, name: str, value: Any, least: float, most: float, *, whole: bool = False
) -> None:
    """Refuse a number out of its range, by the name of its flag; a share is no per cent.

    Raises:
        InputError: of this kind.
    """
    flag = "--" + _FLAGS.get(name, name).replace("_", "-")
    try:
        require_number(kind, flag, value, least, most, whole=whole)
    except InputError as e:
        per_cent = name in _SHARES and isinstance(value, int | float) and 1 < value < 100
        hint = f"a share: {value / 100:g}" if per_cent else e.hint
        raise InputError(kind, e.message.replace("=", " ", 1), hint=hint) from None
