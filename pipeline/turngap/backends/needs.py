"""Needs of an engine on this machine, and the commands that provide them."""

import ctypes
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import Distribution, requires
from pathlib import Path
from typing import Literal

from turngap.core.errors import AgentError


@dataclass(frozen=True, slots=True)
class Need:
    """One thing an engine needs on this machine.

    Attributes:
        kind: an importable module, an environment variable that must be set, a command on PATH, or
            a shared library, which the system or a wheel of NVIDIA's brings.
        name: the module's, variable's or command's name, or the library's file name.
        remedy: the command or step that provides it.
        extra: the extra of turngap that brings it; empty where none does.
        extra_mb: size of that whole extra on disk.
    """

    kind: Literal["module", "env", "command", "library"]
    name: str
    remedy: str
    extra: str = ""
    extra_mb: int = 0

    def met(self) -> bool:
        match self.kind:
            case "env":
                return bool(os.environ.get(self.name))
            case "command":
                return shutil.which(self.name) is not None
            case "library":
                return _is_library(self.name)
            case "module":
                return importlib.util.find_spec(self.name) is not None


# What every engine needs, as each creates one of pipecat's services. MB on disk that the extra adds
# to turngap's base, as installed on Linux x86_64 on 2026-11-23.
AGENT = Need("module", "pipecat", "pip install 'turngap[agent]'", "agent", 370)
# Modules that are imported where they are used, and which extra brings them.
_EXTRA_OF = {
    **dict.fromkeys(("pipecat", "onnxruntime", "openai", "PIL", "rapidfuzz"), "agent"),
    "huggingface_hub": "agent",
}


# The extras all of whose packages `embedded` brings, too.
_IN_EMBEDDED = ("small", "voice")


def not_installed(e: ImportError) -> AgentError | None:
    """Return the remedy for a missing module: an extra, or turngap's own dependencies.

    None if turngap does not bring the module.
    """
    if _without_dependencies():
        return AgentError(
            "base.missing",
            "turngap is here without its dependencies (--no-deps, for MarksObserver)",
            hint="run this in turngap's own environment, or install turngap here without --no-deps",
        )
    extra = _EXTRA_OF.get((e.name or "").partition(".")[0])
    if extra is None:
        return None
    return AgentError(
        "extra.missing",
        f"this needs the module {e.name}, which is not installed here",
        hint=install([extra]),
    )


def _without_dependencies() -> bool:
    """Return whether a package is missing that every installation of turngap has."""
    every = (need for need in requires("turngap") or () if "extra ==" not in need)
    names = [re.split(r"[^\w.-]", need, maxsplit=1)[0] for need in every]
    return any(next(iter(Distribution.discover(name=name)), None) is None for name in names)


def install(extras: Iterable[str]) -> str:
    """Return one command that installs these extras; every engine's extra includes the agent."""
    named = list(dict.fromkeys(extras))
    within = {AGENT.extra, *(_IN_EMBEDDED if "embedded" in named else ())}
    engines = [extra for extra in named if extra not in within]
    return f"pip install 'turngap[{','.join(engines or named)}]'"


def remedies(needs: Iterable[Need]) -> list[str]:
    """List the remedies of all needs; one command installs all extras."""
    wanted = list(needs)
    extras = [need.extra for need in wanted if need.extra]
    rest = dict.fromkeys(need.remedy for need in wanted if not need.extra)
    return [install(extras), *rest] if extras else [*rest]


def _is_library(name: str) -> bool:
    if any(True for entry in sys.path for _ in Path(entry, "nvidia").glob(f"*/lib/{name}")):
        return True
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
