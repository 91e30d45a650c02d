"""What two agents are spoken to in: their figures compare only where the person is heard alike."""

from collections.abc import Mapping
from typing import Any

from turngap.caller.endpoint import PIPECAT
from turngap.caller.stream import RATE
from turngap.core.run_record import TOLD_BY_THE_LINE
from turngap.core.untrusted import printable

# What an agent that turngap starts itself is spoken to in.
_OURS = dict(zip(TOLD_BY_THE_LINE, (PIPECAT, RATE), strict=True))


def lines_differ(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> str | None:
    """Describe how the stored lines to two agents differ; None if no difference is known."""
    then, now = _line_of(reference), _line_of(candidate)
    if not any(then[name] != now[name] for name in then.keys() & now.keys()):
        return None
    return f"the reference is spoken to in {_words(then)}, the candidate in {_words(now)}"


def _line_of(agent: Mapping[str, Any]) -> dict[str, Any]:
    known = agent if "url" in agent else _OURS
    return {name: known[name] for name in TOLD_BY_THE_LINE if known.get(name) is not None}


def _words(line: Mapping[str, Any]) -> str:
    dialect, rate = (line.get(name) for name in TOLD_BY_THE_LINE)
    return f"{printable(str(dialect), 40)}" + (f" at {rate} Hz" if rate else "")
