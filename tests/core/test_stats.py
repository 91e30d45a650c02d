import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.stats import n_needed, percentile, proportion, proportion_of_takes

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
def test_wilsons_interval(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))
    p = proportion(hits, n)
    share, z = hits / n, 1.959963984540054
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    assert (p.hits, p.n, p.value) == (hits, n, share)
    assert p.low == pytest.approx(max(0.0, centre - half), abs=1e-9)
    assert p.high == pytest.approx(min(1.0, centre + half), abs=1e-9)


def test_all_of_a_few_is_not_certainty() -> None:
    p = proportion(8, 8)
    assert p.low is not None
    assert p.low < 0.7
    assert p.high == 1.0


def test_a_share_of_nothing_is_none() -> None:
    p = proportion(0, 0)
    assert (p.value, p.low, p.high) == (None, None, None)


# --- shares of things that were tried several times -------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 9))
def test_who_does_alike_in_every_round_has_told_no_more_than_in_one(
    outcomes: list[bool], rounds: int
) -> None:
    once = proportion(sum(outcomes), len(outcomes))
    again = proportion_of_takes([[outcome] * rounds for outcome in outcomes])
    assert (again.hits, again.n) == (once.hits * rounds, once.n * rounds)
    assert again.low == pytest.approx(once.low)
    assert again.high == pytest.approx(once.high)


@given(st.lists(st.lists(st.booleans(), max_size=6), max_size=12))
def test_takes_count_for_themselves_at_most_and_for_their_things_at_least(
    takes: list[list[bool]],
) -> None:
    found = proportion_of_takes(takes)
    every = [outcome for take in takes for outcome in take]
    tightest = proportion(sum(every), len(every))
    assert (found.hits, found.n, found.value) == (tightest.hits, tightest.n, tightest.value)
    if found.low is not None and found.high is not None:
        assert tightest.low is not None
        assert tightest.high is not None
        assert found.low <= tightest.low + 1e-12
        assert found.high >= tightest.high - 1e-12


def test_the_interval_holds_the_truth_where_turns_differ_and_rounds_repeat_them() -> None:
    rng = np.random.default_rng(7)
    held = naive = 0
    trials = 600
    for _ in range(trials):
        chances = rng.beta(0.6, 0.4, 20)  # most turns are nearly always right, or nearly never
        takes = [list(rng.random(5) < chance) for chance in chances]
        found = proportion_of_takes(takes)
        as_if = proportion(found.hits, found.n)
        assert None not in (found.low, found.high, as_if.low, as_if.high)
        held += (found.low or 0) <= 0.6 <= (found.high or 0)
        naive += (as_if.low or 0) <= 0.6 <= (as_if.high or 0)
    # 95 % less three standard errors of 600 trials; as if all takes were turns, a third misses.
    assert held / trials > 0.92
    assert naive / trials < 0.85


def test_a_value_below_all_others_has_its_place_in_the_order() -> None:
    assert percentile([1, 2, 3, 4], 0.5, below=1).value == 2
    assert percentile([1, 2, 3], 0.5, censored=1, below=1).value == 2
    assert percentile([1], 0.5, below=5).value is None
