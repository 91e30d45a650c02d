"""A guard so that no child process outlives its parent, however the parent ended.

`python -m turngap.children COMMAND…` does so for any command.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

# Set by the parent, whose end of the child's stdin closes when it goes, even by SIGKILL. Not set
# where a person starts the same command, whose stdin may be closed from the beginning.
PARENT_HOLDS_STDIN = "TURNGAP_PARENT_HOLDS_STDIN"

# Set with LOGURU_AUTOINIT where the command line has set that for itself. A bot that inherited
# that would log nothing.
QUIET_LOGURU = "TURNGAP_QUIET_LOGURU"

# Long enough for a server to close its lines; less than what `turngap.play.process` waits.
GRACE_S = 3.0

# From Linux' prctl.h: what a child leaves behind becomes a child of this process.
_SET_CHILD_SUBREAPER = 36


def end_with_parent(sign: int = signal.SIGTERM, *, after_s: float = 0.0) -> None:
    """End this child process, as by this signal, `after_s` after its parent is gone."""

    def end() -> None:
        threading.Event().wait(after_s)
        os.kill(os.getpid(), sign)

    _when_parent_is_gone(end)


def _when_parent_is_gone(act: Callable[[], None]) -> None:
    if os.environ.get(PARENT_HOLDS_STDIN):
        name, arguments = "turngap-parent", (act,)
        threading.Thread(target=_wait_for_the_end, args=arguments, name=name, daemon=True).start()


def _wait_for_the_end(act: Callable[[], None]) -> None:
    # The raw file, not sys.stdin: a daemon thread that holds a buffered reader at exit is fatal.
    while os.read(sys.__stdin__.fileno() if sys.__stdin__ else 0, 4096):
        pass
    act()


def treat_hangups_as_interrupts() -> None:
    """Let SIGTERM and SIGHUP end a parent's work as Ctrl-C does, so that the work is kept.

    A script's shell makes background jobs (`turngap load &`) ignore SIGINT. SIGINT is handled here
    all the same, because SIGTERM becomes SIGINT and would be ignored too.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    for name in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(name) is not signal.SIG_IGN:
            signal.signal(name, interrupt)


def guard(argv: Sequence[str]) -> int:
    """Run a command; when it ends, at SIGTERM or when the parent is gone, end all that it started.

    This process leads a group of its own, with the command in it, and sends it SIGTERM. Processes
    left after `GRACE_S` are killed, in whatever group or session they are.

    Returns:
        The command's exit code, negative for a signal, as `subprocess` has it.
    """
    with suppress(OSError, AttributeError):  # elsewhere than on Linux, a daemon is on its own
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signalled: list[int] = []  # the group, by a signal that it was sent
    signal.signal(signal.SIGTERM, lambda *_: (signalled.append(os.getpgrp()), sys.exit()))
    _when_parent_is_gone(lambda: os.killpg(os.getpgrp(), signal.SIGTERM))
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, env=_users_environment()).wait()
    except OSError as e:
        sys.stderr.write(f"{argv[0]} cannot be started: {e.strerror or e}\n")
        return 126
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end_descendants(signalled)


def _users_environment() -> dict[str, str]:
    """Return the environment without the variables that turngap sets for its own processes."""
    # A command that is turngap itself would take its empty stdin's end for that of its parent.
    ours = {PARENT_HOLDS_STDIN, QUIET_LOGURU}
    if QUIET_LOGURU in os.environ:
        ours.add("LOGURU_AUTOINIT")
    return {name: value for name, value in os.environ.items() if name not in ours}


def _end_descendants(signalled: Collection[int]) -> None:
    """Ask all descendants to end, except groups already asked; kill those that remain."""
    import psutil

    left = psutil.Process().children(recursive=True)
    for process in left:
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) not in signalled:
                process.terminate()
    psutil.wait_procs(left, timeout=GRACE_S)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            process.kill()


if __name__ == "__main__":
    code = guard(sys.argv[1:])
    if code < 0:  # end as the command did, so that the parent sees by what
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
