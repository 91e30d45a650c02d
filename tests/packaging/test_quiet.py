"""Tests that need a quiet machine: not measured where it is busy, and only there."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import quiet
from inner_runs import INI
from playwright.async_api import TimeoutError as PlaywrightTimeout
from quiet import (
    EVERY_NS,
    LATE_KINDS,
    PLAYED,
    Watch,
    exited,
    is_late,
    is_of_time,
    measured,
    own_s,
    whole_run,
    why_busy,
    why_not_measured,
)

from turngap.core.errors import AgentError, InconclusiveError

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

    def samples(self, since_ns: int, until_ns: int) -> list[tuple[float, float]]:
        return self._samples


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AssertionError("assert 1 == 2\nmore of it"), "assert 1 == 2"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_the_reason_names_what_failed(error: Exception, said: str) -> None:
    why = why_not_measured(error, Said(HOGGED), (0, 1))
    assert why is not None
    assert why.startswith("not measured: the machine is busy (other processes used 1.0 of ")
    assert why.endswith(f"), and this failed: {said}")
    assert why_not_measured(error, Said(QUIET), (0, 1), (1, 2)) is None


def unreachable(cause: Exception) -> AgentError:
    error = AgentError("agent.unreachable", "nothing can be reached")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "late"),
    [
        (TimeoutError(), True),
        (subprocess.TimeoutExpired("turngap", 180), True),
        (PlaywrightTimeout("Timeout 30000ms exceeded."), True),
        (AgentError("agent.slow_start", "the agent was not ready within 900 s"), True),
        (InconclusiveError("calibrate.no_truth", "it answered 1 of 2 turns"), True),
        (unreachable(TimeoutError()), True),
        (unreachable(ConnectionRefusedError()), False),
        (AgentError("agent.line_lost", "the line was lost"), False),
        (AssertionError("assert 1 == 2"), False),
        (ValueError("broken"), False),
    ],
)
def test_only_what_was_waited_for_in_vain_is_late(error: Exception, late: bool) -> None:
    assert is_late(error) is late


def test_every_kind_that_is_late_is_one_of_turngaps() -> None:
    root = Path(__file__).parents[2]
    files = [file for part in ("pipeline", "services") for file in (root / part).rglob("*.py")]
    code = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert [kind for kind in LATE_KINDS if f'"{kind}"' not in code] == []


def test_only_assertions_within_measured_are_of_time() -> None:
    with pytest.raises(AssertionError) as inside, measured():
        raise AssertionError
    with pytest.raises(KeyError) as broken, measured():
        raise KeyError
    assert is_of_time(inside.value)
    assert not is_of_time(broken.value)
    assert not is_of_time(AssertionError())


def test_a_command_that_waited_in_vain_is_late_and_no_other_failure_is() -> None:
    exited(3, "", *PLAYED)
    with pytest.raises(TimeoutError, match="within 10 s"):
        exited(4, "starting\nerror: the agent was not ready within 10 s\n", *PLAYED)
    for code, said in [
        (4, "error: the agent ended in mid-conversation"),
        (2, "error: no scenario 'x'; it is looked for within 10 s"),
        (0, "Traceback (most recent call last):"),
        (-11, ""),
    ]:
        with pytest.raises(AssertionError) as failed:
            exited(code, said, *PLAYED)
        assert not is_of_time(failed.value)


INNER = """
import asyncio
import pytest
import quiet

@pytest.fixture
def slow():
    with quiet.measured():
        assert 1 == 2, "no answer"

@pytest.mark.realtime
def test_fixture(slow): ...

@pytest.mark.realtime
def test_call():
    with quiet.measured():
        assert 3 == 4, "too slow"

@pytest.mark.realtime
@pytest.mark.parametrize("unhurried", [pytest.param(1, marks=pytest.mark.unhurried), 0])
def test_waits(unhurried):
    raise TimeoutError("no bot")

@pytest.mark.realtime
def test_passes(): ...

@pytest.mark.realtime
def test_is_wrong():
    assert 3 == 4, "a stage is missing"

@pytest.mark.realtime
def test_is_broken():
    with quiet.measured():
        raise ValueError("broken")

