"""The folder of a load test, written while it runs."""

import os
import threading
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Self

from turngap.core.errors import InputError
from turngap.load.record import LOAD_FILE, LoadRecord, LoadTurn
from turngap.store.documents import (
    MAX_RUN_BYTES,
    encode,
    write_all,
    write_document,
    writing,
)
from turngap.store.folders import TURNS_FILE, new_folder


class LoadWriter:
    """Writes the folder of a load test: `turns.jsonl` as turns come, and `load.json`.

    Every method blocks on the disk; calls from several threads are put in line. Whatever it refuses
    is an `InputError`; what was written before is kept.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        with writing(path, "load.unwritable"):
            self._turns: int | None = os.open(path / TURNS_FILE, flags, 0o644)
        self._size = 0

    @classmethod
    def create(cls, out: Path | None, name: str, started_utc: str) -> Self:
        """Make a new folder in `out` (default `./runs`), never an existing one.

        Raises:
            InputError: `out` cannot be written to.
        """
        return cls(new_folder(out, f"{name}-load", datetime.fromisoformat(started_utc)))

    def append(self, turns: Sequence[LoadTurn]) -> None:
        """Add turns that are over; they are on the disk (fsync) when this returns.

        Raises:
            InputError: they cannot be written, and none of them is stored.
        """
        if not turns:
            return
        lines = b"".join(map(encode, turns))
        with self._lock, writing(self.path, "load.unwritable"):
            if self._turns is None:
                raise AssertionError("the load test is closed")
            if self._size + len(lines) > MAX_RUN_BYTES:
                raise InputError(
                    "load.too_large",
                    f"{self.path}: with more turns {TURNS_FILE} could not be read any more",
                    hint="measure for a shorter time (--duration)",
                )
            try:
                # A part of a batch that the disk had no room for is cut off again.
                os.ftruncate(self._turns, self._size)
                write_all(self._turns, lines)
                os.fsync(self._turns)
            except OSError:
                os.ftruncate(self._turns, self._size)
                raise
            self._size += len(lines)

    def write(self, record: LoadRecord) -> None:
        """Write what is known by now in place of what was.

        Raises:
            InputError: it cannot be written; the record before it is kept.
        """
        write_document(self.path / LOAD_FILE, record)

    def close(self) -> None:
        """Close the files, once turns that are being added are on the disk."""
        with self._lock:
            if self._turns is not None:
                os.close(self._turns)
            self._turns = None
