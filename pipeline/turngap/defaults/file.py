"""Finds and reads the file with a repository's defaults: the one reader for commands and pytest."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from turngap.core.errors import InputError, probably_meant
from turngap.core.problems import UNKNOWN_KEY, problems, reason_in_toml
from turngap.core.untrusted import harmless
from turngap.defaults.keys import OF_THEIR_OWN, SHARED, TABLES, Document, Shared
from turngap.defaults.lines import line_of
from turngap.defaults.owner import require_own
from turngap.store.files import MAX_TOML_BYTES, parse_toml, read_bytes

FILE = "turngap.toml"
PYPROJECT = "pyproject.toml"
TABLE = ("tool", "turngap")
# Names the file to read in place of the one that is found; `none`: read none.
VARIABLE = "TURNGAP_CONFIG"

_AGENTS = ("agent", "against")
_COMMANDS = ("start", "start_against")
_PATHS = ("library", "baseline", "out")
# Before a folder and a command: `env -C` is GNU's alone. The shell sees no word of the command.
_IN_A_FOLDER = """sh -c 'CDPATH= cd -- "$0" && exec "$@"'"""


@dataclass(frozen=True, slots=True)
class Defaults:
    """A repository's defaults, as its file says them.

    Attributes:
        path: the file, relative to the working directory where it lies there or above.
        shared, tables: values by the names that options have in Python, so `until_decided`.
        lines: where each stands, by its table (empty: none) and its name.
    """

    path: Path
    shared: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]
    lines: Mapping[tuple[str, str], int]

    @property
    def name(self) -> str:
        """The file as people are told of it."""
        table = " [tool.turngap]" if self.path.name == PYPROJECT else ""
        return harmless(f"{self.path}{table}")

    def of(self, command: str) -> dict[str, Any]:
        """The values for a command: those that all share, then its own."""
        of_its_own = OF_THEIR_OWN.get(command, ())
        shared = {name: value for name, value in self.shared.items() if name not in of_its_own}
        return {**shared, **self.tables.get(command, {})}

    def where(self, command: str, name: str) -> str:
        """File and line of a value that `of(command)` has."""
        table = command if name in self.tables.get(command, {}) else ""
        return f"{harmless(str(self.path))}:{self.lines[table, name]}"


def read_defaults() -> Defaults | None:
    """Read what the repository around the working directory says; None where it says nothing.

    The file is looked for in the working directory and above it, up to the folder that has `.git`.
    Outside of a repository only the working directory counts.

    Raises:
        InputError: the file cannot be used; each wrong key is named with its line. Or it is
            another user's, and `TURNGAP_CONFIG` does not name it.
    """
    named = os.environ.get(VARIABLE)
    if named == "none":
        return None
    if named:
        return _read(Path(named), required=True)
    for folder in _folders(Path.cwd()):
        found = [each for file in (FILE, PYPROJECT) if (each := _read(folder / file)) is not None]
        if len(found) > 1:
            raise InputError(
                "config.two_files",
                f"{found[0].path} and {found[1].path} both have defaults for turngap",
                hint=f"move those of {found[1].name} into {found[0].path}",
            )
        if found:
            return found[0]
    return None


def _folders(here: Path) -> list[Path]:
    """Where to look, the nearest first."""
    root = repository_of(here)
    above = [here, *here.parents]
    return [here] if root is None else above[: above.index(root) + 1]


def repository_of(here: Path) -> Path | None:
    """The root of the repository around an absolute path; None outside of one."""
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), None)


def _read(file: Path, *, required: bool = False) -> Defaults | None:
    """Read one file; None where there is none, or it says nothing of turngap."""
    if not required and not os.path.lexists(file):
        return None
    shown = Path(os.path.relpath(file))
    raw = read_bytes(shown, "config", most=MAX_TOML_BYTES)
    in_pyproject = file.name == PYPROJECT
    if in_pyproject and b"turngap" not in raw:
        return None
    try:
        text = raw.decode("utf-8-sig")
        values: Any = parse_toml(text)
    except ValueError as e:
        raise InputError("config.not_toml", f"{harmless(str(shown))}: not TOML: {e}") from e
    prefix = TABLE if in_pyproject else ()
    for part in prefix:
        values = values.get(part) if isinstance(values, dict) else None
    if values is None:
        return None
    if not required:
        require_own(shown, VARIABLE)
    return _checked(values, text, prefix, shown)


def _checked(values: Any, text: str, prefix: tuple[str, ...], path: Path) -> Defaults:
    try:
        document = Document.model_validate(values)
    except ValidationError as e:
        raise _refused(e, text, prefix, path) from e
    folder = path.parent
    shared = _said(document, folder, path)
    tables = {name: _said(getattr(document, name), folder, path) for name in TABLES}
    lines = {
        (table, name): line_of(text, (*prefix, *filter(None, (table,)), _key(name)))
        for table, said in {"": shared, **tables}.items()
        for name in said
    }
    return Defaults(path, shared, tables, lines)


def _key(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def _refused(error: ValidationError, text: str, prefix: tuple[str, ...], path: Path) -> InputError:
    """Every wrong key with its line; of an unknown one, which was meant or which there are."""
    found: list[tuple[int, str]] = []
    kind, hints = "config.value", dict[str, None]()
    for problem in problems(error):
        at: list[str] = [part for part in problem["loc"] if isinstance(part, str)]
        line = line_of(text, (*prefix, *at))
        said = reason_in_toml(problem)
        if at and said == UNKNOWN_KEY:
            kind = "config.unknown_key"
            meant, known = _instead(at)
            said += f"; {meant}" if meant else ""
            hints |= {} if meant else {known: None}
        found.append((line, harmless(f"{path}:{line}: {'.'.join(at) or 'turngap'}: {said}")))
    return InputError(kind, "\n".join(said for _, said in sorted(found)), hint="\n  ".join(hints))


def _instead(at: list[str]) -> tuple[str, str]:
    """What was probably meant by an unknown key, empty where nothing is near; and all there are."""
    table = at[0] if len(at) > 1 and at[0] in TABLES else ""
    known = [_key(name) for name in (TABLES[table] if table else Document).model_fields]
    meant = probably_meant(at[-1], known)
    said = f"did you mean {meant}?" if meant else ""
    return (
        ("" if table else _belongs(at[-1])) or said,
        f"keys {f'below [{table}]' if table else 'at the top'}: {', '.join(known)}",
    )


def _belongs(key: str) -> str:
    """Below which table a key belongs that stands at the top; empty for one that no table has."""
    tables = [f"[{name}]" for name, table in TABLES.items() if key in map(_key, table.model_fields)]
    return f"it belongs below {' or '.join(tables)}" if tables else ""


def _said(model: Shared, folder: Path, path: Path) -> dict[str, Any]:
    """What a table says, with its paths as they are seen from the working directory."""
    fields = [name for name in type(model).model_fields if name not in TABLES]
    said = {name: getattr(model, name) for name in fields if name in model.model_fields_set}
    if "out" in said:
        _require_inside(folder, said["out"], path)
    if folder != Path():
        for name in said.keys() & {*_PATHS}:
            said[name] = _from_here(folder, said[name])
        for name in said.keys() & {*_AGENTS}:
            said[name] = _agent_from_here(folder, said[name])
        for name in said.keys() & {*_COMMANDS}:
            said[name] = f"{_IN_A_FOLDER} {shlex.quote(str(folder))} {said[name]}"
        if "scenarios" in said:
            said["scenarios"] = [_scenario_from_here(folder, each) for each in said["scenarios"]]
    return said


def _require_inside(folder: Path, out: str, path: Path) -> None:
    """Refuse to store anything outside of the repository because its file says so."""
    if not (folder / out).resolve().is_relative_to(folder.resolve()):
        raise InputError(
            "config.outside",
            f"{harmless(str(path))}: out = {out!r} leads out of the file's folder",
            hint="give a folder below it, or another one with --out",
        )


def _from_here(folder: Path, path: str) -> str:
    return os.path.relpath(folder / path)


def _agent_from_here(folder: Path, agent: str) -> str:
    """A stack's name or a URL stays; a stack file or a checkout is a path."""
    file, mark, stack = agent.partition("#")
    is_path = "://" not in agent and (mark or "/" in file or Path(file).suffix == ".toml")
    return f"{_from_here(folder, file)}{mark}{stack}" if is_path else agent


def _scenario_from_here(folder: Path, name: str) -> str:
    is_path = "/" in name or Path(name).suffix in (".yaml", ".yml")
    return _from_here(folder, name) if is_path else name


__all__ = ["FILE", "SHARED", "VARIABLE", "Defaults", "read_defaults", "repository_of"]
