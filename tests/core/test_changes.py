"""Changes of level in a series, and what is known of their place and size."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turngap.core.changes import IN_PAIRS, LEAST, LEAST_BESIDE, SHARES, changes


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
    values = series()
    values[[2, 9, 15, 24]] += [60, 500, 90, 40]
    (found,) = changes(values.tolist())
    assert found.at == 17
    values[17:] -= 25
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


def test_a_value_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="finite"):
        changes([1.0, float("nan")])


@settings(max_examples=15, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=20), st.integers(0, 3))
def test_what_is_found_lies_inside_the_series_and_is_the_same_again(values, seed):
    found = changes(values, alpha=0.2, seed=seed)
    assert found == changes(values, alpha=0.2, seed=seed)
    bounds = [0, *(change.at for change in found), len(values)]
    assert not found or min(np.diff(bounds)) >= LEAST_BESIDE
    for change in found:
        assert 0 < change.first <= change.at <= change.last < len(values)


def missed(seed: int, chance_before: float, chance_after: float) -> list[float]:
    """The share of twelve turns that each of 30 runs missed."""
    rng = np.random.default_rng(seed)
    chances = np.where(np.arange(30) < 17, chance_before, chance_after)
    return (rng.binomial(12, chances) / 12).tolist()


def test_a_change_of_a_share_that_is_mostly_none_is_found():
    near = held = 0
    for seed in range(8):
        for change in changes(missed(seed, 0.0, 0.25), SHARES, alpha=0.005):
            near += abs(change.at - 17) <= 1
            assert change.low is not None and change.high is not None
            assert change.low < change.difference < change.high
            held += change.first <= 17 <= change.last and change.low < 0.25 < change.high
    assert near >= 7
    assert held >= 6


def test_a_share_that_stays_has_no_change_even_beside_one_bad_run():
    for seed in range(8):
        values = missed(seed, 0.04, 0.04)
        values[20] = 1.0
        assert changes(values, SHARES, alpha=0.005) == []
