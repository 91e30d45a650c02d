"""The folders of runs: make one, find one by its name or label, and read its `run.json`."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngap.core.budget import REPLIED, SILENT, Outcome
from turngap.core.clock import instant
from turngap.core.errors import InputError, known_names
from turngap.core.results import Turn, TurnKey
from turngap.core.run_record import RunRecord
from turngap.core.untrusted import harmless, printable
from turngap.store.documents import (
    DEFAULT_ROOT,
    cut_off,
    exists,
    is_dir,
    is_file,
    parse_document,
    read_document,
    read_lines,
    writing,
)
from turngap.store.files import refuse_links

RUN_FILE = "run.json"
TURNS_FILE = "turns.jsonl"
AUDIO_DIR = "audio"
RUN_HINT = "give a run's folder or name, or `latest`; `turngap replay` makes one"

# An unknown name is answered with at most this many known ones of each kind.
_NAMED = 5

NOT_ENDED = "the run has not ended"
# What a run stores as its failure if the user ended it.
INTERRUPTED = "interrupted by the user"

# How a run came to its end. Only a finished one is ever `latest`.
RunStatus = Literal["finished", "unfinished", "failed"]


def utc_now(*since: str) -> str:
    """Return the present as `RunRecord` stores it, ISO 8601 to the millisecond; not for timing.

    It is never before the instants `since`, even if the clock was set back.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with suppress(ValueError):
        now = max((now, *since), key=instant)
    return now


def started_at(record: RunRecord) -> datetime:
    """Return when the run started.

    Raises:
        InputError: its record does not say.
    """
    try:
        return instant(record.started_utc)
    except ValueError as e:
        raise InputError(
            "run.started_utc", f"started_utc {record.started_utc!r} is not an ISO 8601 instant"
        ) from e


def read_record(path: Path) -> RunRecord:
    """Read `run.json` alone; raises `InputError` as `read_run` does.

    A run that was not finished is not valid, whatever its file says.
    """
    file = path / RUN_FILE
    if not is_dir(path):
        raise InputError("run.missing", f"{path}: no such run folder", hint=RUN_HINT)
    if not exists(file):
        raise InputError(
            "run.not_a_run", f"{path} is not a run's folder: it has no {RUN_FILE}", hint=RUN_HINT
        )
    return unfinished(read_document(file, RunRecord, hint=RUN_HINT), NOT_ENDED)


def beside(document: Path, name: str) -> Path:
    """Return the folder of a run that a stored document names next to itself.

    Raises:
        InputError: the path or a link leads elsewhere; the document may come from anywhere.
    """
    if Path(name).name != name or name in ("", ".", ".."):
        what = f"{document}: {printable(name, 100)!r} is not a folder next to it"
        raise InputError("document.damaged", what)
    refuse_links(document.parent / name, document.parent)
    return document.parent / name


def unfinished(record: RunRecord, how_far: str) -> RunRecord:
    """Mark a record as invalid until its run is finished; return a finished one as it is."""
    if record.finished_utc is not None:
        return record
    why = (f"unfinished: {how_far}",)
    return record.model_copy(update={"valid": False, "why_invalid": why})


def status_of(record: RunRecord, turns: int) -> RunStatus:
    """Return how a run with this many turns ended.

    A run is unfinished, and can be continued, if the user interrupted it, if it was killed, is
    being played, or lacks turns. A run that an error ended has failed. A finished run may still be
    invalid.
    """
    if record.finished_utc is None or record.failure == INTERRUPTED:
        return "unfinished"
    if record.failure is not None or not turns:
        return "failed"
    return "unfinished" if turns < record.planned_turns else "finished"


def new_folder(out: Path | None, name: str, started: datetime | None = None) -> Path:
    """Make a folder `<utc>-<name>` in `out` (default `./runs`), never an existing one.

    Raises:
        InputError: `out` cannot be written to.
    """
    root = out or DEFAULT_ROOT
    stem = f"{started or datetime.now(UTC):%Y%m%dT%H%M%SZ}-{slug(name)}"
    with writing(root, "run.unwritable", "give a folder that can be written to: --out DIR"):
        if not root.exists():
            root.mkdir(parents=True)
            _keep_out_of_git(root)
        return _new_folder(root, stem)


