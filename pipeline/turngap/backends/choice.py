"""Engines found by the entry points of the installed packages, and chosen in a line of text."""

import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from turngap.backends.spec import KINDS, BackendSettings, BackendSpec, Kind
from turngap.core.errors import InputError, known_names
from turngap.core.untrusted import shown
from turngap.store.files import parse_toml

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


# What `--set` gives in a word; Linux allows an argument of twice as much.
MAX_VALUE = 2**16

# A string of TOML, or any other character. An apostrophe within a word begins no string.
_TOKEN = re.compile(r"""(?<=[=\[{,\s])(?:"(?:\\.|[^"\\])*"|'[^']*')|.""", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BackendChoice:
    """A backend as somebody asks for it, `[LABEL=]BACKEND[,KEY=VALUE…]`.

    Attributes:
        name: what it is called here: its label, or else the whole text.
        sets: `KEY=VALUE` each.
    """

    name: str
    backend: str
    sets: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "BackendChoice":
        """Read the text of `--llm`, `--offer`, `--judge` or `--transcribe`.

        A value is TOML, or else a bare word; commas within its brackets or quotes belong to it.

        Raises:
            InputError: the text is not of that form.
        """
        head, *sets = _pieces(text)
        label, equals, backend = (part.strip() for part in head.partition("="))
        if not label or (equals and not backend):
            raise _unreadable(text, f"{head.strip()!r} is no [LABEL=]BACKEND")
        for assignment in sets:
            key, equals_, _ = assignment.partition("=")
            if not equals_ or not key.strip():
                raise _unreadable(text, f"{assignment.strip()!r} is no KEY=VALUE")
        return cls(
            label if equals else text.strip(), backend or label, tuple(s.strip() for s in sets)
        )

    def values(self) -> dict[str, Any]:
        pairs = (assignment.partition("=") for assignment in self.sets)
        return {key.strip(): value_of(value) for key, _, value in pairs}

    def configured(self, kind: Kind, defaults: Mapping[str, Any]) -> "ConfiguredBackend":
        """Validate the backend's settings over `defaults` and return it configured.

        Raises:
            InputError: an unknown backend or setting.
            AgentError: it needs what this machine lacks.
        """
        spec = find(kind, self.backend)
        spec.require()
        return ConfiguredBackend(self.name, spec, spec.settings({**defaults, **self.values()}))


@dataclass(frozen=True, slots=True)
class ConfiguredBackend:
    """A backend with checked settings, under the name by which it is picked."""

    name: str
    spec: BackendSpec
    settings: BackendSettings

    @property
    def narrow(self) -> bool:
        """Return whether the model knows only the conversations of the library."""
        return self.spec.narrow is not None and self.spec.narrow(self.settings)

    def prepare(self) -> None:
        """Load it, or see that its server answers. Slow.

        Raises:
            TurngapError: it cannot be used.
        """
        if self.spec.prepare is not None:
            self.spec.prepare(self.settings)


def _pieces(text: str) -> list[str]:
    """`text` at its commas, but for those within brackets or quotes."""
    pieces, open_brackets = [""], 0
    for token in _TOKEN.findall(text):
        open_brackets = max(0, open_brackets + (token in "[{") - (token in "]}"))
        if token == "," and not open_brackets:
            pieces.append("")
        else:
            pieces[-1] += token
    if open_brackets:
        raise _unreadable(text, "a bracket is not closed")
    return pieces


def _unreadable(text: str, why: str) -> InputError:
    return InputError(
        "backend.unreadable",
        f"{text!r}: {why}",
        hint="expected [LABEL=]BACKEND[,KEY=VALUE…], for example slow=sim,ttft_ms=400",
    )


def value_of(text: str) -> Any:
    """Parse a setting's value from the command line: TOML, or else a bare word.

    Raises:
        InputError: it is longer than any setting is, or nested deeper, or not a finite number.
    """
    if len(text) > MAX_VALUE:
        raise InputError(
            "backend.value",
            f"{shown(text, 80)} has {len(text)} characters, expected at most {MAX_VALUE}",
            hint="write it into a stack file, if it is a prompt",
        )
    try:
        values = parse_toml(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text.strip()
    except ValueError as e:
        raise InputError(
            "backend.value", f"{shown(text, 80)} is no value: {e}", hint="give it as TOML"
        ) from e
    return values["value"] if len(values) == 1 else text.strip()
