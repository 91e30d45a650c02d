"""Find and read a repository's defaults, in `turngap.toml` or `[tool.turngap]`.

Commands and pytest share this one reader. The keys are the options of `turngap.play.options`.
"""

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model

from turngap.core.errors import InputError, probably_meant
from turngap.core.untrusted import (
    MAX_TOML_BYTES,
    UNKNOWN_KEY,
    harmless,
    parse_toml,
    problems,
    reason_in_toml,
)
from turngap.play.options import OPTIONS, Option, options_of
from turngap.store.files import decoded, read_bytes

FILE = "turngap.toml"
PYPROJECT = "pyproject.toml"
TABLE = ("tool", "turngap")
# Names the file to read in place of the one that is found; `none`: read none.
VARIABLE = "TURNGAP_CONFIG"

# By what was given, in a flag, a variable or a test: what of the file is left out then.
OF_THE_AGENT = ("start", "dialect", "headers", "llm", "sets")
_OF_THE_REFERENCE = ("start_against", "against_dialect", "against_headers", "against_sets")
REPLACED: dict[str, tuple[str, ...]] = {
    "agent": OF_THE_AGENT,
    "against": (*_OF_THE_REFERENCE, "baseline"),
    "baseline": ("against", *_OF_THE_REFERENCE),
    "tag": ("scenarios",),
    "scenarios": ("tag",),
}

_AGENTS = ("agent", "against")
_COMMANDS = ("start", "start_against")
_PATHS = ("baseline", "out")
# Before a folder and a command: `env -C` is GNU's alone. The shell sees no word of the command.
_IN_A_FOLDER = """sh -c 'CDPATH= cd -- "$0" && exec "$@"'"""

# Strings and comments of TOML; the group holds those of one line, which a key may be.
_STRING = re.compile(
    r"""'{3}.*?'{3}|"{3}(?:\\.|[^\\])*?"{3}|('[^'\n]*'|"(?:\\.|[^"\\\n])*")|#[^\n]*""", re.DOTALL
)
_PART = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_KEY = rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*"
_ASSIGNED, _HEADER = re.compile(_KEY + "="), re.compile(rf"\s*\[{{1,2}}{_KEY}\]{{1,2}}\s*")


def _listed(value: Any) -> Any:
    """Return a single text as a list of one."""
    return [value] if isinstance(value, str) else value


_TEXT = Annotated[str, Field(min_length=1)]
_TEXTS = Annotated[list[_TEXT], BeforeValidator(_listed)]


class Keys(BaseModel):
    """A table of the defaults file; a missing key is None."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _field(option: Option) -> Any:
    types: dict[type, Any] = {dict: dict[str, float], int: int, float: float, bool: bool}
    kind = types.get(option.kind, _TEXTS if option.many else _TEXT)
    return (kind | None, Field(None, alias=option.key))


def _table(name: str, options: Iterable[Option], **more: Any) -> type[Keys]:
    """Build the model of a table; if two options share a key, the last one has it."""
    fields = {each.name: _field(each) for each in {each.key: each for each in options}.values()}
    return create_model(name, __base__=Keys, **fields, **more)


# Keys that all commands take stand at the top of the file.
SHARED = [each for each in OPTIONS if each.shared]
_OWN = {
    command: [each for each in options_of(command).values() if each.in_file]
    for command in ("check", "replay", "turns", "compare", "load")
}
TABLES = {command: _table(command, (*SHARED, *own)) for command, own in _OWN.items()}
Document = _table(
    "Document", SHARED, **{command: (table, table()) for command, table in TABLES.items()}
)


@dataclass(frozen=True, slots=True)
class Defaults:
    """A repository's defaults, as read from its file.

    Attributes:
        path: the file, relative to the working directory if it lies there or above.
        shared, tables: values by the options' names in Python, for example `until_decided`.
        text: the text of the file.
    """

    path: Path
    shared: Mapping[str, Any]
    tables: Mapping[str, Mapping[str, Any]]
    text: str

    @property
    def name(self) -> str:
        """Return the file's name for people."""
        table = " [tool.turngap]" if self.path.name == PYPROJECT else ""
        return harmless(f"{self.path}{table}")

    def of(self, command: str) -> dict[str, Any]:
        """Return the values for a command: those shared by all commands, then its own."""
        its_own = {each.key for each in _OWN.get(command, ())}
        shared = {n: value for n, value in self.shared.items() if _KEYS[n] not in its_own}
        return {**shared, **self.tables.get(command, {})}

    def keys(self, command: str) -> list[str]:
        """Return the keys of the values for a command, as the file spells them."""
        return [_KEYS[name] for name in self.of(command)]

    def where(self, command: str, name: str) -> str:
        """Return the file and line of a value that `of(command)` has."""
        table = (command,) if name in self.tables.get(command, {}) else ()
        prefix = TABLE if self.path.name == PYPROJECT else ()
        line = line_of(self.text, (*prefix, *table, _KEYS[name]))
        return f"{harmless(str(self.path))}:{line}"


