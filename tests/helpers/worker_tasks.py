"""Work for the workers of `turngap.workers`: what tests let them do."""

import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Any

from turngap.core.errors import InputError
from turngap.workers.pool import OnResult, here


def count(given: int, tell: OnResult) -> None:
    for number in range(given):
        tell(number)


def say_where(given: Any, tell: OnResult) -> None:
    tell((here(), os.getpid()))


def print_and_read(given: Any, tell: OnResult) -> None:
    sys.stdout.write("this must not be seen\n")
    tell(sys.stdout.isatty())


def fail(given: str, tell: OnResult) -> None:
    tell("first")
    match given:
        case "raise":
            raise KeyError("no such thing")
        case "explain":
            raise InputError("test", "the file is not there")
        case "exit":
            sys.exit(3)
        case "quit":
            sys.stderr.write("bailing out\n")
            sys.stderr.flush()
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "unpicklable":
            tell(lambda: None)
        case _:
            tell("second")


def break_off(given: Any, tell: OnResult) -> None:
    """End in the middle of a message: the reader would wait for its rest."""
    line = tell.__closure__[0].cell_contents._line  # type: ignore
    line.sendall((1000).to_bytes(8, "big") + b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def hold(given: str, tell: OnResult) -> None:
    """Wait for what never comes, SIGTERM not excepted, after a file says that it waits."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(given).write_text(str(os.getpid()))
    tell(os.getpid())
    signal.sigwait({signal.SIGUSR2})


def wait_for_lock(given: str, tell: OnResult) -> None:
    """Tell where this runs, wait until nobody holds the lock of a file, and tell so."""
    tell(here())
    with Path(given).open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
    tell("unlocked")


def flood(given: int, tell: OnResult) -> None:
    """Tell more than sockets and queues hold, then leave a file that says so."""
    path, size, times = given  # type: ignore
    for number in range(times):
        tell((number, b"x" * size))
    Path(path).write_text("told")


def raise_unreadable(given: Any, tell: OnResult) -> None:
    tell(_Unreadable())


class _Unreadable:
    def __reduce__(self) -> Any:
        return (_explode, ())


def _explode() -> None:
    raise ValueError("cannot be read")
