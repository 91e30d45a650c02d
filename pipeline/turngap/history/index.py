"""An index of what was read from stored folders, so that only changed ones are read again.

The folders are the truth: the index may be deleted at any time, and is made again where it is
damaged or of another version. It lies in the user's cache and not in the folder of the runs, for
three reasons: runs are copied, uploaded and shared, and an index that came with them would have to
be believed; a folder that cannot be written to is as quick to list; and SQLite's locks do not hold
on every network disk. Nothing fails where it cannot be written.
"""

import json
import os
import sqlite3
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from turngap import __version__
from turngap.core.run_record import METRICS_VERSION
from turngap.history.entry import Entry

# Raise it when an entry would come out differently from the same folder.
INDEX_VERSION = 4
# How long to wait for another process that writes.
BUSY_S = 1.0
# Beyond so many rows those of folders that were not asked for now are dropped: 100 MB.
MOST_ROWS = 100_000
_SIDE_FILES = ("", "-journal", "-wal", "-shm")
# What says nothing against the file itself: another process writes, or we may not.
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_PROTOCOL,
}
_ENTRY = TypeAdapter(Entry)

# By folder, what its files looked like when it was read, and what it said.
Known = dict[str, tuple[str, Entry]]


def index_file() -> Path:
    """Where the index lies: in `TURNGAP_CACHE`, by default `turngap` in the user's cache."""
    given = os.environ.get("TURNGAP_CACHE")
    if given:
        return Path(given) / "history.sqlite"
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with suppress(RuntimeError):  # nobody's home is known
        return Path(cache).expanduser() / "turngap" / "history.sqlite"
    return Path(cache) / "turngap" / "history.sqlite"


class Index:
    """What is known of stored folders, by the folder that they lie in. It never raises."""

    def __init__(self, file: Path | None = None) -> None:
        self.file = index_file() if file is None else file

    def known(self, parent: str) -> Known:
        """What is known of the folders in `parent`, a real path; empty if nothing is."""
        with self._opened() as database:
            if database is None:
                return {}
            rows = database.execute(
                "SELECT folder, stamp, entry FROM entry WHERE parent = ?", (os.fsencode(parent),)
            )
            return {
                os.fsdecode(folder): (stamp, _ENTRY.validate_json(entry))
                for folder, stamp, entry in rows
            }
        return {}

    def remember(
        self, parent: str, read: Mapping[str, tuple[str, Entry]], gone: Iterable[str] = ()
    ) -> None:
        """Keep what was read of folders in `parent`, and forget those that are gone."""
        gone = list(gone)
        if not read and not gone:
            return
        key = os.fsencode(parent)
        rows = [
            (key, os.fsencode(folder), stamp, _ENTRY.dump_json(replace(entry, path="")).decode())
            for folder, (stamp, entry) in read.items()
        ]
        with self._opened() as database:
            if database is None:
                return
            database.execute("BEGIN IMMEDIATE")
            database.executemany("INSERT OR REPLACE INTO entry VALUES (?, ?, ?, ?)", rows)
            database.executemany(
                "DELETE FROM entry WHERE parent = ? AND folder = ?",
                [(key, os.fsencode(folder)) for folder in gone],
            )
            (n,) = database.execute("SELECT count(*) FROM entry").fetchone()
            if n > MOST_ROWS:
                database.execute("DELETE FROM entry WHERE parent <> ?", (key,))
            database.execute("COMMIT")

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection | None]:
        """The database, with its table; None where it cannot be had. A damaged file is deleted."""
        try:
            database = self._connected()
        except sqlite3.Error as e:
            if _unavailable(e):
                yield None
                return
            self._delete()
            database = None
            with suppress(sqlite3.Error, OSError):
                database = self._connected()
        except OSError:
            database = None
        if database is None:
            yield None
            return
        with closing(database):
            try:
                yield database
            except sqlite3.Error as e:
                if not _unavailable(e):
                    self._delete()
            except (ValidationError, UnicodeError):  # a row that nobody here has written
                self._delete()

    def _connected(self) -> sqlite3.Connection:
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(self.file.stat().st_mode):
                raise OSError(None, "it is no file")
        database = sqlite3.connect(self.file, timeout=BUSY_S, isolation_level=None)
        try:
            if database.execute("PRAGMA user_version").fetchone()[0] != _version():
                database.execute("BEGIN IMMEDIATE")
                database.execute("DROP TABLE IF EXISTS entry")
                database.execute(
                    "CREATE TABLE entry (parent BLOB, folder BLOB, stamp TEXT, entry TEXT, "
                    "PRIMARY KEY (parent, folder)) WITHOUT ROWID"
                )
                database.execute(f"PRAGMA user_version = {_version()}")
                database.execute("COMMIT")
        except BaseException:
            database.close()
            raise
        return database

    def _delete(self) -> None:
        """Delete a file that is no index of ours; the next listing makes it again."""
        for end in _SIDE_FILES:
            with suppress(OSError):
                self.file.with_name(self.file.name + end).unlink()


def _unavailable(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _UNAVAILABLE


def _version() -> int:
    """Of everything that an entry depends on but its folder."""
    shape = [(field.name, str(field.type)) for field in fields(Entry)]
    about = (INDEX_VERSION, METRICS_VERSION, __version__, shape)
    return zlib.crc32(repr(about).encode()) & 0x7FFFFFFF or 1


def stamp_of(files: Iterable[tuple[str, Path]]) -> str:
    """What these files look like from outside: anything written to one of them changes it.

    By name, size, time and inode, since turngap replaces most files whole.
    """
    seen: list[tuple[str, ...] | tuple[str, int, int, int]] = []
    for name, file in files:
        try:
            status = file.stat()
            seen.append((name, status.st_size, status.st_mtime_ns, status.st_ino))
        except (OSError, ValueError):
            seen.append((name,))
    return json.dumps(seen)
