"""Tests that need a quiet machine: not measured where it is busy, and only there."""

import os
import subprocess
import sys
import time

import psutil
import pytest
from inner_runs import INI
from quiet import Watch, own_s, whole_run, why_busy, why_not_measured

from turngap.core.errors import AgentError

pytest_plugins = ["pytester"]

QUIET = [(0.05, 1.6)] * 10
HOGGED = [(1.02, 0.6)] * 10


@pytest.mark.parametrize(
    ("samples", "busy"),
    [
        (HOGGED, True),
        (HOGGED[:3] + QUIET[:7], True),
        (HOGGED[:1] + QUIET[:9], False),  # a moment of it
        (QUIET, False),
        ([(1.0, 6.5)] * 10, False),  # there are cores left for the test
        ([(0.02, 0.2)] * 10, False),  # the test's own processes keep the machine busy
        ([], False),
    ],
)
def test_a_machine_is_busy_when_others_leave_no_core_idle(
    samples: list[tuple[float, float]], busy: bool
) -> None:
    assert (why_busy(samples) is not None) is busy


def test_what_it_was_busy_with_is_said() -> None:
    found = why_busy(HOGGED[:3] + QUIET[:7])
    assert found is not None
    assert found.startswith("other processes used 1.0 of ")
    assert found.endswith(" cores in 3 of 10 half seconds")


class Said(Watch):
    """Says what it is told to."""

    def __init__(self, samples: list[tuple[float, float]]) -> None:
        self._samples = samples

    def samples(self, since_ns: int) -> list[tuple[float, float]]:
        return self._samples


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AssertionError("assert 1 == 2\nmore of it"), "assert 1 == 2"),
        (AgentError("agent.line_lost", "the line was lost"), "the line was lost"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_what_fails_on_a_busy_machine_is_not_measured_and_named(
    error: Exception, said: str
) -> None:
    why = why_not_measured(error, Said(HOGGED), 0)
    assert why is not None
    assert why.startswith("not measured: the machine is busy (other processes used 1.0 of ")
    assert why.endswith(f"), and this failed: {said}")
    assert why_not_measured(error, Said(QUIET), 0, 0) is None


def test_no_other_error_is_the_machines_fault() -> None:
    assert why_not_measured(ValueError("broken"), Said(HOGGED), 0) is None


INNER = """
import pytest

@pytest.fixture
def slow():
    assert 1 == 2, "no answer"

@pytest.mark.realtime
def test_fixture(slow): ...

@pytest.mark.realtime
def test_call():
    assert 3 == 4, "too slow"

@pytest.mark.realtime
def test_broken():
    raise ValueError("broken")

@pytest.mark.realtime
def test_passes(): ...

def test_not_in_real_time():
    assert 5 == 6
"""
HOOKS = """
import pytest
import quiet

class Said(quiet.Watch):
    def __init__(self): ...
    def samples(self, since_ns):
        return {samples!r}

def pytest_configure(config):
    config.addinivalue_line("markers", "realtime: x")
    config.stash[quiet.WATCH] = Said()

def pytest_runtest_setup(item):
    quiet.note_begin(item)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    return quiet.judge(item, call.excinfo and call.excinfo.value, report)
"""


@pytest.mark.parametrize(
    ("samples", "outcomes"),
    [
        (HOGGED, {"passed": 1, "failed": 2, "skipped": 2}),
        (QUIET, {"passed": 1, "failed": 3, "errors": 1}),
    ],
)
def test_only_tests_in_real_time_are_left_out_and_only_on_a_busy_machine(
    pytester: pytest.Pytester, samples: list[tuple[float, float]], outcomes: dict[str, int]
) -> None:
    pytester.makeini(INI)
    pytester.makeconftest(HOOKS.format(samples=samples))
    pytester.makepyfile(INNER)
    result = pytester.runpytest_inprocess("-rs")
    result.assert_outcomes(**outcomes)
    if "skipped" in outcomes:
        result.stdout.fnmatch_lines(["SKIPPED*not measured: *this failed: too slow*"])


def test_the_machine_is_looked_at_until_now(watch: Watch) -> None:
    since_ns = time.monotonic_ns()
    (used, idle), *_ = watch.samples(since_ns)
    assert used + idle < (psutil.cpu_count() or 1) + 1


def test_workers_beside_this_one_are_not_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")
    assert whole_run() == os.getppid()
    monkeypatch.delenv("PYTEST_XDIST_WORKER")
    assert whole_run() == os.getpid()


def test_what_a_child_has_used_is_not_others() -> None:
    here = psutil.Process()
    before_s = own_s(here)
    program = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert own_s(here) - before_s > 0.15
