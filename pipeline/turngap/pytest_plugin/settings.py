"""What a test may ask for: the keywords of the marker and of the fixture's methods, checked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, TypedDict

import pytest

from turngap.core.budget import MAX_STARVED_MS, STARVED_MS
from turngap.core.errors import InputError
from turngap.pytest_plugin.options import Options


class AgentSettings(TypedDict, total=False):
    """Which scenarios to play, and what to change about a stack: as the flags of `turngap replay`.

    `scenarios` are names or files, default all; `sets` are `table.key=value`; `library` is the
    folder of scenarios; `calibration` the number of known gaps measured before; `starved_ms` how
    late the caller may be before a turn counts as starved.
    """

    scenarios: Sequence[str]
    tag: str
    sets: Sequence[str]
    llm: str
    stt: str
    tts: str
    seed: int
    library: str | Path
    calibration: int
    starved_ms: float


class ReplaySettings(AgentSettings, total=False):
    """How to play them: `repeat` times, judged by `budget_ms` instead of the scenarios' own.

    `greeting_ms` is how long the agent may take to greet; it is found out where it is not given.
    """

    repeat: int
    budget_ms: float
    phase_ms: float
    greeting_ms: float
    marks: bool


MARKER_KEYS = ("agent", *ReplaySettings.__annotations__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Settings with every default filled in."""

    agent: str
    scenarios: tuple[str, ...] = ()
    tag: str | None = None
    sets: tuple[str, ...] = ()
    llm: str | None = None
    stt: str | None = None
    tts: str | None = None
    seed: int | None = None
    library: Path | None = None
    calibration: int = 8
    starved_ms: float = STARVED_MS
    repeat: int = 1
    budget_ms: float | None = None
    phase_ms: float = 0.0
    greeting_ms: float | None = None
    marks: bool = True


def marker_settings(marker: pytest.Mark | None) -> dict[str, Any]:
    """The marker's keywords.

    Raises:
        InputError: it has others, or arguments without a name.
    """
    if marker is None:
        return {}
    if marker.args:
        raise InputError(
            "pytest.marker",
            f"@pytest.mark.turngap({', '.join(map(repr, marker.args))}): name each argument",
            hint=f"keywords: {', '.join(MARKER_KEYS)}",
        )
    return _known(marker.kwargs, MARKER_KEYS, "@pytest.mark.turngap")


def wanted(
    options: Options,
    marker: Mapping[str, Any],
    agent: str | None,
    given: Mapping[str, Any],
    keys: Sequence[str],
) -> Wanted:
    """What the method was given, over the marker's keywords, over the options.

    Raises:
        InputError: a keyword that there is not, or a value that it cannot have.
    """
    _known(given, keys, "turngap")
    values: dict[str, Any] = {
        "agent": options.agent,
        "calibration": options.calibration,
        "starved_ms": options.starved_ms,
    }
    values |= {k: v for k, v in {**marker, "agent": agent or marker.get("agent"), **given}.items()
               if v is not None}  # fmt: skip
    for name in ("scenarios", "sets"):
        listed = values.get(name, ())
        values[name] = (listed,) if isinstance(listed, str) else tuple(listed)
    if "library" in values:
        values["library"] = Path(values["library"])
    if options.rounds is not None:
        values["repeat"] = options.rounds
    result = Wanted(**values)
    _at_least("repeat", result.repeat, 1)
    _at_least("calibration", result.calibration, 0)
    _at_least("starved_ms", result.starved_ms, 1, MAX_STARVED_MS)
    _at_least("phase_ms", result.phase_ms, 0)
    if result.budget_ms is not None:
        _at_least("budget_ms", result.budget_ms, 1)
    if result.greeting_ms is not None:
        _at_least("greeting_ms", result.greeting_ms, 0)
    return result


def _known(given: Mapping[str, Any], keys: Sequence[str], where: str) -> dict[str, Any]:
    unknown = [name for name in given if name not in keys]
    if unknown:
        raise InputError(
            "pytest.setting",
            f"{where}: no setting {', '.join(unknown)}",
            hint=f"allowed: {', '.join(keys)}",
        )
    return dict(given)


def _at_least(name: str, value: Any, least: float, most: float = inf) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        end = "on" if most == inf else f"to {most:g}"
        raise InputError(
            "pytest.setting", f"{name}={value!r}: expected a number from {least:g} {end}"
        )
