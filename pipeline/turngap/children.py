"""A child process must not outlive the one that started it, however that one went."""

import os
import signal
import sys
import threading

# Set by the parent, whose end of the child's stdin closes when it goes, even by SIGKILL. Not set
# where a person starts the same command, whose stdin may be closed from the beginning.
PARENT_HOLDS_STDIN = "TURNGAP_PARENT_HOLDS_STDIN"


def end_with_parent() -> None:
    """In a child: end this process, as by SIGTERM, when its parent is gone."""
    if os.environ.get(PARENT_HOLDS_STDIN):
        threading.Thread(target=_wait_for_the_end, name="turngap-parent", daemon=True).start()


def _wait_for_the_end() -> None:
    # The raw file, not sys.stdin: a daemon thread that holds a buffered reader at exit is fatal.
    while os.read(sys.__stdin__.fileno() if sys.__stdin__ else 0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def treat_hangups_as_interrupts() -> None:
    """In a parent: let SIGTERM and SIGHUP end the work as Ctrl-C does, so that it is kept."""

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    for name in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(name) is not signal.SIG_IGN:
            signal.signal(name, interrupt)
