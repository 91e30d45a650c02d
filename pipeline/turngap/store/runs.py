"""A run's folder: written turn by turn while it happens, read back whole.

    runs/<utc>-<name>/  run.json  turns.jsonl  audio/NNN.wav  report.html

A turn is on disk before the next one is asked for, so a run that is killed loses the turn in flight
and nothing else. `turngap.core.results` says what the files hold.
"""

import csv
import errno
import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from turngap.core.audio import Pcm
from turngap.core.errors import InputError, known_names
from turngap.core.results import METRICS_VERSION, RunRecord, Turn
from turngap.store.documents import (
    DEFAULT_ROOT,
    MAX_RUN_BYTES,
    MAX_TURN_BYTES,
    encode,
    exists,
    is_dir,
    is_file,
    parse_document,
    read_document,
    write_all,
    write_atomically,
    writing,
)
from turngap.store.files import open_regular, unreadable

if TYPE_CHECKING:
    from turngap.core.cut_ins import CutIns
    from turngap.core.stats import Proportion
    from turngap.core.summary import GapFigures, Summary

RUN_FILE = "run.json"
TURNS_FILE = "turns.jsonl"
AUDIO_DIR = "audio"

# What some network mounts answer: they have no locks.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}

_NOT_ENDED = "the run has not ended"

RUN_HINT = "give a run's folder or name, or `latest`; `turngap replay` makes one"


