"""Runs a command that, with all it starts, does not outlive the process that asked for it.

    python -m turngap_services.llm.vllm.keeper NICE COMMAND ARGUMENT…

NICE, 0 to 19, is added to this process's niceness. The asking process holds the other end of this
process's stdin. When that closes, even because the asking process was killed, the command and all
that it started are ended: vLLM's workers are processes of their own, which would keep the GPU's
memory.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import psutil

# How long a server may take to close its sockets and free its device before it is killed.
GRACE_S = 5.0

_PR_SET_CHILD_SUBREAPER = 36


def main(nice: int, command: list[str]) -> int:
    """Run `command` until it ends, this process is told to end, or stdin closes.

    Returns:
        The command's exit status; 127 if there is no such command.
    """
    _adopt_orphans()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as e:
        sys.stderr.write(f"{command[0]}: {e.strerror}\n")
        return 127
    _leave_to_others(child.pid, nice)
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda *_: _ask_to_end(child.pid))
    threading.Thread(target=_end_with_stdin, args=(child.pid,), daemon=True).start()
    status = child.wait()
    _end_the_rest()
    return status


def _leave_to_others(pid: int, nice: int) -> None:
    """Raise the niceness of a session's leader, and of all that it starts from now on."""
    with suppress(ProcessLookupError):  # it has ended already
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + nice)
    # If Linux groups processes by session, a process's niceness counts only within its group; this
    # sets the group's (man 7 sched, "The autogroup feature"). Without groups there is no such file.
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice), encoding="ascii")


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parent dies, so that they can still be found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_with_stdin(pid: int) -> None:
    # The raw descriptor: a daemon thread that holds a buffered reader at exit is fatal.
    while os.read(0, 4096):
        pass
    _ask_to_end(pid)


def _ask_to_end(pid: int) -> None:
    """Ask the command to end, and kill it if it does not."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    timer = threading.Timer(GRACE_S, _kill, args=(pid,))
    timer.daemon = True
    timer.start()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end_the_rest() -> None:
    """End the processes that the command has left: ask first, kill after `GRACE_S`."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(left, timeout=GRACE_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
