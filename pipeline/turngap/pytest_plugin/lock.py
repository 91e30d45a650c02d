"""One replay at a time on this machine, whatever runs the tests side by side.

Two callers on one machine disturb each other: what is measured then is the other test. Under xdist
(or with two terminals) each waits here for its turn.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def lock_file() -> Path:
    """Return the file of this user that all replays on this machine lock."""
    return Path(tempfile.gettempdir()) / f"turngap-{os.getuid()}.lock"


@contextmanager
def one_at_a_time(file: Path | None = None) -> Iterator[None]:
    """Wait for the lock and hold it.

    It is the kernel's, not the file's existence: a process that dies gives it back.
    """
    # Not at the top: this module is imported on every platform that runs pytest.
    import fcntl

    # Not through a link: the temporary folder is everybody's.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(file or lock_file(), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
