"""A run's folder, written turn by turn while it happens.

A turn is on disk before the next one is played, so a run that is killed loses the turn in flight
and nothing else. `turngap.core.run_record` describes `run.json`, and `turngap.core.results`
describes a line of `turns.jsonl`.
"""

import errno
import fcntl
import hashlib
import os
import threading
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Self

import numpy as np

from turngap.core.audio import Pcm
from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.run_record import RunRecord
from turngap.store.documents import (
    MAX_EVENTS_BYTES,
    MAX_RUN_BYTES,
    MAX_TURN_BYTES,
    cut_off,
    encode,
    read_lines,
    read_turns,
    write_all,
    write_atomically,
    writing,
)
from turngap.store.files import open_regular, refuse_links, sha256_of
from turngap.store.folders import (
    AUDIO_DIR,
    NOT_ENDED,
    RUN_FILE,
    TURNS_FILE,
    new_folder,
    slug,
    started_at,
    unfinished,
)

_UNWRITABLE = "run.unwritable"
# What some network mounts answer: they have no locks.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


class Lines:
    """A file that grows by whole lines; calls from different threads are put in line.

    Attributes:
        descriptor: the open file; -1 once it is closed.
        size: of the whole lines, in bytes; a line that was written in part is cut off again.
    """

    def __init__(self, file: Path) -> None:
        self.lock = threading.Lock()
        self._folder = file.parent
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self.descriptor = open_regular(file, flags, below=file.parent)
        self.size = os.fstat(self.descriptor).st_size

    def append(self, lines: bytes, kind: str) -> None:
        """Add lines; they are on the disk (fsync) when this returns.

        Raises:
            InputError: they cannot be written, and none of them is stored (of the kind given).
        """
        with self.lock, writing(self._folder, kind):
            try:
                os.ftruncate(self.descriptor, self.size)
                write_all(self.descriptor, lines)
                os.fsync(self.descriptor)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self.descriptor, self.size)
                raise
            self.size += len(lines)

    def close(self) -> None:
        """Close the file, once lines that are being added are on the disk."""
        with self.lock:
            if self.descriptor >= 0:
                with suppress(OSError):  # all lines have been synced: nothing hangs on this
                    os.close(self.descriptor)
            self.descriptor = -1


