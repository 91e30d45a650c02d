"""What the readers of all kinds share: texts that can be shown, and the runs beside a record."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from turngap.core.errors import InputError
from turngap.core.run_record import TOLD_BY_THE_LINE
from turngap.core.stats import Percentile
from turngap.core.untrusted import printable
from turngap.history.entry import Status
from turngap.store.folders import INTERRUPTED, read_record

# A reason or a name in a list: the whole is in the folder.
_MOST_WORDS = 1000
# The last line of a traceback.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")


def beside(folder: Path, name: str) -> Path:
    """A run's folder beside a record, which may come from anybody and must not lead elsewhere."""
    if Path(name).name != name or name in ("", ".", ".."):
        raise InputError("document.damaged", f"{printable(name, 100)!r} is no folder beside it")
    return folder / name


def played_beside(folder: Path, names: Iterable[str]) -> str:
    """What was played in the runs beside a record; empty where none of them can be read."""
    for name in names:
        try:
            return played_digest(read_record(beside(folder, name)).scenario_hashes)
        except InputError:
            continue
    return ""


def played_digest(scenario_hashes: Mapping[str, str]) -> str:
    """Tell what was played: the same scenarios with the same recordings have the same digest."""
    if not scenario_hashes:
        return ""
    return hashlib.sha256(repr(sorted(scenario_hashes.items())).encode()).hexdigest()[:12]


def ended(failure: str | None) -> Status:
    """How it ended, by what is stored as its failure."""
    if failure is None:
        return "finished"
    return "unfinished" if failure == INTERRUPTED else "failed"


def commit_of(commit: object) -> str | None:
    """A commit; None for what is none."""
    text = word(str(commit or ""))
    return text if re.fullmatch(r"[0-9a-fA-F]{4,64}(-dirty)?", text) else None


def line_of(agent: Mapping[str, Any]) -> str:
    """The dialect and the rate that an agent at a URL was spoken to in, as far as is known."""
    told = [agent.get(name) for name in TOLD_BY_THE_LINE] if "url" in agent else []
    return word(" ".join(str(value) for value in told if value is not None))


def values(percentiles: Mapping[str, Percentile]) -> dict[str, float | None]:
    """The two percentiles of an entry, without their intervals."""
    return {name: percentiles[name].value for name in ("p50", "p95")}


def several(n: int, what: str) -> str:
    """`8 sessions`."""
    return f"{n:,} {what}{'s' * (n != 1)}"


def word(text: str) -> str:
    """A text in one line that can be shown anywhere."""
    return printable(text, _MOST_WORDS)


def texts(given: Iterable[str]) -> tuple[str, ...]:
    """Several reasons, each in one line and once, without empty ones."""
    return tuple(dict.fromkeys(filter(None, (word(_without_its_log(text)) for text in given))))


def _without_its_log(reason: str) -> str:
    """What ended a command, of a reason that quotes the end of its log: all is in the folder."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if len(lines) < 2:
        return reason
    raised = [line for line in lines[1:] if _RAISED.match(line)]
    return raised[-1] if raised else f"{lines[0]} {lines[-1]}"
