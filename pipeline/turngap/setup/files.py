"""The files that `turngap init` writes: the defaults, a test, and a workflow."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from turngap.core.errors import InputError
from turngap.defaults.file import FILE
from turngap.store.documents import write_atomically, writing

_TEMPLATES = {
    FILE: FILE,
    "tests/test_turn_gap.py": "test_turn_gap.py.txt",
    ".github/workflows/turn-gap.yml": "turn-gap.yml",
}
_PORT = re.compile(r"^(wss?://[^/?#]*):\d+")
_PORT_OPTION = re.compile(r"\s--port[ =]\S+")
_PYTHON = re.compile(r"^\S*/python[\d.]*(?= )")

# 12 rounds of the three turns of `quick-questions` are 36: at 35 without a miss, Wilson's lower
# bound reaches 90 %.
SCENARIO = "quick-questions"
ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the files are made of.

    Attributes:
        agent: its URL, or the name of a stack.
        start: the command that starts it; empty: it runs already, or turngap starts it.
        dialect: of its URL; empty: not known.
        headers: of its URL.
        scenarios: what is played; empty: all of the library.
        gap_ms: the budget.
        target: the share of turns that must keep it.
        takes_port: whether `--port` can be added to the command.
    """

    agent: str
    start: str = ""
    dialect: str = ""
    headers: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = (SCENARIO,)
    gap_ms: float = 800.0
    target: float = 0.9
    takes_port: bool = False


def contents(chosen: Chosen) -> dict[str, str]:
    """Each file's text by its path in the repository."""
    texts = _environment()
    words = {
        "chosen": replace(chosen, gap_ms=_short(chosen.gap_ms), target=_short(chosen.target)),
        "rounds": ROUNDS,
        "in_ci": _in_ci(chosen),
        "url": _PORT.sub(r"\1:$PORT", chosen.agent),
    }
    return {
        file: texts.get_template(template).render(words) for file, template in _TEMPLATES.items()
    }


def write(folder: Path, files: Mapping[str, str], *, force: bool) -> list[str]:
    """Write files, each whole; returns the paths of those written.

    Without `force` those that are there already stay, and are not among them.

    Raises:
        InputError: a file cannot be written, or a link in its path leads out of the folder.
    """
    written: list[str] = []
    for name, text in files.items():
        file = folder / name
        if (file.exists() or file.is_symlink()) and not force:
            continue
        if not file.parent.resolve().is_relative_to(folder.resolve()):
            raise InputError("init.outside", f"{name}: a link in its path leads out of {folder}")
        with writing(file, "init.unwritable"):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, text.encode())
        written.append(name)
    return written


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("turngap.setup"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        block_start_string="<%",
        block_end_string="%>",
        variable_start_string="<<",
        variable_end_string=">>",
        autoescape=False,
    )
    environment.filters |= {"toml": _toml, "json": _json}
    return environment


def _toml(value: str | Sequence[str]) -> str:
    """A text or a list of texts as TOML, whose strings are those of JSON but for DEL."""
    return _json(value).replace("\x7f", "\\u007f")


def _json(value: str | Sequence[str]) -> str:
    """As YAML, too: its strings in double quotes take what JSON escapes."""
    return json.dumps(value, ensure_ascii=False)


def _short(number: float) -> float | int:
    return int(number) if number == int(number) else number


def _in_ci(chosen: Chosen) -> str:
    """The command in CI, where an environment is active and two versions run side by side."""
    start = _PYTHON.sub("python", chosen.start or "python bot.py")
    return f'{_PORT_OPTION.sub("", start)} --port "$PORT"' if chosen.takes_port else start
