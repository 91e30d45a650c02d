"""Errors that say what happened, what was expected and what to do next."""

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

from turngap.core.secrets import text_without_secrets


class ExitCode(IntEnum):
    """The meanings of a command's exit status. Stable: CI scripts rely on it."""

    PASS = 0
    OVER_BUDGET = 1
    BAD_INPUT = 2
    INCONCLUSIVE = 3
    AGENT_FAILED = 4


class TurngapError(Exception):
    """An error that a user can act on; its text contains no secret.

    Attributes:
        kind: stable, machine-readable name, for example `scenario.unknown_key`.
        hint: the next step, if possible as a command; a traceback shows it too.
        exit_code: the exit code of a command that ends with this error.
        stored: the run, check or comparison that `turngap.replay`, `check` or `compare` had stored
            when it failed, with its `path`; None if nothing was stored.
    """

    exit_code = ExitCode.BAD_INPUT
    stored: Any = None

    def __init__(self, kind: str, message: str, *, hint: str = "") -> None:
        super().__init__(text_without_secrets(message))
        self.kind = kind
        self.hint = text_without_secrets(hint)
        if hint:
            self.add_note(self.hint)

    @property
    def message(self) -> str:
        """Return what happened and what was expected, in one line or a few."""
        return str(self)


class InputError(TurngapError):
    """A file, flag or value cannot be used as given (exit code 2)."""


# So begins what is said where no one answers.
NOTHING_THERE = "nothing can be reached"


class AgentError(TurngapError):
    """The agent, or a service behind it, failed or was not reachable (exit code 4)."""

    exit_code = ExitCode.AGENT_FAILED


class InconclusiveError(TurngapError):
    """The measurement was made, but no reliable conclusion follows from it (exit code 3)."""

    exit_code = ExitCode.INCONCLUSIVE


class LatencyError(AssertionError):
    """A test measured an agent that was slower than asserted, or did something else."""


# Tracebacks and pytest's summary name exceptions with their module.
LatencyError.__module__ = "turngap"


# HOST:PORT with what may follow; the scheme was forgotten.
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/\S*)?|\[[0-9a-fA-F:]+\]:\d+(/\S*)?")


def url_meant(text: str) -> str:
    """Return a hint with the URLs that were probably meant; empty if there are none."""
    meant = f"did you mean ws://{text}? Or http://{text}, for a call over WebRTC?"
    return meant if _HOST_AND_PORT.fullmatch(text) else ""


# Of more names than these, a hint that can say where all are listed shows this many.
_MOST_NAMES = 8


def known_names(name: str, known: Iterable[str], listed_by: str = "") -> str:
    """Return the hint for an unknown name: the name probably meant, then the known names.

    `listed_by` is the command that lists all of them; if they are many, the hint has the first few.
    """
    names = list(known)
    meant = probably_meant(name, names)
    did_you = f"did you mean {meant}?\n  " if meant else ""
    if not listed_by or len(names) <= _MOST_NAMES:
        return f"{did_you}known: {', '.join(names) or 'none'}"
    some = ", ".join(names[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{did_you}known: {some} and {more} more; `{listed_by}` lists all"


def probably_meant(name: str, known: Iterable[str]) -> str:
    """Return the known name nearest to an unknown one; empty if none is near.

    For `table.key`, the key alone may match.
    """
    import difflib

    names = list(known)
    by_end = {full.rpartition(".")[2]: full for full in names} | {full: full for full in names}
    close = difflib.get_close_matches(name, by_end, n=1)
    return by_end[close[0]] if close else ""
