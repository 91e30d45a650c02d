"""The history of folders: everything that is stored in them, each as an `Entry`."""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from turngap.core.errors import InputError
from turngap.core.untrusted import harmless
from turngap.history.entry import Entry, Kind
from turngap.history.figures import NO_FIGURES
from turngap.history.kinds import FILES, read_entry
from turngap.store.documents import DEFAULT_ROOT
from turngap.store.folders import RUN_FILE

# As `store.folders.new_folder` names them: `20261120T152803Z-check`, `…-check-2`, `…-x-load`.
_OURS = re.compile(r"(?P<utc>\d{8}T\d{6}Z)-(?P<name>.+)", re.DOTALL)
_UNDONE: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"check(-\d+)?"), "check"),
    (re.compile(r"compare(-\d+)?"), "compare"),
    (re.compile(r"turns-.+", re.DOTALL), "turns"),
    (re.compile(r".*-load(-\d+)?", re.DOTALL), "load"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """A folder that may hold something, and how it is named to people."""

    folder: Path
    shown: str


def entries(
    roots: Sequence[Path] = (), on_read: Callable[[int, int], None] = lambda done, of: None
) -> list[Entry]:
    """Read everything that is stored in these folders, in the order in which it began.

    A folder that cannot be read becomes an entry with its reason; one that holds nothing of turngap
    is left out, and so is a second path to the same folder.

    Args:
        roots: folders of stored folders, or such folders themselves; by default `./runs`, which may
            be missing.
        on_read: told how many of how many folders have been looked at.

    Raises:
        InputError: a folder that was given is not there, or cannot be listed.
    """
    found = _folders(roots)
    listed: list[Entry] = []
    for done, one in enumerate(found, start=1):
        if (entry := _entry(one)) is not None:
            listed.append(entry)
        on_read(done, len(found))
    return sorted(listed, key=lambda entry: (began(entry), entry.path))


def began(entry: Entry) -> datetime:
    """When it began; an instant without a zone is UTC. Whatever does not tell comes first."""
    try:
        at = datetime.fromisoformat(entry.started_utc)
        return at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return datetime.min.replace(tzinfo=UTC)


def _folders(roots: Sequence[Path]) -> list[Found]:
    """Each folder once, whatever links lead to it."""
    found: dict[tuple[int, int], Found] = {}
    for root in roots or (DEFAULT_ROOT,):
        for path, status in _within(root, needed=bool(roots)):
            found.setdefault((status.st_dev, status.st_ino), Found(path, str(path)))
    return list(found.values())


def _within(root: Path, *, needed: bool) -> Iterator[tuple[Path, os.stat_result]]:
    try:
        status = root.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(None, "it is no folder")
        if _kind(root) is not None:
            yield root, status
            return
        paths = sorted(path for path in root.iterdir() if not path.name.startswith("."))
    except (OSError, ValueError) as e:
        if not needed and isinstance(e, FileNotFoundError):
            return
        why = getattr(e, "strerror", None) or str(e)
        raise InputError(
            "history.no_folder",
            f"cannot list {harmless(str(root))}: {why}",
            hint="give a folder of stored runs: --runs DIR",
        ) from e
    for path in paths:
        try:
            status = path.stat()
        except OSError:  # a link to nothing, or it has just been deleted
            continue
        if stat.S_ISDIR(status.st_mode):
            yield path, status


def _kind(folder: Path) -> tuple[str, Kind] | None:
    """The file that makes it a stored folder, and of which kind; None if there is none.

    Raises:
        OSError: the folder cannot be searched.
    """
    for name, kind in FILES:
        try:
            os.lstat(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        return name, kind
    return None


def _entry(found: Found) -> Entry | None:
    """What the folder says of itself; None if it holds nothing of turngap."""
    try:
        kind = _kind(found.folder)
    except OSError as e:
        return _without(found, "unreadable", _undone_kind(found.folder), e.strerror or str(e))
    if kind is None:
        return _undone(found)
    try:
        return read_entry(found.folder, kind[1])
    except InputError as e:
        return _without(found, "unreadable", kind[1], str(e))


def _undone(found: Found) -> Entry | None:
    """A folder of ours that was not finished: its own record comes last, or never came."""
    if _OURS.fullmatch(found.folder.name) is None:
        return None
    try:
        inner = [path for path in found.folder.iterdir() if (path / RUN_FILE).is_file()]
        empty = not any(found.folder.iterdir())
    except OSError as e:
        return _without(found, "unreadable", _undone_kind(found.folder), e.strerror or str(e))
    if not inner and not empty:
        return None
    why = "unfinished: it was ended, or is being played, and is not judged"
    if not inner:
        why = "unfinished: nothing was stored"
    return _without(found, "unfinished", _undone_kind(found.folder), why)


def _undone_kind(folder: Path) -> Kind:
    """What a folder without a record was to be, told by its name."""
    ours = _OURS.fullmatch(folder.name)
    name = folder.name if ours is None else ours["name"]
    for pattern, kind in _UNDONE:
        if pattern.fullmatch(name):
            return kind
    return "replay"


def _without(
    found: Found, status: Literal["unfinished", "unreadable"], kind: Kind, why: str
) -> Entry:
    """An entry that has a reason in the place of its figures."""
    return Entry(
        path=found.shown,
        kind=kind,
        status=status,
        started_utc=_by_name(found.folder),
        why=(harmless(why),),
        **NO_FIGURES.fields(),
    )


def _by_name(folder: Path) -> str:
    """When a folder was made, by its name or else by the disk's time."""
    ours = _OURS.fullmatch(folder.name)
    try:
        if ours is not None:
            at = datetime.strptime(ours["utc"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        else:
            at = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
        return at.isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""
