"""The flags that ask for the same agent again, without its secrets."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from turngap.core.secrets import text_without_secrets
from turngap.play.target import AgentChoice
from turngap.scenario.library import SUFFIXES

Flag = tuple[str, Any]


def agent_flags(choice: AgentChoice) -> list[Flag]:
    """List the flags that choose the agent, except its name and a URL's (`Endpoint.flags`)."""
    return [
        ("--start", choice.start),
        ("--llm", choice.backends.get("llm")),
        *(("--set", f"{k}={name}") for k, name in choice.backends.items() if name and k != "llm"),
        *(("--set", assignment) for assignment in choice.sets),
        ("--set", None if choice.seed is None else f"seed={choice.seed}"),
        ("--set", None if choice.traced else "marks=false"),
    ]


def played_again(names: Sequence[str], library: Path | None) -> list[str]:
    """Return the scenarios that were asked for, as one types them: names, files or a folder."""
    if library is None:
        return [quoted(name) for name in names]
    files = [each if Path(each).suffix in SUFFIXES else library / f"{each}.yaml" for each in names]
    return [quoted(each) for each in files or [library]]


def typed(flags: Iterable[Flag]) -> list[str]:
    """Each flag as one types it; those whose value is None are left out."""
    return [f"{flag} {quoted(value)}" for flag, value in flags if value is not None]


def quoted(value: Any) -> str:
    """Quote a value for a shell; `${NAME}` in it stays, and a secret is `(removed)`."""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return shlex.quote(text_without_secrets(shown))
