"""Files that are never seen half written, and names that may be none."""

import os
import tempfile
from pathlib import Path


def write_atomically(file: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace `file` as a whole: after a crash it holds the old or the new, never a part."""
    descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(file)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    # The rename itself is on the disk only once the folder is.
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_file(path: Path) -> bool:
    """Whether there is such a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_dir(path: Path) -> bool:
    """Whether there is such a folder; a name that no folder can have is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
