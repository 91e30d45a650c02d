"""What the repository's file (docs/repository.md) says for the fixture's calls, and the header."""

from collections.abc import Collection
from typing import Any

from turngap.core.errors import InputError
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import harmless

# What is called otherwise in Python than on the command line.
_IN_PYTHON = {
    "set_": "sets",
    "header": "headers",
    "subprotocol": "subprotocols",
    "against_set": "against_sets",
    "against_header": "against_headers",
    "budget": "budgets",
}


def said(command: str, given: Collection[str], allowed: Collection[str]) -> dict[str, Any]:
    """Return the keywords that the file has for a call, without those that `given` replaces.

    Raises:
        InputError: the file cannot be used.
    """
    from turngap.defaults.file import read_defaults
    from turngap.defaults.keys import REPLACED

    defaults = read_defaults()
    if defaults is None:
        return {}
    left_out = {name for by in given for name in REPLACED.get(by, ())}
    called = {
        _IN_PYTHON.get(name, name): value
        for name, value in defaults.of(command).items()
        if name not in left_out
    }
    return {name: value for name, value in called.items() if name in allowed}


def header() -> str | None:
    """Return the line of pytest's header that names the file and the command in it; None without.

    A file that cannot be used fails the tests that measure, and no others.
    """
    from turngap.defaults.file import read_defaults

    try:
        defaults = read_defaults()
    except InputError as e:
        return f"turngap: {harmless(e.message)}"
    if defaults is None:
        return None
    start = defaults.of("replay").get("start")
    starts = f"; it starts: {harmless(text_without_secrets(start))}" if start else ""
    return f"turngap: defaults from {defaults.name}{starts}"
