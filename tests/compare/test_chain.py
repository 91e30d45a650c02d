import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.compare.side_by_side import (
    LogRatio,
    TurnFigures,
    crossing,
    expected_ms,
    expected_turns,
    expected_usd,
    success,
)


@pytest.mark.parametrize(("right", "percent"), [(0.8, 10.7), (0.9, 34.9), (1.0, 100.0), (0.0, 0)])
def test_ten_turns_in_a_row(right: float, percent: float) -> None:
    assert round(100 * success(right, 10), 1) == percent


def test_a_task_takes_its_turns_divided_by_the_chance_that_all_are_right() -> None:
    assert expected_turns(0.5, 1) == pytest.approx(2)
    assert expected_turns(0.5, 3) == pytest.approx(3 * 8)


def test_what_is_never_right_never_ends_and_what_is_always_right_takes_its_turns() -> None:
    assert expected_turns(0.0, 3) == math.inf
    assert expected_turns(1.0, 7) == 7
    assert expected_turns(1e-300, 1000) > 1e300
    assert expected_ms(TurnFigures(0.0, 500), 3) == math.inf
    # What is never done has no price, however little a turn costs.
    assert expected_usd(TurnFigures(0.0, 500, usd=0.0), 3) == math.inf
    assert expected_usd(TurnFigures(0.5, 500, usd=0.0), 3) == 0


def test_time_and_price_go_with_the_turns() -> None:
    figures = TurnFigures(0.8, 400, usd=0.002)
    assert expected_ms(figures, 10) == pytest.approx(400 * 10 / 0.8**10)
    assert expected_usd(figures, 10) == pytest.approx(0.002 * 10 / 0.8**10)
    assert expected_usd(TurnFigures(0.8, 400), 10) is None


def ratio(value: float, low: float | None = None, high: float | None = None) -> LogRatio:
    """Return a ratio with its interval; known exactly without one."""
    logs = (math.log(v) if v else -math.inf for v in (value, low or value, high or value))
    return LogRatio(*logs)


def test_the_one_that_is_more_often_right_overtakes_the_faster_one() -> None:
    # 500 / 0.6^n < ... the slower one wins where (0.9 / 0.6)^n > 1500 / 500, at n = 3.
    fast, right = TurnFigures(0.6, 500), TurnFigures(0.9, 1500)
    assert crossing(ratio(1.5), ratio(3)).turns == 3
    assert expected_ms(right, 2) > expected_ms(fast, 2)
    assert expected_ms(right, 3) < expected_ms(fast, 3)


@given(st.floats(0.05, 1), st.floats(0.05, 1), st.floats(1, 50))
def test_it_overtakes_where_the_expectations_cross(p: float, q: float, dearer: float) -> None:
    leader, follower = TurnFigures(p, 100), TurnFigures(q, 100 * dearer)
    costs = [(expected_ms(leader, n), expected_ms(follower, n)) for n in range(1, 21)]
    # Not where the two are equal but for the last digit.
    sure = [n for n, (one, other) in enumerate(costs, 1) if other < one * (1 - 1e-9)]
    maybe = [n for n, (one, other) in enumerate(costs, 1) if other < one * (1 + 1e-9)]
    found = crossing(ratio(q / p), ratio(dearer))
    assert found.turns in {min(sure, default=None), min(maybe, default=None)}
    assert (found.earliest, found.latest) == (found.turns, found.turns)


def test_no_crossing_within_reach_is_said() -> None:
    found = crossing(ratio(0.90 / 0.89), ratio(10))
    assert (found.turns, found.longest) == (None, 20)
    # 1.0112^n > 10 from 207 on.
    assert crossing(ratio(0.90 / 0.89), ratio(10), longest=300).turns == 207


def test_a_follower_that_leads_at_once_crosses_at_one() -> None:
    assert crossing(ratio(1.8), ratio(1)).turns == 1


def test_who_is_never_right_is_overtaken_even_if_it_is_free() -> None:
    never, free = LogRatio(math.inf, math.log(2), math.inf), LogRatio(*[math.inf] * 3)
    found = crossing(never, free)
    # By its interval it may be right now and then, and then nobody is cheaper.
    assert (found.turns, found.earliest, found.latest) == (1, 1, None)
    assert crossing(ratio(5, 2, 9), free).turns is None


def test_intervals_of_both_ratios_give_an_interval_of_the_crossing() -> None:
    exact = crossing(ratio(1.5), ratio(3))
    assert (exact.earliest, exact.turns, exact.latest) == (3, 3, 3)
    right = crossing(ratio(1.5, 1.25, 1.8), ratio(3))
    assert (right.earliest, right.turns, right.latest) == (2, 3, 5)
    both = crossing(ratio(1.5, 1.25, 1.8), ratio(3, 1.5, 6))
    assert (both.earliest, both.turns, both.latest) == (1, 3, 6)
    # As likely worse as better: nothing says that it ever overtakes.
    assert crossing(ratio(1.5, 0.9, 2.2), ratio(3)).latest is None
    assert crossing(ratio(0.9, 0.5, 1.4), ratio(3)).turns is None
    assert crossing(ratio(0.9, 0.5, 1.4), ratio(3)).earliest == 4


def test_of_an_unknown_price_everything_is_possible() -> None:
    unknown = LogRatio(math.log(3), -math.inf, math.inf)
    found = crossing(ratio(1.5), unknown)
    assert (found.earliest, found.turns, found.latest) == (1, 3, None)


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.integers(1, 40))
def test_longer_tasks_and_more_errors_never_take_fewer_turns(
    a: float, b: float, turns: int
) -> None:
    worse, better = sorted((a, b))
    assert success(worse, turns) <= success(better, turns) * (1 + 1e-12)
    longer = expected_turns(better, turns + 1)
    assert turns <= expected_turns(better, turns) * (1 + 1e-9)
    assert expected_turns(better, turns) <= longer * (1 + 1e-9)
    assert longer <= expected_turns(worse, turns + 1) * (1 + 1e-9)
