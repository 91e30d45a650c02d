"""Where engines are found: by the entry points of whatever packages are installed."""

import shlex
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points

from turngap.backends.spec import KINDS, BackendSpec, Kind
from turngap.core.errors import InputError, known_names

GROUP = "turngap.backends"


@cache
def specs() -> tuple[BackendSpec, ...]:
    """Load every registered backend, in the order of `KINDS` and then by name."""
    found: list[BackendSpec] = []
    for entry in entry_points(group=GROUP):
        provided: Iterable[BackendSpec] = entry.load()
        found.extend(provided)
    return tuple(sorted(found, key=lambda s: (KINDS.index(s.kind), s.name)))


def find(kind: Kind, name: str) -> BackendSpec:
    """Find the backend of that kind and name.

    Raises:
        InputError: there is none; the message names those there are.
    """
    for spec in specs():
        if spec.kind == kind and name == spec.name:
            return spec
    known = known_names(name, [spec.name for spec in specs() if spec.kind == kind])
    engine, *settings = name.split(",")
    if settings:
        flags = "".join(f" --set {shlex.quote(f'{kind}.{setting}')}" for setting in settings)
        known = f"its settings are flags of their own: --set {kind}={engine}{flags}; {known}"
    raise InputError(
        "backend.unknown",
        f"no {kind} backend named {name!r}",
        hint=f"{known}. `turngap backends` shows what each needs",
    )
