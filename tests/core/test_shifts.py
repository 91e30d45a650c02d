"""By how much one sample is higher than another, and its interval."""

import numpy as np
import pytest
from scipy.stats import mannwhitneyu, ttest_ind

from turngap.core.shifts import shift_between, shift_of_means


@pytest.mark.parametrize(("m", "n"), [(4, 4), (5, 9), (17, 13), (50, 50), (60, 45)])
def test_the_interval_ends_where_the_test_begins_to_reject(m, n):
    rng = np.random.default_rng(m * n)
    before, after = rng.normal(0, 1, m), rng.normal(1, 1, n)
    middle, low, high, _ = shift_between(before, after)
    assert low is not None and high is not None
    assert low < middle < high

    def p_value(shift: float) -> float:
        method = "exact" if m * n <= 2500 else "asymptotic"
        return float(mannwhitneyu(after - shift, before, method=method).pvalue)

    for end, outwards in ((low, -1e-9), (high, 1e-9)):
        assert p_value(end + outwards) <= 0.052
        assert p_value(end - outwards) > 0.046


def test_of_too_few_values_there_is_no_interval():
    before, after = np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, 7.0])
    assert shift_between(before, after) == (4.0, None, None, "too few runs")


def test_the_interval_of_means_is_that_of_welch():
    rng = np.random.default_rng(4)
    before, after = rng.normal(0, 1, 17), rng.normal(1, 3, 9)
    middle, low, high, _ = shift_of_means(before, after)
    interval = ttest_ind(after, before, equal_var=False).confidence_interval()
    assert middle == pytest.approx(after.mean() - before.mean())
    assert (low, high) == pytest.approx((interval.low, interval.high))


@pytest.mark.parametrize("hits", range(12))
def test_means_of_values_that_do_not_vary_have_no_interval_and_say_why(hits):
    missed = np.full(15, 1 - hits / 12)
    middle, low, high, why = shift_of_means(np.zeros(17), missed)
    assert middle == pytest.approx(1 - hits / 12)
    assert (low, high, why) == (None, None, "the runs on each side are all alike")
    missed[0] += 1 / 12
    _, low, high, why = shift_of_means(np.zeros(17), missed)
    assert low is not None and high is not None
    assert low < missed.mean() < high
    assert why is None


def test_one_run_on_a_side_has_no_interval():
    assert shift_of_means(np.zeros(1), np.ones(5)) == (1.0, None, None, "too few runs")