def read_defaults() -> Defaults | None:
    """Read the defaults of the repository around the working directory; None if it has none.

    The file is searched for in the working directory and above it, up to the folder with `.git`.
    Outside a repository, only the working directory is searched.

    Raises:
        InputError: the file has wrong keys, each named with its line, or cannot be used otherwise.
            Or the file is another user's, and `TURNGAP_CONFIG` does not name it.
    """
    named = os.environ.get(VARIABLE)
    if named == "none":
        return None
    if named:
        return _read(Path(named), required=True)
    here = Path.cwd()
    root, above = repository_of(here), [here, *here.parents]
    for folder in [here] if root is None else above[: above.index(root) + 1]:
        files = [each for file in (FILE, PYPROJECT) if (each := _read(folder / file)) is not None]
        if len(files) > 1:
            raise InputError(
                "config.two_files",
                f"{files[0].path} and {files[1].path} both have defaults for turngap",
                hint=f"move the defaults of {files[1].name} into {files[0].path}",
            )
        if files:
            return files[0]
    return None


def repository_of(here: Path) -> Path | None:
    """Return the root of the repository around an absolute path; None outside of one."""
    return next((each for each in (here, *here.parents) if (each / ".git").exists()), None)


def strangers(file: Path) -> set[int]:
    """Return the other users who own a file or its target: the file can run commands as the user.

    The user, root and the owner of the working directory are not strangers: in a container, root
    often works in another user's checkout.
    """
    return owners(file) - {os.geteuid(), 0} - owners(Path())


def owners(path: Path) -> set[int]:
    """Return the owner of a path and, if it is a link, the owner of its target."""
    return {path.lstat().st_uid, path.stat().st_uid}


def line_of(text: str, key: tuple[str, ...]) -> int:
    """Return the line, from 1, of a key in TOML, or of the nearest table or key around it."""
    best, depth, table = 1, 0, ()
    flat = _STRING.sub(lambda string: string[1] or "\n" * string[0].count("\n"), text)
    for number, line in enumerate(flat.split("\n"), start=1):
        if header := _HEADER.fullmatch(line):
            table = path = _parts(header[1])
        elif assigned := _ASSIGNED.match(line):
            path = (*table, *_parts(assigned[1]))
        else:
            continue
        if path == key[: len(path)] and len(path) > depth:
            best, depth = number, len(path)
    return best


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip(" \t\"'") for part in dotted.split("."))


