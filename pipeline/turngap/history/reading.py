"""The history of folders: everything that is stored in them, each as an `Entry`."""

import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from turngap.core.errors import InputError
from turngap.core.instants import instant
from turngap.core.untrusted import harmless
from turngap.history.entry import Entry, Kind
from turngap.history.figures import NO_FIGURES
from turngap.history.index import Index, Known, stamp_of
from turngap.history.kinds import FILES, files_behind, read_entry
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
    """A folder that may hold something: its path as people know it, and where it really lies."""

    folder: Path
    parent: str
    name: str


OnRead = Callable[[int, int], None]


def entries(
    roots: Sequence[Path] = (),
    on_read: OnRead = lambda done, of: None,
    *,
    index: Index | None = None,
) -> list[Entry]:
    """Read everything that is stored in these folders, in the order in which it began.

    A folder that cannot be read becomes an entry with its reason; one that holds nothing of turngap
    is left out, and so is a second path to the same folder.

    Args:
        roots: folders of stored folders, or such folders themselves; by default `./runs`, which may
            be missing.
        on_read: told how many have been read of those that the index does not know.
        index: what is known from before; without one, everything is read.

    Raises:
        InputError: a folder that was given is not there, or cannot be listed.
    """
    folders, whole = _folders(roots)
    known = {parent: index.known(parent) if index else {} for parent in folders}
    listed: list[Entry] = []
    new: list[tuple[Found, _Read]] = []
    for found in (each for here in folders.values() for each in here):
        read = _looked_at(found)
        stamp, entry = known[found.parent].get(found.name, ("", None))
        if entry is not None and stamp == read.stamp:
            listed.append(replace(entry, path=str(found.folder)))
        else:
            new.append((found, read))
    fresh: dict[str, Known] = {parent: {} for parent in folders}
    for done, (found, read) in enumerate(new, start=1):
        entry, lasting = _entry(found, read.kind)
        if entry is not None:
            listed.append(entry)
            if lasting and read.stamp:
                fresh[found.parent][found.name] = (read.stamp, entry)
        on_read(done, len(new))
    if index is not None:
        for parent, here in folders.items():
            gone = known[parent].keys() - {found.name for found in here}
            index.remember(parent, fresh[parent], gone if parent in whole else ())
    return sorted(listed, key=lambda entry: (began(entry), entry.path))


@dataclass(frozen=True, slots=True)
class _Read:
    """What a folder looks like before it is read: its kind, and its files' stamp."""

    kind: Kind | None = None
    stamp: str = ""


def _looked_at(found: Found) -> _Read:
    try:
        kind = _kind(found.folder)
        if kind is None:
            return _Read()
        return _Read(kind, stamp_of(files_behind(found.folder, kind)))
    except OSError:
        return _Read()


def began(entry: Entry) -> datetime:
    """When it began; an instant without a zone is UTC. Whatever does not tell comes first."""
    try:
        return instant(entry.started_utc)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _folders(roots: Sequence[Path]) -> tuple[dict[str, list[Found]], set[str]]:
    """Each folder once, whatever links lead to it, by the folder that it lies in.

    Beside them come those of the latter of which this is everything.
    """
    seen: set[tuple[int, int]] = set()
    folders: dict[str, list[Found]] = {}
    whole: set[str] = set()
    for root in roots or (DEFAULT_ROOT,):
        real = os.path.realpath(root)
        paths = _within(root, needed=bool(roots))
        if paths is None:
            parent, paths = os.path.dirname(real), [(root, os.path.basename(real))]  # noqa: PTH119, PTH120
        else:
            parent = real
            whole.add(real)
        for path, name in paths:
            with suppress(OSError):  # a link to nothing, or it has just been deleted
                status = path.stat()
                place = (status.st_dev, status.st_ino)
                if stat.S_ISDIR(status.st_mode) and place not in seen:
                    seen.add(place)
                    folders.setdefault(parent, []).append(Found(path, parent, name))
    return folders, whole


def _within(root: Path, *, needed: bool) -> list[tuple[Path, str]] | None:
    """What lies in a folder, with the names; None: it is a stored folder itself."""
    try:
        if not stat.S_ISDIR(root.stat().st_mode):
            raise NotADirectoryError(None, "it is no folder")
        if _kind(root) is not None:
            return None
        return sorted((path, path.name) for path in root.iterdir() if path.name[0] != ".")
    except (OSError, ValueError) as e:
        if not needed and isinstance(e, FileNotFoundError):
            return []
        why = getattr(e, "strerror", None) or str(e)
        raise InputError(
            "history.no_folder",
            f"cannot list {harmless(str(root))}: {why}",
            hint="give a folder of stored runs: --runs DIR",
        ) from e


def _kind(folder: Path) -> Kind | None:
    """What kind of a stored folder it is, by the file that makes it one; None: of none.

    Raises:
        OSError: the folder cannot be searched.
    """
    for name, kind in FILES:
        try:
            os.lstat(folder / name)
        except (FileNotFoundError, NotADirectoryError):
            continue
        return kind
    return None


def _entry(found: Found, kind: Kind | None) -> tuple[Entry | None, bool]:
    """What the folder says of itself, and whether that changes with its files alone.

    None: it holds nothing of turngap.
    """
    if kind is None:
        return _undone(found), False
    try:
        return read_entry(found.folder, kind), True
    except InputError as e:
        return _without(found, "unreadable", kind, str(e)), e.kind.startswith("document.damaged")


def _undone(found: Found) -> Entry | None:
    """A folder of ours that was not finished: its own record comes last, or never came."""
    try:
        _kind(found.folder)
        if _OURS.fullmatch(found.folder.name) is None:
            return None
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
        path=str(found.folder),
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
