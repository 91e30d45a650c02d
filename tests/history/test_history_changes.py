"""The levels of runs, and changes of level in a series."""

import made_runs as made
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngap.core.paired import CENSORED_MS
from turngap.history.trend import (
    IN_PAIRS,
    LEAST,
    LEAST_BESIDE,
    RunLevel,
    changes,
    run_levels,
)


def series(seed: int = 1, n: int = 30, at: int | None = 17, size: float = 25.0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(300, 5, n)
    if at is not None:
        values[at:] += size
    return values


@pytest.mark.parametrize("size", [25.0, -25.0])
def test_a_change_is_found_where_it_is_with_its_size(size):
    (found,) = changes(series(size=size).tolist())
    assert found.at == 17
    assert found.p_value <= 0.01
    assert found.first <= 17 <= found.last
    assert found.low is not None and found.high is not None
    assert found.low < size < found.high
    assert found.low < found.difference < found.high
    assert found.after - found.before == pytest.approx(size, abs=5)


def test_several_changes_are_told_in_their_order():
    values = series(n=40, at=12)
    values[27:] -= 40
    assert [found.at for found in changes(values.tolist())] == [12, 27]


@pytest.mark.parametrize(("noise", "each"), [(0.0, 6), (5.0, 8)])
def test_a_second_larger_change_is_found_behind_the_first(noise, each):
    levels = [300.0] * 22 + [325.0] * each + [425.0] * each
    values = np.random.default_rng(2).normal(0, noise, len(levels)) + levels
    found = changes(values.tolist())
    assert [change.at for change in found] == [22, 22 + each]
    assert [change.difference for change in found] == pytest.approx([25, 100], abs=8)
    assert [change.after for change in found] == pytest.approx([325, 425], abs=8)


def test_slow_runs_here_and_there_are_no_change_and_do_not_move_one():
    values = series(size=40.0)
    values[[2, 9, 24]] += [60, 500, 40]
    (found,) = changes(values.tolist())
    assert found.at == 17
    values[17:] -= 40
    assert changes(values.tolist()) == []


@pytest.mark.parametrize(
    ("n", "after"), [*((n, 6) for n in range(LEAST, IN_PAIRS)), (IN_PAIRS, 10), (IN_PAIRS + 1, 10)]
)
def test_a_large_change_is_found_in_a_series_of_any_length(n, after):
    found = [
        [change.at for change in changes(series(seed, n, n - after, 100.0).tolist())]
        for seed in range(5)
    ]
    assert sum(places == [n - after] for places in found) >= 4


def test_values_that_are_set_aside_move_no_change_and_the_middle_of_a_hole_is_named():
    values = series()
    values[[15, 16]] += 30
    assert [found.at for found in changes(values.tolist())] == [15]
    (found,) = changes(values.tolist(), aside=[15, 16])
    assert found.at == 16
    assert found.first == 15
    assert found.last >= 17
    (found,) = changes(values.tolist(), aside=[2, 17, 18, 29])
    assert (found.at, found.first <= 15, found.last >= 17) == (15, True, True)


def test_a_change_without_the_values_set_aside_is_the_same_one():
    values = series(n=34)
    kept = [place for place in range(34) if place not in (3, 8, 25)]
    (whole,) = changes(values.tolist(), aside=[3, 8, 25])
    (alone,) = changes(values[kept].tolist())
    assert (whole.p_value, whole.before, whole.after) == (
        alone.p_value,
        alone.before,
        alone.after,
    )
    assert whole.at == kept[alone.at] == 17


def test_a_series_without_a_change_seldom_has_one():
    named = sum(bool(changes(series(seed, at=None).tolist())) for seed in range(60))
    assert named <= 3


@pytest.mark.parametrize("values", [[], [1.0], [5.0] * 30, [1.0, 9.0] * 3, [1.0] * 29 + [9.0]])
def test_a_series_too_short_or_of_one_level_has_none(values):
    assert changes(values) == []


def test_a_step_without_noise_is_exact():
    (found,) = changes([1.0] * 15 + [2.0] * 15)
    assert (found.at, found.first, found.last, found.difference) == (15, 15, 15, 1.0)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=20))
def test_what_is_found_lies_inside_the_series_and_is_the_same_again(values):
    found = changes(values)
    assert found == changes(values)
    bounds = [0, *(change.at for change in found), len(values)]
    assert not found or min(np.diff(bounds)) >= LEAST_BESIDE
    for change in found:
        assert 0 < change.first <= change.at <= change.last < len(values)


def test_a_level_has_less_noise_than_a_median():
    rng = np.random.default_rng(3)
    typical = rng.uniform(200, 600, 12)
    gaps = typical + rng.normal(0, 10, (30, 12))
    levels = [level.ms for level in run_levels([dict(enumerate(row)) for row in gaps])]
    assert np.std(np.array(levels, float)) < 0.6 * np.std(np.median(gaps, axis=1))
    assert np.mean(np.array(levels, float)) == pytest.approx(np.median(typical), abs=3)