def _keep_out_of_git(root: Path) -> None:
    """Make git ignore the files in a new folder: recordings are large and personal.

    Outside a work tree nothing is written.
    """
    if any((above / ".git").exists() for above in root.resolve().parents):
        (root / ".gitignore").write_text("*\n", encoding="utf-8")


def _new_folder(root: Path, stem: str) -> Path:
    """Make `root/stem`; if it exists already, `root/stem-2` and so on."""
    number = 1
    while True:
        path = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def slug(name: str) -> str:
    """Convert `name` to a plain file name: no separators, no dots in front, not too long."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")[:60] or "run"


def latest_run(root: Path | None = None) -> Path:
    """Find the folder of the finished run that started last in `root` (default `./runs`).

    A run that failed, was interrupted, is being played or cannot be read is never the latest.

    Raises:
        InputError: no run is finished; the message says how the last one ended.
    """
    root = root or DEFAULT_ROOT
    stored = _stored(root)
    for each in reversed(stored):
        with suppress(InputError):
            record, turns = each.read()
            if status_of(record, turns) == "finished":
                return each.folder
    if not stored:
        others = "; `turngap history` lists checks, load tests and the like"
        raise InputError("run.none", f"no run in {root}", hint=RUN_HINT + others)
    last = stored[-1].folder
    typed = shlex.quote(str(last))
    raise InputError(
        "run.none",
        f"no finished run in {root}: the last of {len(stored)}, {last.name}, "
        f"{_what_became_of(stored[-1])}",
        hint=f"show it: turngap report {typed}, or play what it lacks: turngap replay "
        f"--resume {typed}",
    )


def latest_to_resume(root: Path | None = None) -> Path:
    """Find the folder of the last run that lacks turns and can be continued.

    A run with turns is preferred to one without. If no run lacks turns, it is `latest_run`.

    Raises:
        InputError: there is no run, or none that is finished or can be continued.
    """
    empty: Path | None = None
    for each in reversed(_stored(root or DEFAULT_ROOT)):
        try:
            record, turns = each.read()
        except InputError:
            continue
        if record.plan is None or (record.finished_utc and turns >= record.planned_turns):
            continue
        if turns:
            return each.folder
        empty = empty or each.folder
    return empty or latest_run(root)


def _what_became_of(stored: "_Stored") -> str:
    try:
        record, turns = stored.read()
    except InputError as e:
        return f"cannot be read: {e}"
    why = record.failure or "it holds no turn"
    if status_of(record, turns) == "failed":
        return f"has failed: {why}"
    of = f" of {record.planned_turns}" if record.planned_turns else ""
    return f"is unfinished, with {turns}{of} turns"


def find_run(name_or_path: str, root: Path | None = None) -> Path:
    """Find a run's folder by a path, by a folder's name in `root`, by a label, or by `latest`.

    `latest` is the finished run that started last. A label names a run if no other run has it.

    Raises:
        InputError: there is no such run, or several have that label; the hint names the latest few.
    """
    root = root or DEFAULT_ROOT
    found = find_runs(name_or_path, root)
    if len(found) == 1:
        return found[0]
    raise InputError(
        "run.several",
        f"{len(found)} runs in {root} have the label {name_or_path!r}",
        hint="give one of them by its folder: "
        + ", ".join(folder.name for folder in reversed(found[-_NAMED:])),
    )


def find_runs(name_or_path: str, root: Path | None = None) -> list[Path]:
    """Find folders of runs as `find_run` does, but all that have a label, the earliest first.

    Raises:
        InputError: there is no such run.
    """
    root = root or DEFAULT_ROOT
    if name_or_path == "latest":
        return [latest_run(root)]
    for candidate in (Path(name_or_path), root / name_or_path):
        if is_dir(candidate):
            return [candidate]
        if candidate.name == RUN_FILE and is_file(candidate):
            return [candidate.parent]
    stored = _stored(root)
    labelled = [each.folder for each in stored if name_or_path and each.label == name_or_path]
    if labelled:
        return labelled
    latest = stored[: -_NAMED - 1 : -1]
    labels = dict.fromkeys(each.label for each in reversed(stored) if each.label)
    known = [*(each.folder.name for each in latest), *list(labels)[:_NAMED]]
    raise InputError(
        "run.unknown",
        f"no run {name_or_path!r}: neither a folder nor a run in {root}, nor the label of one",
        hint=known_names(name_or_path, known) if known else RUN_HINT,
    )


def run_folders(root: Path) -> list[Path]:
    """List every run's folder in `root`, in starting order, without hidden ones."""
    return [each.folder for each in _stored(root)]


