"""Searches against an agent of known capacity in virtual time, and what a closed loop makes of it.

The schedule, the dialling, the counting, the figures and the search are those of `turngap load`.
"""

from functools import cache

import pytest
from capacity_agent import Limit, Trial, held_closed_loop, held_open_loop, on_time, searched

from turngap.load.search import Probe

CAPACITY = 12


@cache
def trials() -> list[Trial]:
    return [searched(CAPACITY, seed) for seed in range(1, 21)]


def test_an_agent_that_slows_down_from_session_13_on_is_found_to_hold_12() -> None:
    found = [trial.sessions for trial in trials()]
    assert found.count(CAPACITY) >= 19
    assert max(found) < CAPACITY + 2


def test_every_certificate_says_what_it_rests_on() -> None:
    for trial in trials():
        certificate = trial.search.certificate()
        assert certificate.turns >= 90
        assert certificate.low is not None
        assert certificate.low >= 0.95
        assert certificate.not_held == trial.sessions + 1


@pytest.mark.parametrize("limit", ["refuses", "queues"])
def test_callers_in_a_closed_loop_would_say_that_any_load_is_held(limit: Limit) -> None:
    open_loop = held_open_loop(CAPACITY, limit, Probe(24, 240, confirms=False), 1).hit_rate.value
    closed_loop = on_time(held_closed_loop(CAPACITY, limit, 24, 240.0, seed=1))
    assert open_loop is not None
    assert open_loop < 0.6
    assert closed_loop > 0.95


@pytest.mark.parametrize("limit", ["refuses", "queues"])
def test_the_search_is_not_deceived_by_an_agent_that_keeps_callers_out(limit: Limit) -> None:
    found = [searched(CAPACITY, seed, limit).sessions for seed in range(1, 6)]
    assert found.count(CAPACITY) >= 4
    assert max(found) < CAPACITY + 2


def test_a_closed_loop_asks_slow_sessions_less_and_says_13_where_12_hold() -> None:
    """Sessions from the 13th on are slow: who waits for them counts few of their turns."""
    ours = [searched(CAPACITY, seed, "slows_beyond").sessions for seed in range(1, 5)]
    theirs = max(
        level
        for level in range(10, 17)
        if on_time(held_closed_loop(CAPACITY, "slows_beyond", level, 600.0, seed=1)) >= 0.95
    )
    assert max(ours) == CAPACITY
    assert theirs > CAPACITY
