"""Read YAML with its line numbers, in bounded time and memory for any content."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, Event
from ruamel.yaml.nodes import Node, ScalarNode

from turngap.core.errors import InputError
from turngap.core.untrusted import MAX_DEPTH, harmless, shown

# Keys, values, lists and mappings, with an alias counted as all that it stands for. A turn of a
# scenario has about thirty.
MAX_NODES = 50_000
_LONGEST_NUMBER = 64  # characters


class _RefusedError(MarkedYAMLError):
    def __init__(self, event: Event, why: str) -> None:
        super().__init__(problem=why, problem_mark=event.start_mark)


class _Bounded(Composer):
    """ruamel's composer, which stops as soon as a limit is exceeded."""

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader)
        self.warn_double_anchors = False  # YAML allows them
        self._level = self._nodes = 0
        self._sizes: dict[int, int] = {}  # of whole nodes, by id: what an alias of one adds

    def compose_node(self, parent: Any, index: Any) -> Any:
        event, before = self.parser.peek_event(), self._nodes
        self._level += 1
        if self._level > MAX_DEPTH:
            raise _RefusedError(event, f"nested deeper than {MAX_DEPTH}")
        node = super().compose_node(parent, index)
        if isinstance(event, AliasEvent):
            if id(node) not in self._sizes:
                raise _RefusedError(event, f"*{event.anchor} contains itself")
            self._nodes += self._sizes[id(node)]
        else:
            self._nodes += 1
            self._sizes[id(node)] = self._nodes - before
        if self._nodes > MAX_NODES:
            why = f"more than {MAX_NODES} keys and values, including those of aliases"
            raise _RefusedError(event, why)
        if isinstance(node, ScalarNode) and not _is_plain_number(node):
            raise _RefusedError(event, f"{shown(node.value, 80)} is not a finite number of 64 bits")
        self._level -= 1
        return node


def _is_plain_number(node: ScalarNode) -> bool:
    """Return whether a number is finite and has 64 bits; anything else passes."""
    kind = str(node.tag).rpartition(":")[2]
    if kind not in ("int", "float"):
        return True
    text = node.value.replace("_", "").lower()
    try:
        value = int(text, 0) if kind == "int" else float(text.replace(".inf", "inf"))
    except ValueError:  # in another base or notation, if it is short
        return len(text) <= _LONGEST_NUMBER and text != ".nan"
    return math.isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**63


def load_yaml(text: str, where: Path, what: str, *, kind: Literal["rt", "safe"] = "rt") -> Any:
    """Read YAML text: with `rt` into a tree that knows its lines, with `safe` into plain values.

    Raises:
        InputError: of the kind `{what}.not_yaml`, with the line.
    """
    return _checked(_yaml(kind).load, text, where, what)


def compose_yaml(text: str, where: Path, what: str) -> Node | None:
    """Read YAML text into its nodes, which know their lines; raises as `load_yaml` does."""
    return _checked(_yaml("rt").compose, text, where, what)


def _yaml(kind: str) -> YAML:
    yaml = YAML(typ=kind, pure=True)
    yaml.Composer = _Bounded
    return yaml


def _checked(read: Callable[[str], Any], text: str, where: Path, what: str) -> Any:
    line, why = 1, ""
    try:
        return read(text)
    except MarkedYAMLError as e:
        line = e.problem_mark.line + 1 if e.problem_mark else 1
        why, cause = e.problem or str(e), e
    except YAMLError as e:
        why, cause = str(e), e
    except Exception as e:  # ruamel lets through what int(), datetime and its own assertions raise
        why, cause = f"a value that cannot be read ({e})", e
    raise InputError(f"{what}.not_yaml", harmless(f"{where}:{line}: not YAML: {why}")) from cause