def turns_in(folder: Path) -> int:
    """Count the lines of turns in a run; the last may be incomplete.

    Raises:
        InputError: the file of its turns cannot be read.
    """
    file = folder / TURNS_FILE
    return sum(1 for _ in read_lines(file)) if exists(file) else 0


@dataclass(frozen=True, slots=True)
class _Stored:
    """A run's folder, with its `run.json`, or the reason why that cannot be read."""

    folder: Path
    record: RunRecord | InputError

    @classmethod
    def of(cls, folder: Path) -> "_Stored":
        try:
            return cls(folder, read_record(folder))
        except InputError as e:
            return cls(folder, e)

    def read(self) -> tuple[RunRecord, int]:
        """Return the record and the number of turns.

        Raises:
            InputError: either cannot be read.
        """
        if isinstance(self.record, InputError):
            raise self.record
        return self.record, turns_in(self.folder)

    @property
    def label(self) -> str:
        """Return the value of `--label`, safe to show; empty if none, or if it cannot be read."""
        return printable(self.record.label) if isinstance(self.record, RunRecord) else ""

    @property
    def order(self) -> tuple[datetime, str]:
        """Return the sort key: the run's own start; a run that cannot be read comes first."""
        if isinstance(self.record, RunRecord):
            with suppress(InputError):
                return started_at(self.record), self.folder.name
        return datetime.min.replace(tzinfo=UTC), self.folder.name


def _stored(root: Path) -> list[_Stored]:
    """Read each of the runs that `run_folders` lists, once."""
    if not is_dir(root):
        return []
    folders = (path.parent for path in root.glob(f"*/{RUN_FILE}"))
    visible = (folder for folder in folders if not folder.name.startswith("."))
    return sorted(map(_Stored.of, visible), key=lambda each: each.order)


class TurnOutcome(BaseModel):
    """The outcome of a turn; the fields are those of a `Turn`."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    schema_version: int = Field(ge=Turn.current_version(), le=Turn.current_version())
    scenario: str
    turn: int
    phase_ms: float = 0.0
    repeat: int
    outcome: Outcome
    gap_ms: float | None
    left_out: str | None = None

    @property
    def key(self) -> TurnKey:
        """Return the key that finds the turn's twin in another run, as `Turn.key`."""
        return (self.scenario, self.turn, self.phase_ms, self.repeat)

    @property
    def replied(self) -> bool:
        """Return whether the agent replied after the person's end, within the budget or late."""
        return self.outcome in REPLIED

    @property
    def silent(self) -> bool:
        """Return whether a reply was due and none came."""
        return self.outcome in SILENT


def read_outcomes(folder: Path) -> Iterator[TurnOutcome]:
    """Yield the outcome of each turn of a run; leave out a last line that is incomplete.

    Raises:
        InputError: `turns.jsonl` cannot be read, is damaged (with the line), or is of another
            version. Damage in parts that are not read here goes unnoticed.
    """
    file = folder / TURNS_FILE
    if not exists(file):
        return
    for number, line in enumerate(read_lines(file), start=1):
        try:
            yield TurnOutcome.model_validate_json(line)
        except ValidationError:
            if cut_off(line):
                return
            parse_document(line, Turn, f"{harmless(str(file))}:{number}", hint=RUN_HINT)
            raise
