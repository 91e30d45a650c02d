"""Whether another process used the machine while a test measured time.

Where a test in real time fails as a busy machine lets it fail, and the machine was shown to be busy
since it began, or since the first test of its file did, it is reported as not measured: it has
neither passed nor failed. The reason names what failed, so that somebody sees what fails each time.
On a quiet machine a failure is a failure, and no other error is the machine's fault.

As a process of its own, `python quiet.py PID`, this says twice a second how many cores that process
and its children leave to others, and how many of these others use.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from turngap.core.errors import AgentError

EVERY_S = 0.5
# A machine is busy when others take a quarter of a core or more and less than a whole one is idle:
# then agent, caller and browser wait for each other. Half a second of it is no reason for anything.
OTHERS_CORES = 0.25
IDLE_CORES = 1.0
BUSY_SHARE = 0.2

NOT_MEASURED = "not measured: "


class Watch:
    """Looks at the machine for as long as the tests run; costs them a hundredth of a core."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with file.open("wb") as out:
            command = [sys.executable, __file__, str(whole_run())]
            self._process = subprocess.Popen(command, stdout=out)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()

    def samples(self, since_ns: int) -> list[tuple[float, float]]:
        """Cores used by others and idle ones, from `since_ns` until now."""
        until_ns = time.monotonic_ns()
        give_up_ns = until_ns + 60_000_000_000
        while True:
            lines = self._file.read_text(encoding="utf-8").splitlines(keepends=True)
            rows = [line.split() for line in lines if line.endswith("\n")]
            complete = bool(rows) and int(rows[-1][0]) >= until_ns
            if complete or time.monotonic_ns() > give_up_ns or self._process.poll() is not None:
                return [(float(used), float(idle)) for at, used, idle in rows if int(at) > since_ns]
            time.sleep(0.05)


def whole_run() -> int:
    """The process of all tests that run now: workers beside this one are no others."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def why_busy(samples: list[tuple[float, float]]) -> str | None:
    """What shows that others were using the machine; None where nothing does."""
    busy = [used for used, idle in samples if used >= OTHERS_CORES and idle < IDLE_CORES]
    if not busy or len(busy) < BUSY_SHARE * len(samples):
        return None
    cores = sum(busy) / len(busy)
    return (
        f"other processes used {cores:.1f} of {psutil.cpu_count()} cores in {len(busy)} of "
        f"{len(samples)} half seconds"
    )


def why_not_measured(error: BaseException, watch: Watch, *since_ns: int) -> str | None:
    """Why a test that failed with this error has measured nothing; None where it has failed.

    The machine counts as busy where it was since one of the instants.
    """
    late = isinstance(error, AssertionError | AgentError | subprocess.TimeoutExpired)
    # asyncio's, Python's own and playwright's
    if not late and type(error).__name__ != "TimeoutError":
        return None
    busy = next(filter(None, (why_busy(watch.samples(each)) for each in since_ns)), None)
    if busy is None:
        return None
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{NOT_MEASURED}the machine is busy ({busy}), and this failed: {said}"


WATCH, SINCE_NS = pytest.StashKey[Watch](), pytest.StashKey[int]()


def in_real_time(item: pytest.Item) -> bool:
    return item.get_closest_marker("realtime") is not None


def note_begin(item: pytest.Item) -> None:
    """Note when a test began, and the first one of its file, whose figures the others may share."""
    item.stash[SINCE_NS] = time.monotonic_ns()
    if (module := item.getparent(pytest.Module)) is not None:
        module.stash.setdefault(SINCE_NS, time.monotonic_ns())


def judge(
    item: pytest.Item, error: BaseException | None, report: pytest.TestReport
) -> pytest.TestReport:
    """Call a test in real time not measured where the machine was busy when it failed."""
    module, watch = item.getparent(pytest.Module), item.config.stash.get(WATCH, None)
    if not (report.failed and error and module and watch and in_real_time(item)):
        return report
    why = why_not_measured(error, watch, item.stash[SINCE_NS], module.stash[SINCE_NS])
    if why is not None:
        file, line, _ = item.location
        report.outcome, report.longrepr = "skipped", (file, line or 0, why)
    return report


def _used_s() -> tuple[float, float]:
    """CPU time of all processes, and the idle time of all cores."""
    of = psutil.cpu_times()
    idle_s = of.idle + getattr(of, "iowait", 0.0)
    beside = getattr(of, "guest", 0.0) + getattr(of, "guest_nice", 0.0)  # part of user and nice
    return sum(of) - idle_s - beside, idle_s


def own_s(process: psutil.Process) -> float:
    """CPU time of a process and its children, those that have ended included."""
    spent_s = 0.0
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            times = each.cpu_times()
            spent_s += times.user + times.system + times.children_user + times.children_system
    return spent_s


def _watch(process: psutil.Process) -> None:
    def now() -> tuple[int, float, float]:
        used_s, idle_s = _used_s()
        return time.monotonic_ns(), used_s - own_s(process), idle_s

    parent = os.getppid()
    before_ns, before_s, before_idle_s = now()
    while os.getppid() == parent:
        time.sleep(EVERY_S)
        at_ns, others_s, idle_s = now()
        took_s = (at_ns - before_ns) / 1e9
        others, idle = (others_s - before_s) / took_s, (idle_s - before_idle_s) / took_s
        sys.stdout.write(f"{at_ns} {others:.2f} {idle:.2f}\n")
        sys.stdout.flush()
        before_ns, before_s, before_idle_s = at_ns, others_s, idle_s


if __name__ == "__main__":
    with suppress(psutil.NoSuchProcess):
        _watch(psutil.Process(int(sys.argv[1])))
