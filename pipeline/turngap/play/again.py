"""The flags that ask for the same agent again, without its secrets."""

import shlex
from collections.abc import Iterable
from typing import Any

from turngap.core.secrets import text_without_secrets
from turngap.play.target import AgentChoice

Flag = tuple[str, Any]


def agent_flags(choice: AgentChoice) -> list[Flag]:
    """What chooses the agent, but for its name, or for the flags of a URL (`Endpoint.flags`)."""
    return [
        ("--start", choice.start),
        *((f"--{kind}", backend) for kind, backend in choice.backends.items()),
        *(("--set", assignment) for assignment in choice.sets),
        ("--seed", choice.seed),
    ]


def typed(flags: Iterable[Flag]) -> list[str]:
    """Each flag as one types it; those whose value is None are left out."""
    return [f"{flag} {quoted(value)}" for flag, value in flags if value is not None]


def quoted(value: Any) -> str:
    """A value as a shell takes it; `${NAME}` in it stays, and a secret is `(removed)`."""
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return shlex.quote(text_without_secrets(shown))
