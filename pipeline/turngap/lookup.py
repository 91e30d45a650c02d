"""Which stored run is meant: by path, by name, or the latest one."""

from datetime import UTC, datetime
from pathlib import Path

from turngap.core.errors import InputError
from turngap.files import is_dir, is_file
from turngap.runs import (
    DEFAULT_ROOT,
    RUN_FILE,
    RUN_HINT,
    TURNS_FILE,
    read_record,
    started_at,
)


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
    known = ", ".join(folder.name for folder in reversed(run_folders(root)[-5:]))
    raise InputError(
        "run.unknown",
        f"no run {name_or_path!r}: neither a folder nor a run in {root}",
        hint=f"latest: {known}" if known else RUN_HINT,
    )


def run_folders(root: Path) -> list[Path]:
    """Every run's folder in `root`, in the order in which they started."""
    if not root.is_dir():
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
