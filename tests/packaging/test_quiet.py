"""Tests that need a quiet machine: not measured where it is busy, and only there."""

import subprocess
import sys
import time

import psutil
import pytest
from quiet import Quiet, Watch, own_s, why_busy

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


def test_what_fails_on_a_busy_machine_is_not_measured() -> None:
    with (
        pytest.raises(pytest.skip.Exception, match=r"^not measured: the machine is busy \(other"),
        Quiet(Said(HOGGED)).measured(),
    ):
        raise AssertionError("too slow")


def test_what_fails_on_a_quiet_machine_has_failed() -> None:
    with pytest.raises(AssertionError, match="too slow"), Quiet(Said(QUIET)).measured():
        raise AssertionError("too slow")


def test_no_other_error_is_the_machines_fault() -> None:
    with pytest.raises(ValueError, match="broken"), Quiet(Said(HOGGED)).measured():
        raise ValueError("broken")


def test_what_holds_on_a_busy_machine_has_passed() -> None:
    with Quiet(Said(HOGGED)).measured():
        pass


def test_the_machine_is_looked_at_until_now(watch: Watch) -> None:
    since_ns = time.monotonic_ns()
    (used, idle), *_ = watch.samples(since_ns)
    assert used + idle < (psutil.cpu_count() or 1) + 1


def test_what_a_child_has_used_is_not_others() -> None:
    here = psutil.Process()
    before_s = own_s(here)
    program = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", program], check=True)
    assert own_s(here) - before_s > 0.15
