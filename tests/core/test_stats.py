import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from turngap.core.stats import (
    at_most,
    n_needed,
    n_without_a_miss,
    net_share,
    percentile,
    proportion,
)

GAPS = st.floats(-5_000, 60_000)


# --- percentiles ------------------------------------------------------------------------------


@given(st.lists(GAPS, min_size=100, max_size=150), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_percentile_is_numpys(values: list[float], q: float) -> None:
    # NumPy interpolates from whichever end is nearer, which differs in the last bits.
    assert percentile(values, q).value == pytest.approx(float(np.quantile(values, q)), abs=1e-6)


@given(
    st.lists(GAPS, min_size=5, max_size=120),
    st.integers(0, 40),
    st.sampled_from([0.5, 0.9, 0.95]),
)
def test_missing_replies_count_as_slower_than_every_measured_one(
    values: list[float], censored: int, q: float
) -> None:
    p = percentile(values, q, censored=censored)
    n = len(values) + censored
    if n < n_needed(q):
        assert p.value is None
        return
    # An hour stands in for "never": where it leaves no trace in NumPy's figure, ours is that one.
    never = 3.6e6
    by_numpy = float(np.quantile([*values, *([never] * censored)], q))
    touched = math.ceil(q * (n - 1) - 1e-9) >= len(values)
    if touched:
        assert p.value is None
        assert p.high is None
        assert p.why_none == f"{censored} of {n} turns have no reply"
    else:
        assert p.value == pytest.approx(by_numpy, abs=1e-6)


@given(st.lists(GAPS, min_size=20, max_size=60), st.integers(0, 5))
def test_neither_order_nor_more_failures_can_improve_a_percentile(
    values: list[float], censored: int
) -> None:
    p = percentile(values, 0.5, censored=censored)
    assert percentile(sorted(values, reverse=True), 0.5, censored=censored) == p
    worse = percentile(values, 0.5, censored=censored + 1)
    assert p.value is not None
    assert worse.value is None or worse.value >= p.value


@given(st.lists(GAPS, max_size=60), st.integers(0, 30), st.sampled_from([0.5, 0.9, 0.95]))
def test_the_interval_holds_the_value_and_lies_among_the_measured(
    values: list[float], censored: int, q: float
) -> None:
    p = percentile(values, q, censored=censored)
    assert (p.value is None) == (p.why_none is not None)
    for bound in (p.low, p.high):
        assert bound is None or bound in values
    if p.value is not None:
        assert p.low is None or p.low <= p.value
        assert p.high is None or p.high >= p.value


@pytest.mark.parametrize(
    ("q", "n"), [(0.5, 5), (0.8, 5), (0.9, 10), (0.95, 20), (0.99, 100), (0.05, 20)]
)
def test_a_percentile_needs_a_value_expected_beyond_it(q: float, n: int) -> None:
    assert n_needed(q) == n
    too_few = percentile([1.0] * (n - 1), q)
    assert (too_few.value, too_few.low, too_few.high) == (None, None, None)
    assert too_few.why_none == f"n={n - 1}, needs {n}"
    assert percentile([1.0] * n, q).value == 1.0


def test_no_values_at_all() -> None:
    assert percentile([], 0.5).why_none == "n=0, needs 5"
    assert percentile([], 0.5, censored=7).why_none == "7 of 7 turns have no reply"


@pytest.mark.parametrize(
    ("q", "n", "ranks"),
    # By hand from the binomial: ranks (2, 9) of 10 hold the median with 97.9 %, (3, 9) with 93.4 %.
    [(0.5, 10, (2, 9)), (0.5, 20, (6, 15)), (0.9, 100, (84, 96)), (0.1, 100, (5, 17))],
)
def test_the_interval_is_of_order_statistics(q: float, n: int, ranks: tuple[int, int]) -> None:
    p = percentile([float(rank) for rank in range(1, n + 1)], q)
    assert (p.low, p.high) == ranks


def test_an_interval_too_wide_for_n_is_left_open() -> None:
    p = percentile([float(i) for i in range(20)], 0.95)
    assert p.value == pytest.approx(18.05)
    assert p.low is not None
    assert p.high is None  # 0.95**20 = 36 % of samples of 20 lie wholly below the true value


@pytest.mark.parametrize(("q", "n"), [(0.5, 10), (0.5, 32), (0.9, 60), (0.95, 150)])
def test_the_interval_covers_the_truth_95_times_in_100(q: float, n: int) -> None:
    # Log-normal, as response times are; the interval assumes no shape.
    rng = np.random.default_rng(20261120)
    truth = float(np.quantile(rng.lognormal(6, 0.5, 2_000_000), q))
    runs = rng.lognormal(6, 0.5, (2_000, n))
    hits = 0
    for run in runs.tolist():
        p = percentile(run, q)
        hits += (p.low is None or p.low <= truth) and (p.high is None or truth <= p.high)
    # Conservative by construction: never below 95 %, give or take 3 standard errors of 2,000 runs,
    # and not so wide that it says nothing.
    assert 0.95 - 3 * math.sqrt(0.95 * 0.05 / 2_000) <= hits / 2_000 <= 0.995


# --- proportions ------------------------------------------------------------------------------


@given(st.integers(1, 10_000), st.data())
def test_the_interval_is_clopper_and_pearsons(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    p, exact = proportion(hits, n), binomtest(hits, n).proportion_ci(method="exact")
    assert (p.hits, p.n, p.value) == (hits, n, hits / n)
    assert p.low == pytest.approx(exact.low, abs=1e-9)
    assert p.high == pytest.approx(exact.high, abs=1e-9)


@pytest.mark.parametrize(("share", "n"), [(0.9, 36), (0.95, 72), (0.99, 368)])
def test_so_many_hits_without_a_miss_show_a_share(share: float, n: int) -> None:
    assert n_without_a_miss(share) == n
    lows = [proportion(hits, hits).low or 0.0 for hits in (n - 1, n)]
    assert lows[0] < share <= lows[1]


def test_all_of_a_few_is_not_certainty() -> None:
    p = proportion(8, 8)
    assert p.low is not None
    assert p.low < 0.7
    assert p.high == 1.0


def test_a_share_of_nothing_is_none() -> None:
    p = proportion(0, 0)
    assert (p.value, p.low, p.high) == (None, None, None)


# --- what was gained, less what was lost -------------------------------------------------------


def test_no_further_loss_ever_raises_a_bound() -> None:
    for n in range(3, 31):
        bounds = {(a, b): net_share(a, b, n) for a in range(n + 1) for b in range(n + 1 - a)}
        for (gained, lost), (low, high) in bounds.items():
            assert low - 1e-12 <= (gained - lost) / n <= high + 1e-12
            for better in ((gained + 1, lost), (gained, lost - 1), (gained + 1, lost - 1)):
                if better in bounds:
                    assert low <= bounds[better][0] + 1e-9
                    assert high <= bounds[better][1] + 1e-9


def test_nothing_gained_and_nothing_lost_bounds_each_as_clopper_and_pearson_do() -> None:
    assert net_share(0, 0, 36) == pytest.approx((-at_most(0, 36), at_most(0, 36)))
    assert at_most(0, 36) < 0.1 < at_most(0, 35)


@pytest.mark.parametrize(("gained", "lost"), [(0.0, 0.1), (0.1, 0.1), (0.3, 0.3), (0.4, 0.1)])
def test_the_difference_is_held_whatever_was_gained_and_lost(gained: float, lost: float) -> None:
    rng, n, trials = np.random.default_rng(5), 20, 1000
    drawn = rng.multinomial(n, [gained, lost, 1 - gained - lost], trials)
    ends = [net_share(int(a), int(b), n) for a, b, _ in drawn]
    held = sum(low <= gained - lost <= high for low, high in ends) / trials
    assert held >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / trials)


def test_a_value_below_all_others_has_its_place_in_the_order() -> None:
    assert percentile([1, 2, 3, 4], 0.5, below=1).value == 2
    assert percentile([1, 2, 3], 0.5, censored=1, below=1).value == 2
    assert percentile([1], 0.5, below=5).value is None