def utc_now() -> str:
    """Now as `RunRecord` stores it, ISO 8601 to the millisecond. For people, not for timing."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class RunWriter:
    """Writes one run's folder.

    Every method blocks on the disk: call them from a worker thread while audio plays. Calls from
    different threads are put in line. Until `finish` has been called, `run.json` says that the run
    is unfinished and not valid. Whatever the disk refuses is an `InputError`; the turns that were
    appended before it are kept.

    Attributes:
        path: the run's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._turns: int | None = os.open(path / TURNS_FILE, flags, 0o644)
        try:
            _lock(self._turns, path)
            # Of whole lines: a turn of which a part was written is cut off again.
            self._size = os.fstat(self._turns).st_size
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(cls, out: Path | None, name: str, record: RunRecord) -> Self:
        """Make a new folder in `out` (default `./runs`) and write `record` there.

        The folder is named after `record.started_utc` and `name`, and is never an existing one.

        Raises:
            InputError: `out` cannot be written to.
        """
        path = new_folder(out, name, started_at(record))
        try:
            (path / AUDIO_DIR).mkdir()
            writer = cls(path)
        except OSError as e:
            raise _unwritable(path, e) from e
        try:
            writer.note(record)
        except BaseException:
            writer.close()
            raise
        return writer

    @classmethod
    def reopen(cls, path: Path, record: RunRecord) -> Self:
        """Open a run's folder again, to append what is missing, and write `record` there.

        A last line that was cut off is removed. Audio without its turn is overwritten when the next
        turn comes, as that has its number.

        Raises:
            InputError: it cannot be written to, or somebody else writes to it.
        """
        with writing(path, "run.unwritable"):
            (path / AUDIO_DIR).mkdir(exist_ok=True)
            writer = cls(path)
            try:
                writer._end_with_a_whole_line()
                writer.note(record)
            except BaseException:
                writer.close()
                raise
        return writer

    def note(self, record: RunRecord) -> None:
        """Write what is known of the run so far; it stays marked as unfinished.

        Raises:
            InputError: it cannot be written; the record before it is kept.
        """
        self._write_record(_unfinished(record, _NOT_ENDED))

    def _end_with_a_whole_line(self) -> None:
        assert self._turns is not None
        end, rest = 0, b""
        for line in _lines(self.path / TURNS_FILE):
            rest = b"" if line.endswith(b"\n") else line
            end += len(line) - len(rest)
        if rest and _is_json(rest):
            write_all(self._turns, b"\n")
            end += len(rest) + 1
        os.ftruncate(self._turns, end)
        os.fsync(self._turns)
        self._size = end

    def append_turn(self, turn: Turn) -> None:
        """Add one finished turn; it is on the disk (fsync) when this returns.

        Raises:
            InputError: it cannot be written, and is not stored.
        """
        line = encode(turn)
        if len(line) > MAX_TURN_BYTES:
            note = {f"its {len(turn.events)} events are not stored: over {len(line)} bytes": 1}
            update = {"events": (), "notes": {**turn.notes, **note}}
            line = encode(turn.model_copy(update=update))
        if len(line) > MAX_TURN_BYTES or self._size + len(line) > MAX_RUN_BYTES:
            raise InputError(
                "run.too_large",
                f"{self.path}: with one more turn, of {len(line)} bytes, it could not be read",
                hint="play the rest as a run of its own",
            )
        with self._lock, self._writing():
            if self._turns is None:
                raise AssertionError("the run is closed")
            try:
                os.ftruncate(self._turns, self._size)
                write_all(self._turns, line)
                os.fsync(self._turns)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._turns, self._size)
                raise
            self._size += len(line)

    def write_audio(self, name: str, left: Pcm, right: Pcm, rate: int) -> str:
        """Store what was said (left) and heard (right), each mono int16 at `rate` Hz.

        The shorter one is filled up with silence. Write it before the turns that name it.

        Returns:
            The file's path within the run's folder, as `AudioRecord.file` has it.

        Raises:
            InputError: it cannot be written.
        """
        import soundfile

        stereo = np.zeros((max(len(left), len(right)), 2), dtype=np.int16)
        stereo[: len(left), 0] = left
        stereo[: len(right), 1] = right
        wav = BytesIO()
        soundfile.write(wav, stereo, rate, subtype="PCM_16", format="WAV")
        file = f"{AUDIO_DIR}/{_slug(name)}.wav"
        with self._writing():
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
                descriptor = os.open(self.path / file, flags, 0o644)
                try:
                    write_all(descriptor, wav.getbuffer())
                finally:
                    os.close(descriptor)
            except OSError:
                # On a full disk this makes the room to say in `run.json` what happened.
                with suppress(OSError):
                    (self.path / file).unlink()
                raise
        return file

    def finish(self, record: RunRecord) -> None:
        """Write `record` in place of the one at the start, and close the run.

        Raises:
            InputError: it cannot be written: the run stays marked as unfinished.
        """
        try:
            self._write_record(record)
        finally:
            self.close()

    def close(self) -> None:
        """Close the files; without `finish` the run stays marked as unfinished."""
        with self._lock:
            if self._turns is not None:
                with suppress(OSError):  # every turn has been synced: nothing hangs on this
                    os.close(self._turns)
            self._turns = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write_record(self, record: RunRecord) -> None:
        with self._lock, self._writing():
            write_atomically(self.path / RUN_FILE, encode(record, indent=2))

    def _writing(self) -> AbstractContextManager[None]:
        return writing(self.path, "run.unwritable")


