"""The files that `turngap init` writes: the defaults, a test, and a workflow."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from turngap.core.errors import InputError
from turngap.defaults.file import FILE
from turngap.setup.chosen import ROUNDS, Chosen, require_no_secrets
from turngap.setup.workflow import in_ci
from turngap.store.documents import write_atomically, writing

TEST = "tests/test_turn_gap.py"
WORKFLOW = ".github/workflows/turn-gap.yml"


def contents(chosen: Chosen, below: Path = Path()) -> dict[str, str]:
    """Each file's text by its path, as it is seen from the folder `below` the repository's root.

    For an agent that no action can start there is no workflow, which lies at the root.

    Raises:
        InputError: there is a secret in what would be written.
    """
    require_no_secrets(chosen.agent, chosen.start, chosen.dialect, chosen.headers)
    words = {
        "chosen": replace(chosen, gap_ms=_short(chosen.gap_ms), target=_short(chosen.target)),
        "rounds": ROUNDS,
        "ci": in_ci(chosen),
        "below": "" if below == Path() else below.as_posix(),
    }
    templates = {FILE: FILE, TEST: "test_turn_gap.py.txt"}
    if words["ci"] is not None:
        templates[os.path.relpath(WORKFLOW, below)] = "turn-gap.yml"
    texts = _environment()
    return {
        file: texts.get_template(template).render(words) for file, template in templates.items()
    }


def write(
    folder: Path, files: Mapping[str, str], *, force: bool, root: Path | None = None
) -> list[str]:
    """Write files, each whole; returns the paths of those written.

    Those that are there already stay, and are not among them; `force` replaces the defaults, but
    no test and no workflow, which people adapt. `root` is the repository's, by default the folder.

    Raises:
        InputError: a file cannot be written, or a link in its path leads out of the repository.
    """
    written: list[str] = []
    for name, text in files.items():
        file = folder / name
        if (file.exists() or file.is_symlink()) and not (force and name == FILE):
            continue
        within = (root or folder).resolve()
        if not file.parent.resolve().is_relative_to(within):
            raise InputError("init.outside", f"{name}: a link in its path leads out of {within}")
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
