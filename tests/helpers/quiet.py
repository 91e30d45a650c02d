"""Watch whether another process used the machine while a test measured time.

A test in real time that fails is reported as not measured, which is neither passed nor failed, if
two things hold. What failed is about time: an assertion within `with quiet.measured():`, or
something that was waited for in vain. And other processes used the machine during the test, or
while a fixture was made that it shares with other tests. The reason names what failed. Every other
failure is a failure, whatever the machine does. Of a test that is also `unhurried`, only waiting in
vain is excused.

As a process of its own, `python quiet.py PID`, this says twice a second how many cores that process
and its children leave to others, and how many of these others use.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from turngap.core.errors import ExitCode, TurngapError

EVERY_S = 0.5
EVERY_NS = round(EVERY_S * 1e9)
# A machine is busy when others take a quarter of a core or more and less than a whole one is idle:
# then agent, caller and browser wait for each other. Half a second of it is no reason for anything.
OTHERS_CORES = 0.25
IDLE_CORES = 1.0
BUSY_SHARE = 0.2

NOT_MEASURED = "not measured: "

# The kinds of error that say that something came too late. Another kind counts as late only where
# a timeout has caused it, as an agent that is unreachable because it let no call in for 10 s.
LATE_KINDS = {
    "agent.slow_start": "its process was not ready, or listened nowhere, within minutes",
    "agent.not_ready": "it took the line and did not answer the opening within 10 s",
    "agent.unready": "it answered the opening and was not ready within 10 s",
    "agent.silent": "it said nothing to any dialect while each was tried",
    "calibrate.no_truth": "the loopback agent did not hear a caller that had no time to speak",
    "vllm.slow": "vLLM did not load its model in time",
    "workers.lost": "Ray takes a node that is late with its health checks for dead",
}
# What such errors say on the stderr of a command.
_WAITED = re.compile(r"^error: .*\b(within|after) [\d.]+ s\b", re.MULTILINE)

# A note on an assertion that failed, for the report below and for who reads the traceback.
OF_TIME = "(a busy machine can spoil this)"

Span = tuple[int, int]


@contextmanager
def measured() -> Iterator[None]:
    """Assert in here what a busy machine can spoil, and nothing else."""
    try:
        yield
    except AssertionError as e:
        e.add_note(OF_TIME)
        raise


def exited(code: int, said: str, *expected: ExitCode) -> None:
    """Assert how a command ended: as expected, or because it waited in vain.

    Raises:
        TimeoutError: the last line of its stderr, `said`, is that something came too late.
    """
    assert "Traceback" not in said, said
    if code == ExitCode.AGENT_FAILED and _WAITED.search(said):
        raise TimeoutError(said)
    assert code in expected, said


# How a replay without a budget ends that has played; 3: the machine starved the caller.
PLAYED = (ExitCode.PASS, ExitCode.INCONCLUSIVE)


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

    def samples(self, since_ns: int, until_ns: int) -> list[tuple[float, float]]:
        """Cores used by others and idle ones, in each half second that is partly between these."""
        give_up_ns = time.monotonic_ns() + 60_000_000_000
        while True:
            lines = self._file.read_text(encoding="utf-8").splitlines(keepends=True)
            rows = [line.split() for line in lines if line.endswith("\n")]
            complete = bool(rows) and int(rows[-1][0]) >= until_ns
            if complete or time.monotonic_ns() > give_up_ns or self._process.poll() is not None:
                begun = [0, *(int(at) for at, *_ in rows)]
                return [
                    (float(used), float(idle))
                    for begun_ns, (at, used, idle) in zip(begun, rows, strict=False)
                    if since_ns < int(at) and begun_ns < until_ns
                ]
            time.sleep(0.05)


def whole_run() -> int:
    """The process of the whole run: other workers of it do not count as other processes."""
    return os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()


def why_busy(samples: list[tuple[float, float]]) -> str | None:
    """Return the evidence that others were using the machine; None without any."""
    busy = [used for used, idle in samples if used >= OTHERS_CORES and idle < IDLE_CORES]
    if not busy or len(busy) < BUSY_SHARE * len(samples):
        return None
    cores = sum(busy) / len(busy)
    return (
        f"other processes used {cores:.1f} of {psutil.cpu_count()} cores in {len(busy)} of "
        f"{len(samples)} half seconds"
    )


def is_late(error: BaseException) -> bool:
    """Return whether the test waited for something in vain."""
    if isinstance(error, TurngapError):
        return error.kind in LATE_KINDS or isinstance(error.__cause__, TimeoutError)
    # Python's own, which is asyncio's, and playwright's, which is no kind of it.
    waited = isinstance(error, TimeoutError | subprocess.TimeoutExpired)
    return waited or type(error).__name__ == "TimeoutError"


def is_of_time(error: BaseException) -> bool:
    """Return whether an assertion failed that a busy machine can spoil."""
    return isinstance(error, AssertionError) and OF_TIME in getattr(error, "__notes__", ())


def why_not_measured(error: BaseException, watch: Watch, *spans: Span) -> str | None:
    """Explain how the machine may have made a test fail with this error: busy in one of the spans.

    None where it was not.
    """
    busy = next(filter(None, (why_busy(watch.samples(*span)) for span in spans)), None)
    if busy is None:
        return None
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{NOT_MEASURED}the machine is busy ({busy}), and this failed: {said}"


WATCH, SINCE_NS = pytest.StashKey[Watch](), pytest.StashKey[int]()
MADE = pytest.StashKey[dict[str, Span]]()


def in_real_time(item: pytest.Item) -> bool:
    return item.get_closest_marker("realtime") is not None


def note_begin(item: pytest.Item) -> None:
    """Note when a test began."""
    item.stash[SINCE_NS] = time.monotonic_ns()


@contextmanager
def noted(name: str, node: pytest.Item | pytest.Collector) -> Iterator[None]:
    """Note when a fixture of a test, a file or the session was made."""
    since_ns = time.monotonic_ns()
    try:
        yield
    finally:
        node.stash.setdefault(MADE, {})[name] = (since_ns, time.monotonic_ns())


def spans_of(item: pytest.Item) -> list[Span]:
    """Return the spans of a test, until now, and of the fixtures that it shares with others."""
    shared = [
        span
        for node in item.listchain()[:-1]
        for name, span in node.stash.get(MADE, {}).items()
        # In less than that nothing was played, and a sample says nothing about it.
        if name in getattr(item, "fixturenames", ()) and span[1] - span[0] >= EVERY_NS
    ]
    return [(item.stash[SINCE_NS], time.monotonic_ns()), *shared]


def judge(
    item: pytest.Item, error: BaseException | None, report: pytest.TestReport
) -> pytest.TestReport:
    """Call a test in real time not measured where the machine was busy and this made it fail."""
    watch = item.config.stash.get(WATCH, None)
    if not (report.failed and error and watch and in_real_time(item)):
        return report
    unhurried = item.get_closest_marker("unhurried") is not None
    if not is_late(error) and (unhurried or not is_of_time(error)):
        return report
    why = why_not_measured(error, watch, *spans_of(item))
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
