import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.chain import (
    RETRIES,
    Retry,
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


def test_a_task_of_one_turn_is_a_turn() -> None:
    assert success(0.7, 1) == 0.7
    for retry in RETRIES:
        assert expected_turns(0.5, 1, retry) == pytest.approx(2)


@pytest.mark.parametrize(
    ("retry", "turns"),
    [("turn", 3 / 0.5), ("task", 2 + 4 + 8), ("blind", 3 * 8)],
)
def test_three_turns_that_are_right_every_second_time(retry: Retry, turns: float) -> None:
    # "task" is the wait for three heads in a row.
    assert expected_turns(0.5, 3, retry) == pytest.approx(turns)


@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize(("right", "turns"), [(0.6, 4), (0.9, 10)])
def test_the_expectation_is_what_trials_come_to(retry: Retry, right: float, turns: int) -> None:
    random_ = random.Random(f"{retry}{right}")

    def trial() -> int:
        taken = done = 0
        spoiled = False
        while done < turns or spoiled:
            taken += 1
            ok = random_.random() < right
            if retry == "turn":
                done += ok
            elif retry == "task":
                done = done + 1 if ok else 0
            else:
                spoiled = spoiled or not ok
                done += 1
                if done == turns and spoiled:
                    done, spoiled = 0, False
        return taken

    n = 4000
    mean = sum(trial() for _ in range(n)) / n
    # The wait's standard deviation is about its mean at most: 5 standard errors of 4,000 are 8 %.
    assert mean == pytest.approx(expected_turns(right, turns, retry), rel=0.08)


def test_what_is_never_right_never_ends_and_what_is_always_right_takes_its_turns() -> None:
    for retry in RETRIES:
        assert expected_turns(0.0, 3, retry) == math.inf
        assert expected_turns(1.0, 7, retry) == 7
        assert expected_turns(1e-300, 1000, retry) > 1e300
    assert expected_ms(TurnFigures(0.0, 500), 3) == math.inf
    assert expected_usd(TurnFigures(0.0, 500, usd=0.0), 3) == 0


def test_time_and_price_go_with_the_turns() -> None:
    figures = TurnFigures(0.8, 400, usd=0.002)
    assert expected_ms(figures, 10) == pytest.approx(400 * 10 / 0.8**10)
    assert expected_usd(figures, 10, "turn") == pytest.approx(0.002 * 10 / 0.8)
    assert expected_usd(TurnFigures(0.8, 400), 10) is None


def test_the_one_that_is_more_often_right_overtakes_the_faster_one() -> None:
    # 500 / 0.6^n < ... the slower one wins where (0.9 / 0.6)^n > 1500 / 500, at n = 3.
    fast, right = TurnFigures(0.6, 500), TurnFigures(0.9, 1500)
    found = crossing(fast, right)
    assert found.turns == 3
    assert expected_ms(right, 2) > expected_ms(fast, 2)
    assert expected_ms(right, 3) < expected_ms(fast, 3)


def test_no_crossing_within_reach_is_said() -> None:
    fast, right = TurnFigures(0.89, 100), TurnFigures(0.90, 1000)
    assert crossing(fast, right).turns is None
    assert crossing(fast, right).longest == 20
    # 1.0112^n > 10 from 207 on.
    assert crossing(fast, right, longest=300).turns == 207
    # A turn that is retried at once never makes up for it.
    assert crossing(fast, right, retry="turn", longest=300).turns is None


def test_a_follower_that_leads_at_once_crosses_at_one() -> None:
    assert crossing(TurnFigures(0.5, 900), TurnFigures(0.9, 800)).turns == 1


def test_intervals_of_being_right_give_an_interval_of_the_crossing() -> None:
    fast = TurnFigures(0.6, 500, right_low=0.5, right_high=0.7)
    right = TurnFigures(0.9, 1500, right_low=0.85, right_high=0.95)
    found = crossing(fast, right)
    assert (found.earliest, found.turns, found.latest) == (2, 3, 6)


def test_crossing_by_price() -> None:
    cheap, dear = TurnFigures(0.6, 100, usd=1.0), TurnFigures(0.9, 100, usd=5.0)
    assert crossing(cheap, dear, expected_usd).turns == 4  # 1.5^4 = 5.06
    with pytest.raises(ValueError, match="not known"):
        crossing(cheap, TurnFigures(0.9, 100), expected_usd)


@given(st.floats(0.01, 1), st.floats(0.01, 1), st.integers(1, 40), st.sampled_from(RETRIES))
def test_longer_tasks_and_more_errors_never_take_fewer_turns(
    a: float, b: float, turns: int, retry: Retry
) -> None:
    worse, better = sorted((a, b))
    assert success(worse, turns) <= success(better, turns) * (1 + 1e-12)
    longer = expected_turns(better, turns + 1, retry)
    assert turns <= expected_turns(better, turns, retry) * (1 + 1e-9)
    assert expected_turns(better, turns, retry) <= longer * (1 + 1e-9)
    assert longer <= expected_turns(worse, turns + 1, retry) * (1 + 1e-9)


@given(st.floats(0.01, 1), st.integers(1, 40))
def test_noticing_an_error_sooner_never_takes_longer(right: float, turns: int) -> None:
    turn, task, blind = (expected_turns(right, turns, retry) for retry in RETRIES)
    assert turn <= task * (1 + 1e-6)
    assert task <= blind * (1 + 1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda: TurnFigures(1.1, 10),
        lambda: TurnFigures(0.5, -1),
        lambda: TurnFigures(0.5, 1, usd=math.inf),
        lambda: TurnFigures(0.5, 1, right_low=-0.1),
        lambda: success(0.5, 0),
        lambda: expected_turns(0.5, 0, "turn"),
        lambda: crossing(TurnFigures(0.5, 1), TurnFigures(0.5, 1), longest=0),
    ],
)
def test_what_cannot_be_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        make()  # type: ignore[operator]