@dataclass(frozen=True, repr=False)
class Run:
    """A stored run: its turns, its figures, and its folder.

        >>> run = turngap.Run.load("latest")
        >>> run.hit_rate.value
        1.0
        >>> run.cut_ins.hits
        0
        >>> run.gap_ms.p95.value is None, run.gap_ms.p95.why_none
        (True, 'n=3, needs 20')
        >>> [row["outcome"] for row in run.rows()]
        ['answered', 'answered', 'answered']

    `pandas.DataFrame(run.rows())` makes a table of it.

    Attributes:
        record: what `run.json` holds: the agent, the machine, the settings, the calibration.
        turns: every turn, in the order in which they were played.
        path: the run's folder, with the recordings and `report.html`.
        problems: what is odd about the folder, in words: cut short, older metrics.
    """

    record: RunRecord
    turns: tuple[Turn, ...]
    path: Path
    problems: tuple[str, ...] = ()

    @classmethod
    def load(cls, name: str | Path = "latest", root: str | Path | None = None) -> Self:
        """Read a stored run.

        Args:
            name: a run's folder, the name of a folder in `root`, or `latest`.
            root: where runs are kept; by default `./runs`.

        Raises:
            InputError: there is no such run, or it cannot be read.
        """
        run = read_run(find_run(str(name), None if root is None else Path(root)))
        return cls(run.record, run.turns, run.path, run.problems)

    @cached_property
    def summary(self) -> "Summary":
        """All figures of the run."""
        # Statistics take a second to import, and most commands that name a run need none.
        from turngap.core.summary import summarise

        return summarise(self.turns)

    @property
    def gap_ms(self) -> "GapFigures":
        """The turn gap in ms: `p50`, `p90` and `p95`, each with `value`, `low` and `high`; and `n`.

        A `value` is None where there are too few turns for the percentile; `why_none` says so.
        """
        from turngap.core.summary import GapFigures

        return GapFigures(self.summary.gap_n, self.summary.gap_recorded, **self.summary.gap_ms)

    @property
    def hit_rate(self) -> "Proportion":
        """The share of all turns that were answered within the budget: `value`, `low`, `high`.

        `hits` of `n` turns were; `low` and `high` are the ends of its 95 % interval.
        """
        return self.summary.hit_rate

    @property
    def cut_ins(self) -> "CutIns":
        """The share of turns in which the agent spoke before the person had finished.

        `value`, `low`, `high`, `hits` and `n` as in `hit_rate`; `paused` of the turns hold a pause
        that could draw one. A short gap bought with cut-ins is not fast: state the two together.
        """
        return self.summary.cut_ins

    @property
    def valid(self) -> bool:
        """Whether the figures can be used; `record.why_invalid` says why not."""
        return self.record.valid

    @property
    def complete(self) -> bool:
        """Whether the run has ended and holds every turn that was planned."""
        ended = self.record.finished_utc is not None
        return ended and len(self.turns) >= self.record.planned_turns

    def rows(self) -> list[dict[str, Any]]:
        """The turns as flat rows, for `pandas.DataFrame` or `polars.DataFrame`.

        `Turn.row` lists the columns, which are the same in every run.
        """
        return [turn.row() for turn in self.turns]

    def to_csv(self, path: str | Path) -> Path:
        """Write the rows as a CSV file, with a line of column names; None is an empty cell.

        Returns:
            The file's path.

        Raises:
            InputError: the run has no turns, or the file cannot be written.
        """
        rows, file = self.rows(), Path(path)
        if not rows:
            raise InputError("run.empty", f"{self.path}: the run holds no turn to write")
        try:
            with file.open("w", encoding="utf-8", errors="replace", newline="") as f:
                writer = csv.DictWriter(f, rows[0])
                writer.writeheader()
                writer.writerows(rows)
        except OSError as e:
            raise InputError("csv.unwritable", f"cannot write {file}: {e.strerror or e}") from e
        return file

    def __repr__(self) -> str:
        rate = self.hit_rate
        share = "" if rate.value is None else f", hit rate {rate.value:.0%}"
        gap = "" if (p50 := self.gap_ms.p50.value) is None else f", gap p50 {p50:.0f} ms"
        cut_ins = f", cut in on {self.cut_ins.hits} of {self.cut_ins.n}" if self.cut_ins.n else ""
        valid = "" if self.valid else ", invalid"
        return f"<Run {str(self.path)!r}: {len(self.turns)} turns{share}{gap}{cut_ins}{valid}>"

    def _repr_html_(self) -> str:
        gap, record = self.gap_ms, self.record
        figures: dict[str, object] = {
            "hit rate": self.hit_rate,
            "cut-ins": self.cut_ins,
            **{f"gap {name}, ms": getattr(gap, name) for name in ("p50", "p90", "p95")},
            "outcomes": ", ".join(f"{n} {name}" for name, n in self.summary.outcomes.items()),
            **{f"{s.name}, median ms": f"{s.p50_ms:.0f}" for s in self.summary.stages},
            "folder": self.path,
        }
        cells = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(str(figure))}</td></tr>"
            for name, figure in figures.items()
        )
        notes = (*self.problems, *(() if record.valid else ("INVALID", *record.why_invalid)))
        warnings = "".join(f"<p><b>{escape(note)}</b></p>" for note in notes)
        head = f"turngap: {record.name}, {len(self.turns)} turns, {record.started_utc}"
        return f"<div><p><b>{escape(head)}</b></p>{warnings}<table>{cells}</table></div>"