class RunWriter:
    """Writer of one run's folder.

    Every method blocks on the disk: call them from a worker thread while audio plays. Calls from
    different threads are put in line. Until `finish` has been called, `run.json` says that the run
    is unfinished and not valid. Every failed write is an `InputError`; turns that were appended
    before it are kept.

    Attributes:
        path: the run's folder.
    """

    def __init__(self, path: Path, record: RunRecord) -> None:
        self.path = path
        self._digests: dict[str, str] = {}
        self._turns = Lines(path / TURNS_FILE)
        try:
            _lock(self._turns.descriptor, path)
            if self._turns.size:
                self._end_with_a_whole_line()
                self._add_digests(record)
            self.note(record)
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
        with writing(path, _UNWRITABLE):
            (path / AUDIO_DIR).mkdir()
            return cls(path, record)

    @classmethod
    def reopen(cls, path: Path, record: RunRecord) -> Self:
        """Open a run's folder again, to append missing turns, and write `record` there.

        A last line that was cut off is removed. Audio without its turn is overwritten when the next
        turn comes, as that has its number.

        Raises:
            InputError: the folder cannot be written to, or another process writes to it.
        """
        with writing(path, _UNWRITABLE):
            refuse_links(path / AUDIO_DIR, path)
            (path / AUDIO_DIR).mkdir(exist_ok=True)
            return cls(path, record)

    def note(self, record: RunRecord) -> None:
        """Write the facts known of the run so far; it stays marked as unfinished.

        Raises:
            InputError: the record cannot be written; the one before it is kept.
        """
        self._write_record(unfinished(record, NOT_ENDED))

    def _end_with_a_whole_line(self) -> None:
        end, rest = 0, b""
        for line in read_lines(self.path / TURNS_FILE):
            rest = b"" if line.endswith(b"\n") else line
            end += len(line) - len(rest)
        if rest and not cut_off(rest):
            write_all(self._turns.descriptor, b"\n")
            end += len(rest) + 1
        self._turns.size = end
        self._turns.append(b"", _UNWRITABLE)

    def _add_digests(self, record: RunRecord) -> None:
        """Digest the audio of stored turns of which the record has none: the run was killed."""
        for turn in read_turns(self.path / TURNS_FILE, Turn, []):
            file = None if turn.audio is None else turn.audio.file
            if file and file not in record.audio_sha256 and (self.path / file).is_file():
                self._digests[file] = sha256_of(self.path / file, below=self.path)

    def with_digests(self, record: RunRecord) -> RunRecord:
        """Return the record with the SHA-256 of every audio file that was written."""
        digests = {**record.audio_sha256, **self._digests}
        return record.model_copy(update={"audio_sha256": dict(sorted(digests.items()))})

    def append_turn(self, turn: Turn) -> None:
        """Add one finished turn; it is on the disk (fsync) when this returns.

        Raises:
            InputError: the turn cannot be written, and is not stored.
        """
        line = encode(turn)
        if len(line) > MAX_EVENTS_BYTES:
            note = {f"its {len(turn.events)} events are not stored: over {len(line)} bytes": 1}
            update = {"events": (), "notes": {**turn.notes, **note}}
            line = encode(turn.model_copy(update=update))
        if len(line) > MAX_TURN_BYTES or self._turns.size + len(line) > MAX_RUN_BYTES:
            raise InputError(
                "run.too_large",
                f"{self.path}: with one more turn, of {len(line)} bytes, the run could not be read",
                hint="play the rest in a new run",
            )
        self._turns.append(line, _UNWRITABLE)

    def write_audio(self, name: str, left: Pcm, right: Pcm, rate: int) -> str:
        """Store the user's audio (left) and the agent's (right), each mono int16 at `rate` Hz.

        The shorter one is filled up with silence. Write it before the turns that name it.

        Returns:
            The file's path within the run's folder, as `AudioRecord.file` has it.

        Raises:
            InputError: the file cannot be written.
        """
        import soundfile

        stereo = np.zeros((max(len(left), len(right)), 2), dtype=np.int16)
        stereo[: len(left), 0] = left
        stereo[: len(right), 1] = right
        wav = BytesIO()
        soundfile.write(wav, stereo, rate, subtype="PCM_16", format="WAV")
        file = f"{AUDIO_DIR}/{slug(name)}.wav"
        with writing(self.path, _UNWRITABLE):
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                descriptor = open_regular(self.path / file, flags, below=self.path)
                try:
                    write_all(descriptor, wav.getbuffer())
                finally:
                    os.close(descriptor)
            except OSError:
                # On a full disk this makes the room to say in `run.json` what happened.
                with suppress(OSError):
                    (self.path / file).unlink()
                raise
        self._digests[file] = hashlib.sha256(wav.getbuffer()).hexdigest()
        return file

    def finish(self, record: RunRecord) -> None:
        """Write `record` in place of the one at the start, and close the run.

        Raises:
            InputError: the record cannot be written: the run stays marked as unfinished.
        """
        try:
            self._write_record(record)
        finally:
            self.close()

    def close(self) -> None:
        """Close the files; without `finish` the run stays marked as unfinished."""
        self._turns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write_record(self, record: RunRecord) -> None:
        with self._turns.lock, writing(self.path, _UNWRITABLE):
            write_atomically(self.path / RUN_FILE, encode(self.with_digests(record), indent=2))


def _lock(descriptor: int, path: Path) -> None:
    """Keep others from writing to a run until this process ends.

    Raises:
        InputError: another process writes to it.
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