@pytest.mark.realtime
@pytest.mark.unhurried
def test_has_time():
    with quiet.measured():
        assert 3 == 4, "another answer"

def test_not_in_real_time():
    with quiet.measured():
        assert 5 == 6
"""
HOOKS = """
import pytest
import quiet

class Said(quiet.Watch):
    def __init__(self): ...
    def samples(self, since_ns, until_ns):
        return {samples}

def pytest_configure(config):
    config.addinivalue_line("markers", "realtime: x")
    config.addinivalue_line("markers", "unhurried: x")
    config.stash[quiet.WATCH] = Said()

def pytest_runtest_setup(item):
    quiet.note_begin(item)

@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    with quiet.noted(fixturedef.argname, request.node):
        return (yield)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    return quiet.judge(item, call.excinfo and call.excinfo.value, report)
"""


@pytest.mark.parametrize(
    ("samples", "outcomes"),
    [
        (HOGGED, {"passed": 1, "failed": 4, "skipped": 4}),
        (QUIET, {"passed": 1, "failed": 7, "errors": 1}),
    ],
)
def test_only_failures_of_time_in_real_time_are_excused_and_only_on_a_busy_machine(
    pytester: pytest.Pytester, samples: list[tuple[float, float]], outcomes: dict[str, int]
) -> None:
    pytester.makeini(INI)
    pytester.makeconftest(HOOKS.format(samples=samples))
    pytester.makepyfile(INNER)
    result = pytester.runpytest_inprocess("-rsf")
    result.assert_outcomes(**outcomes)
    if "skipped" in outcomes:
        result.stdout.fnmatch_lines(["SKIPPED*not measured: *this failed: too slow*"])
        failed = {line.split("::")[1].split(" ")[0] for line in failures(result)}
        wrong = {"test_is_wrong", "test_is_broken", "test_has_time", "test_not_in_real_time"}
        assert failed == wrong


def failures(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("FAILED ")]


SHARING = """
import pytest
import quiet

@pytest.fixture(scope="session")
def bot(): ...

@pytest.fixture(scope="module")
def played(bot): ...

@pytest.fixture(scope="module")
def other(): ...

def fails():
    with quiet.measured():
        assert 1 == 2, "too slow"

@pytest.mark.realtime
def test_passes(other, played, request):
    quiet.busy = request.session.stash[quiet.MADE]["bot"]

@pytest.mark.realtime
def test_with_it(played):
    fails()

@pytest.mark.realtime
def test_with_another(other):
    fails()

@pytest.mark.realtime
def test_alone():
    fails()
"""


@pytest.mark.parametrize(("least_ns", "excused"), [(0, 1), (60_000_000_000, 0)])
def test_a_test_is_judged_by_its_own_time_and_that_of_long_fixtures_it_shares(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, least_ns: int, excused: int
) -> None:
    """The machine was busy while `bot` was made for the first test, and at no other time."""
    monkeypatch.setattr(quiet, "EVERY_NS", least_ns)
    monkeypatch.setattr(quiet, "busy", None, raising=False)
    pytester.makeini(INI)
    busy = f"{HOGGED} if (since_ns, until_ns) == quiet.busy else {QUIET}"
    pytester.makeconftest(HOOKS.format(samples=busy))
    pytester.makepyfile(SHARING)
    result = pytester.runpytest_inprocess("-rf")
    result.assert_outcomes(passed=1, failed=3 - excused, skipped=excused)
    wrong = {line.split("::")[1].split(" ")[0] for line in failures(result)}
    assert ("test_with_it" in wrong) is not bool(excused)


def test_only_the_half_seconds_of_a_span_count(tmp_path: Path) -> None:
    file = tmp_path / "samples"
    halves = range(1, 9)
    file.write_text("".join(f"{n * EVERY_NS} 0.{n} 1.0\n" for n in halves), encoding="utf-8")
    watch = object.__new__(Watch)
    watch._file = file
    used = [used for used, _ in watch.samples(EVERY_NS * 5 // 2, EVERY_NS * 9 // 2)]
    assert used == [0.3, 0.4, 0.5]


def test_the_machine_is_looked_at_until_now(watch: Watch) -> None:
    since_ns = time.monotonic_ns()
    (used, idle), *_ = watch.samples(since_ns, time.monotonic_ns())
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