def test_what_a_run_adds_to_all_turns_is_its_level_whatever_turns_it_lacks():
    typical = {turn: 200.0 + 50 * turn for turn in range(10)}
    runs = [dict(typical) for _ in range(5)]
    runs[3] = {turn: gap + 40 for turn, gap in typical.items()}
    del runs[3][0], runs[3][1], runs[3][2]
    levels = [level.ms for level in run_levels(runs)]
    assert levels == pytest.approx([425, 425, 425, 465, 425], abs=0.1)


def test_one_turn_without_a_reply_does_not_make_a_run_slow():
    runs = [dict.fromkeys(range(12), 300.0) for _ in range(6)]
    runs[2][4] = 10_000.0
    levels = [level.ms for level in run_levels(runs)]
    assert levels[2] == pytest.approx(300, abs=4)
    assert levels[0] == pytest.approx(300, abs=0.1)


def test_a_run_that_shares_too_few_turns_has_no_level():
    runs = [dict.fromkeys(range(8), 300.0) for _ in range(4)]
    runs.append(dict.fromkeys(range(4, 20), 300.0))
    runs.append({99: 1.0})
    levels = run_levels(runs)
    assert levels[4] == levels[5] == RunLevel(None)
    assert levels[0].ms == pytest.approx(300, abs=0.1)
    assert run_levels([]) == []
    assert run_levels([{}, {}]) == [RunLevel(None)] * 2


TYPICAL = np.linspace(200, 600, 12)


def uneven(gaps: np.ndarray) -> list[int]:
    levels = run_levels([dict(enumerate(row)) for row in gaps])
    return [place for place, level in enumerate(levels) if level.uneven]


def quiet(rng: np.random.Generator, runs: int = 24) -> np.ndarray:
    return TYPICAL + rng.normal(0, 5, (runs, 1)) + rng.normal(0, 6, (runs, 12))


def slowed_by_a_machine(rng: np.random.Generator, runs: int) -> np.ndarray:
    """Add a busy machine's noise: a different amount for each turn of each run."""
    return rng.exponential(60, (runs, 12))


def test_a_run_that_a_busy_machine_slowed_is_uneven_at_either_end_too():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gaps = quiet(rng)
        assert uneven(gaps) == []
        gaps[[0, 9, 10, 23]] += slowed_by_a_machine(rng, 4)
        assert uneven(gaps) == [0, 9, 10, 23]


def test_an_agent_that_is_slower_in_all_or_in_some_turns_from_a_run_on_is_not_uneven():
    for seed in range(20):
        gaps = quiet(np.random.default_rng(seed))
        gaps[14:] += 40
        assert uneven(gaps) == []
        gaps[14:, ::2] += 60
        assert uneven(gaps) == []


def test_where_most_runs_are_uneven_none_is():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gaps = quiet(rng)
        gaps[10:] += slowed_by_a_machine(rng, 14)
        assert set(uneven(gaps)) <= {10}


def test_gaps_that_are_the_same_but_for_a_little_are_even():
    gaps = np.tile(TYPICAL, (10, 1))
    gaps[3, :6] += 4
    assert uneven(gaps) == []
    gaps[3, :6] += 30
    assert uneven(gaps) == [3]


def test_turns_that_only_one_of_the_runs_around_took_tell_nothing_of_it():
    runs = [dict.fromkeys(range(6), 300.0) for _ in range(20)]
    for run in runs[10:]:
        run.update(dict.fromkeys(range(6, 12), 500.0))
    runs[0].update(dict.fromkeys(range(6, 12), 900.0))
    assert [level.uneven for level in run_levels(runs)] == [False] * 20


def test_replies_that_were_lost_do_not_make_a_run_uneven():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        gaps = quiet(rng)
        gaps[9, rng.choice(12, 3, replace=False)] = CENSORED_MS
        assert uneven(gaps) == []


def test_one_turn_in_common_says_nothing_of_a_run():
    runs = [dict.fromkeys(range(14), 300.0) for _ in range(20)]
    for run in runs[6:10] + runs[11:15]:
        for turn in range(5):
            del run[turn]
    runs[10] = {turn: 300.0 + 90 * (turn % 2) for turn in range(6)}
    levels = run_levels(runs)
    assert not levels[10].uneven
    runs[6:15] = [dict.fromkeys(range(6), 300.0) for _ in range(4)] + [runs[10]] + runs[11:15]
    assert run_levels(runs)[10].uneven


def named(seed: int, change_ms: float) -> list[int]:
    """Return the runs at which 30 made-up runs are said to change, counted from 1."""
    gaps = made.gaps_of(seed, 30, change_ms, at=18)
    levels = run_levels([dict(enumerate(row)) for row in gaps.tolist()])
    aside = [place for place, level in enumerate(levels) if level.uneven]
    return [change.at + 1 for change in changes([level.ms or 0.0 for level in levels], aside)]


def test_25_ms_are_named_where_they_came_and_hardly_ever_where_they_did_not():
    seeds = range(3000, 3020)
    assert sum(any(abs(n - 18) <= 1 for n in named(seed, 25.0)) for seed in seeds) >= 19
    assert sum(bool(named(seed + 500_000, 0.0)) for seed in seeds) <= 1
