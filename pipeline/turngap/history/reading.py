"""The history of folders: everything that is stored in them, each as an `Entry`."""

import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from turngap.core.clock import instant
from turngap.core.errors import InputError
from turngap.core.untrusted import harmless, printable
from turngap.history.kinds import FILES, Entry, Kind, Status, read_entry
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
_AGO = re.compile(r"(\d{1,5})([dhw])")
_HOURS = {"h": 1, "d": 24, "w": 7 * 24}


OnRead = Callable[[int, int], None]


def entries(roots: Sequence[Path] = (), on_read: OnRead = lambda done, of: None) -> list[Entry]:
    """Read everything that is stored in these folders, in the order in which it began.

    A folder that cannot be read becomes an entry with its reason. A folder without anything of
    turngap is left out, and so is a second path to the same folder.

    Args:
        roots: folders of stored folders, or such folders themselves; by default `./runs`, which may
            be missing.
        on_read: receives how many have been read, and of how many.

    Raises:
        InputError: a folder that was given does not exist, or cannot be listed.
    """
    seen: set[tuple[int, int]] = set()  # each folder counts once, whatever links lead to it
    folders: list[Path] = []
    for root in roots or (DEFAULT_ROOT,):
        for path in _within(root, needed=bool(roots)):
            with suppress(OSError):  # a link to nothing, or it has just been deleted
                status = path.stat()
                place = (status.st_dev, status.st_ino)
                if stat.S_ISDIR(status.st_mode) and place not in seen:
                    seen.add(place)
                    folders.append(path)
    listed: list[Entry] = []
    for done, folder in enumerate(folders, start=1):
        entry = _entry(folder)
        if entry is not None:
            listed.append(entry)
        on_read(done, len(folders))
    return sorted(listed, key=lambda entry: (began(entry), entry.path))


def chosen(
    entries: Sequence[Entry],
    *,
    since: str | None = None,
    valid: bool = False,
    last: int | None = None,
    now: datetime | None = None,
) -> list[Entry]:
    """Return the entries that began at `since` or later and are valid if asked, the `last` newest.

    `since` is a day, an instant, or how long ago: `7d`.

    Raises:
        InputError: `since` is not one of these.
    """
    start = None if since is None else _instant(since, now or datetime.now(UTC))
    kept = [
        entry
        for entry in entries
        if (entry.valid or not valid) and (start is None or began(entry) >= start)
    ]
    return kept if last is None else kept[max(0, len(kept) - last) :]


def _instant(text: str, now: datetime) -> datetime:
    if ago := _AGO.fullmatch(text.strip()):
        return now - timedelta(hours=int(ago[1]) * _HOURS[ago[2]])
    try:
        return instant(text.strip())
    except ValueError as e:
        raise InputError(
            "history.since",
            f"--since {printable(text, 100)!r}: expected a day, an instant in UTC, or how long ago",
            hint="for example: --since 2026-11-20, --since 2026-11-20T15:00, or --since 7d",
        ) from e


def began(entry: Entry) -> datetime:
    """Return when it began; an entry that does not say so comes first."""
    try:
        return instant(entry.started_utc)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)


def _within(root: Path, *, needed: bool) -> list[Path]:
    """Return the contents of a folder, or the folder if it is a stored one itself."""
    try:
        if not stat.S_ISDIR(root.stat().st_mode):
            raise NotADirectoryError(None, "it is no folder")
        if _kind(root) is not None:
            return [root]
        return sorted(path for path in root.iterdir() if path.name[0] != ".")
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
    """Return the kind of a stored folder, by the file that makes it one; None if there is none.

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


def _entry(folder: Path) -> Entry | None:
    """Return the entry of a folder; None if it holds nothing of turngap.

    An unfinished folder of turngap is an entry, too: its own record comes last, or never came.
    """
    ours = _OURS.fullmatch(folder.name)
    name = folder.name if ours is None else ours["name"]
    kinds: list[Kind] = [kind for pattern, kind in _UNDONE if pattern.fullmatch(name)]
    kind = kinds[0] if kinds else "replay"
    status: Status = "unreadable"
    try:
        if (recorded := _kind(folder)) is not None:
            kind = recorded
            return read_entry(folder, kind)
        within = list(folder.iterdir()) if ours else []
        has_runs = any((path / RUN_FILE).is_file() for path in within)
        if ours is None or (within and not has_runs):
            return None
        status, why = "unfinished", "unfinished: nothing was stored"
        if has_runs:
            why = "unfinished: it was ended, or is being played, and is not judged"
    except InputError as e:
        why = str(e)
    except OSError as e:
        why = e.strerror or str(e)
    started_utc = _by_name(folder)
    return Entry(
        path=str(folder), kind=kind, status=status, started_utc=started_utc, why=(harmless(why),)
    )


def _by_name(folder: Path) -> str:
    """Return when a folder was made, by its name or else by the disk's time."""
    ours = _OURS.fullmatch(folder.name)
    try:
        if ours is not None:
            at = datetime.strptime(ours["utc"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        else:
            at = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
        return at.isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""
