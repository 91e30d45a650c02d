"""The meter: no more than its rate in the long run, a burst at once."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.agent.access import Seats
from turngap.agent.limits import HangUpError, Limits, Meter
from turngap.core.clock import NS_PER_S

STEPS = st.lists(st.tuples(st.integers(0, 3 * NS_PER_S), st.floats(0.01, 40)), max_size=60)


@given(steps=STEPS)
def test_never_more_than_rate_and_burst_allow(steps: list[tuple[int, float]]) -> None:
    meter, now_ns, taken = Meter(20, 2, 0), 0, 0.0
    for wait_ns, amount in steps:
        now_ns += wait_ns
        if meter.take(amount, now_ns):
            taken += amount
        assert taken <= 40 + 20 * now_ns / NS_PER_S + 1e-6


@given(steps=STEPS)
def test_whoever_keeps_to_the_rate_is_never_refused(steps: list[tuple[int, float]]) -> None:
    meter, now_ns = Meter(20, 2, 0), 0
    for wait_ns, amount in steps:
        # A nanosecond more: what a rate gives is a fraction of one.
        now_ns += max(wait_ns, math.ceil(amount / 20 * NS_PER_S) + 1)
        assert meter.take(amount, now_ns)


def test_a_clock_that_stands_still_gives_nothing() -> None:
    meter = Meter(10, 1, 0)
    assert [meter.take(5, 0) for _ in range(3)] == [True, True, False]


def test_an_ordinary_page_stays_far_below_its_limits() -> None:
    limits = Limits()
    packet_bytes, packets_per_s = 700, 50
    assert limits.message_bytes > 10 * packet_bytes
    assert limits.messages_per_s > 2 * packets_per_s
    assert limits.audio_rate > 1
    assert limits.vanished_s > 2 * 5


def test_a_seat_is_free_at_once_and_few_pipelines_may_still_come_down() -> None:
    seats = Seats(1)
    with seats.seat() as leave:
        with (
            pytest.raises(HangUpError, match="full: 1 of 1 conversations; try again"),
            seats.seat(),
        ):
            pass
        leave()
        with seats.seat() as leave_too:
            assert (seats.taken, seats.coming_down) == (1, 1)
            leave_too()
            full = "full: 0 of 1 conversations, and 2 still ending"
            with pytest.raises(HangUpError, match=full), seats.seat():
                pass
    assert (seats.taken, seats.coming_down) == (0, 0)