def _read(file: Path, *, required: bool = False) -> Defaults | None:
    """Read one file; None if there is none, or if it has nothing for turngap."""
    if not required and not os.path.lexists(file):
        return None
    path = Path(os.path.relpath(file))
    raw = read_bytes(path, "config", most=MAX_TOML_BYTES)
    in_pyproject = file.name == PYPROJECT
    if in_pyproject and b"turngap" not in raw:
        return None
    try:
        text = decoded(raw)
        values: Any = parse_toml(text)
    except ValueError as e:
        raise InputError("config.not_toml", f"{harmless(str(path))}: not TOML: {e}") from e
    prefix = TABLE if in_pyproject else ()
    for part in prefix:
        values = values.get(part) if isinstance(values, dict) else None
    if values is None:
        return None
    if not required and (others := strangers(path)):
        shown, whose = harmless(str(path)), ", ".join(map(str, sorted(others)))
        raise InputError(
            "config.owner",
            f"{shown} belongs to another user (uid {whose}), and could run commands with your "
            "rights",
            hint=f"read the file; to use it, set {VARIABLE}={shown}, or none to ignore it",
        )
    try:
        document = Document.model_validate(values)
    except ValidationError as e:
        raise _refused(e, text, prefix, path) from e
    tables = {name: _from_folder(getattr(document, name), path) for name in TABLES}
    return Defaults(path, _from_folder(document, path), tables, text)


_KEYS = {each.name: each.key for each in OPTIONS}


def _keys(table: type[Keys]) -> list[str]:
    return [field.alias or name for name, field in table.model_fields.items()]


def _refused(error: ValidationError, text: str, prefix: tuple[str, ...], path: Path) -> InputError:
    """Return the error that names every wrong key with its line, and suggests known keys."""
    lines: list[tuple[int, str]] = []
    kind, hints = "config.value", dict[str, None]()
    for problem in problems(error):
        at: list[str] = [part for part in problem["loc"] if isinstance(part, str)]
        line, reason = line_of(text, (*prefix, *at)), reason_in_toml(problem)
        if at and reason == UNKNOWN_KEY:
            kind = "config.unknown_key"
            table = at[0] if len(at) > 1 and at[0] in TABLES else ""
            known = _keys(TABLES[table] if table else Document)
            meant = probably_meant(at[-1], known)
            if not table and (below := _tables_with(at[-1])):
                reason += f"; it belongs below {below}"
            elif meant:
                reason += f"; did you mean {meant}?"
            else:
                there = f"below [{table}]" if table else "at the top"
                hints[f"keys {there}: {', '.join(known)}"] = None
        lines.append((line, harmless(f"{path}:{line}: {'.'.join(at) or 'turngap'}: {reason}")))
    return InputError(kind, "\n".join(each for _, each in sorted(lines)), hint="\n  ".join(hints))


def _tables_with(key: str) -> str:
    tables = [f"[{name}]" for name, table in TABLES.items() if key in _keys(table)]
    return " or ".join(tables)


def _from_folder(model: Keys, path: Path) -> dict[str, Any]:
    """Return a table's values, with their paths as seen from the working directory."""
    folder = path.parent
    values = {n: getattr(model, n) for n in model.model_fields_set if n not in TABLES}
    if "out" in values and not (folder / values["out"]).resolve().is_relative_to(folder.resolve()):
        raise InputError(
            "config.outside",
            f"{harmless(str(path))}: out = {values['out']!r} leads out of the file's folder",
            hint="give a folder below it, or another one with --out",
        )
    if folder == Path():
        return values
    for name, value in values.items():
        if name in _PATHS:
            values[name] = os.path.relpath(folder / value)
        elif name in _AGENTS:
            values[name] = _agent_from(folder, value)
        elif name in _COMMANDS:
            values[name] = f"{_IN_A_FOLDER} {shlex.quote(str(folder))} {value}"
        elif name == "scenarios":
            values[name] = [_scenario_from(folder, each) for each in value]
    return values


def _agent_from(folder: Path, agent: str) -> str:
    """Return a stack's name or a URL as it is; a stack file or a checkout is a path."""
    file, mark, stack = agent.partition("#")
    is_path = "://" not in agent and (mark or "/" in file or Path(file).suffix == ".toml")
    return f"{os.path.relpath(folder / file)}{mark}{stack}" if is_path else agent


def _scenario_from(folder: Path, name: str) -> str:
    is_path = "/" in name or Path(name).suffix in (".yaml", ".yml") or (folder / name).is_dir()
    return os.path.relpath(folder / name) if is_path else name
