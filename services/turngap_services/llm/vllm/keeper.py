"""Runs a command and does not let it, or anything that it starts, outlive whoever asked for it.

    python -m turngap_services.llm.vllm.keeper COMMAND ARGUMENT…

Whoever asked holds the other end of this process's stdin. When that closes, even because the asker
was killed, the command and all that it started are ended: vLLM's workers are processes of their
own, which would keep the memory of the GPU.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import psutil

# What a server gets to close its sockets and free its device, before it is killed.
GRACE_S = 5.0

_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> int:
    """Run `command` until it ends, this process is told to end, or stdin closes.

    Returns:
        Its exit status; 127 where there is no such command.
    """
    _adopt_orphans()
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as e:
        sys.stderr.write(f"{command[0]}: {e.strerror}\n")
        return 127
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, lambda *_: _ask_to_end(child.pid))
    threading.Thread(target=_end_with_stdin, args=(child.pid,), daemon=True).start()
    status = child.wait()
    _end_the_rest()
    return status


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
    """Let the command end by itself, and kill it where it does not."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    timer = threading.Timer(GRACE_S, _kill, args=(pid,))
    timer.daemon = True
    timer.start()


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end_the_rest() -> None:
    """End what the command has left behind: asked first, killed after `GRACE_S`."""
    left = psutil.Process().children(recursive=True)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(left, timeout=GRACE_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