def _lock(descriptor: int, path: Path) -> None:
    """Keep others from writing to a run until this process ends.

    Raises:
        InputError: somebody else writes to it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise InputError(
            "run.in_use", f"{path} is being played", hint="wait until it has ended"
        ) from e
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            raise


def read_run(path: Path) -> Run:
    """Read a run's folder.

    A last line that was cut off in mid-write is left out and named in `problems`.

    Raises:
        InputError: not a run, no turn in it, damaged (with the line), or of another version.
    """
    record = read_record(path)
    turns, problems = _read_turns(path / TURNS_FILE)
    played = "1 turn was played" if len(turns) == 1 else f"{len(turns)} turns were played"
    if planned := record.planned_turns:
        played = f"{len(turns)} of {planned} planned turns were played"
    record = _unfinished(record, played)
    for what, found in (
        ("versions of turngap", {piece.turngap_version for piece in record.pieces}),
        ("commits", {piece.commit or "none" for piece in record.pieces}),
        ("machines", {piece.machine.fingerprint for piece in record.pieces}),
    ):
        if len(found) > 1:
            problems.append(f"its pieces were played with {len(found)} {what}: {sorted(found)}")
    if record.metrics_version != METRICS_VERSION:
        problems.append(
            f"figures of metrics version {record.metrics_version}, this turngap computes version "
            f"{METRICS_VERSION}: do not compare the two"
        )
    if not turns:
        why = f" ({record.failure})" if record.failure else ""
        raise InputError("run.empty", f"{path}: the run holds no finished turn{why}", hint=RUN_HINT)
    return Run(record, tuple(turns), path, tuple(problems))


def rewritten(run: Run, record: RunRecord, turns: tuple[Turn, ...]) -> Run:
    """Store what is known of a run by now in place of what was.

    Raises:
        InputError: its folder cannot be written to.
    """
    with writing(run.path, "run.unwritable"):
        write_atomically(run.path / TURNS_FILE, b"".join(map(encode, turns)))
        write_atomically(run.path / RUN_FILE, encode(record, indent=2))
    return Run(record, turns, run.path, run.problems)


def started_at(record: RunRecord) -> datetime:
    """When the run started; an instant without a zone is UTC, as the field's name says."""
    try:
        started = datetime.fromisoformat(record.started_utc)
    except ValueError as e:
        raise InputError(
            "run.started_utc", f"started_utc {record.started_utc!r} is not an ISO 8601 instant"
        ) from e
    return started.astimezone(UTC) if started.tzinfo else started.replace(tzinfo=UTC)


