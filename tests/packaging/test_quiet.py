"""Tests that need a quiet machine are not measured where it is busy, and only there."""

import pytest
from quiet import why_busy

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