def _slug(name: str) -> str:
    """`name` as a plain file name: no separators, no dots in front, not too long."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.")[:60] or "run"


def new_folder(out: Path | None, name: str, started: datetime | None = None) -> Path:
    """Make a folder `<utc>-<name>` in `out` (default `./runs`), never an existing one.

    Raises:
        InputError: `out` cannot be written to.
    """
    root = out or DEFAULT_ROOT
    stem = f"{started or datetime.now(UTC):%Y%m%dT%H%M%SZ}-{_slug(name)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        return _new_folder(root, stem)
    except OSError as e:
        raise _unwritable(root, e) from e


def _unwritable(root: Path, error: OSError) -> InputError:
    return InputError(
        "run.unwritable",
        f"cannot make a run in {root}: {error.strerror or error}",
        hint="give a folder that can be written to: --out DIR",
    )


def _new_folder(root: Path, stem: str) -> Path:
    """Make `root/stem`; where it exists already, `root/stem-2` and so on."""
    number = 1
    while True:
        path = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


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
    return _unfinished(read_document(file, RunRecord, hint=RUN_HINT), _NOT_ENDED)


def _unfinished(record: RunRecord, how_far: str) -> RunRecord:
    """A record that says itself that its run is not valid yet; a finished one as it is."""
    if record.finished_utc is not None:
        return record
    why = (f"unfinished: {how_far}",)
    return record.model_copy(update={"valid": False, "why_invalid": why})


def _read_turns(file: Path) -> tuple[list[Turn], list[str]]:
    if not exists(file):
        return [], [f"{TURNS_FILE} is missing"]
    turns: list[Turn] = []
    unterminated = b""
    for number, line in enumerate(_lines(file), start=1):
        if line.endswith(b"\n"):
            turns.append(parse_document(line[:-1], Turn, f"{file}:{number}"))
        else:
            unterminated = line
    if not unterminated:
        return turns, []
    number = len(turns) + 1
    if not _is_json(unterminated):
        return turns, [f"{TURNS_FILE}:{number}: the last line was cut off and is left out"]
    return [*turns, parse_document(unterminated, Turn, f"{file}:{number}")], []


def _lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of `turns.jsonl` with their ends; the last one may have none.

    Raises:
        InputError: it cannot be read, or is larger than what a `RunWriter` writes.
    """
    size = 0
    try:
        with os.fdopen(open_regular(file), "rb") as opened:
            while line := opened.readline(MAX_TURN_BYTES + 1):
                size += len(line)
                if len(line) > MAX_TURN_BYTES or size > MAX_RUN_BYTES:
                    what = f"a line is larger than {MAX_TURN_BYTES / 2**20:g} MiB"
                    if size > MAX_RUN_BYTES:
                        what = f"it is larger than {MAX_RUN_BYTES / 2**20:g} MiB"
                    raise unreadable(file, "document", what)
                yield line
    except OSError as e:
        raise unreadable(file, "document", e.strerror or str(e)) from e


def _is_json(raw: bytes) -> bool:
    try:
        json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


# Which stored run is meant: by path, by name, or the latest one.


def latest_run(root: Path | None = None) -> Path:
    """The folder of the run that started last in `root` (default `./runs`) and holds a turn.

    One that was interrupted before its first turn has nothing to show; it counts only where there
    is no other, so that its reason is told.

    Raises:
        InputError: there is none.
    """
    root = root or DEFAULT_ROOT
    if folders := run_folders(root):
        return next((f for f in reversed(folders) if holds_turns(f)), folders[-1])
    raise InputError("run.none", f"no run in {root}", hint=RUN_HINT)


def find_run(name_or_path: str, root: Path | None = None) -> Path:
    """The folder that is meant by a path, by a folder's name in `root`, or by `latest`.

    Raises:
        InputError: there is none; the hint names the latest few.
    """
    root = root or DEFAULT_ROOT
    if name_or_path == "latest":
        return latest_run(root)
    for candidate in (Path(name_or_path), root / name_or_path):
        if is_dir(candidate):
            return candidate
        if candidate.name == RUN_FILE and is_file(candidate):
            return candidate.parent
    latest = [folder.name for folder in reversed(run_folders(root)[-5:])]
    raise InputError(
        "run.unknown",
        f"no run {name_or_path!r}: neither a folder nor a run in {root}",
        hint=known_names(name_or_path, latest) if latest else RUN_HINT,
    )


def run_folders(root: Path) -> list[Path]:
    """Every run's folder in `root`, in the order in which they started."""
    if not is_dir(root):
        return []
    folders = [path.parent for path in root.glob(f"*/{RUN_FILE}")]
    return sorted(folders, key=_start_order)


def holds_turns(folder: Path) -> bool:
    """Whether any turn of a run was finished."""
    try:
        return (folder / TURNS_FILE).stat().st_size > 0
    except OSError:
        return False


def _start_order(folder: Path) -> tuple[datetime, str]:
    """By the start that the run itself tells; a run that cannot be read comes first."""
    try:
        return started_at(read_record(folder)), folder.name
    except InputError:
        return datetime.min.replace(tzinfo=UTC), folder.name
