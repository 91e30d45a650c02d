"""Our quantiles against those of scipy, and against what must hold of any."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from turngap.core.stats import (
    beta_binomial_share,
    beta_quantile,
    beta_share,
    normal_quantile,
    student_quantile,
)

SHARES = (1e-12, 1e-4, 0.025, 0.05, 0.2, 0.5, 0.8, 0.95, 0.999)


@pytest.mark.parametrize("share", SHARES)
def test_normal_quantiles_are_scipys(share: float) -> None:
    assert normal_quantile(share) == pytest.approx(float(stats.norm.ppf(share)), rel=1e-13)


def test_the_ends_of_the_normal_distribution_are_infinite() -> None:
    assert normal_quantile(0.0) == -math.inf
    assert normal_quantile(1.0) == math.inf


@pytest.mark.parametrize("df", [1, 2, 3, 9, 30, 500])
@pytest.mark.parametrize("share", [0.025, 0.2, 0.5, 0.500001, 0.8, 0.975, 0.9999])
def test_students_quantiles_are_scipys(share: float, df: int) -> None:
    theirs = float(stats.t.ppf(share, df))
    assert student_quantile(share, df) == pytest.approx(theirs, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 40), (3, 2), (17, 200), (2000, 3), (900, 1100)])
@pytest.mark.parametrize("share", SHARES)
def test_beta_quantiles_are_scipys(share: float, a: int, b: int) -> None:
    theirs = float(stats.beta.ppf(share, a, b))
    assert beta_quantile(share, a, b) == pytest.approx(theirs, rel=1e-10)


def test_the_ends_of_the_beta_distribution_are_0_and_1() -> None:
    assert [beta_quantile(share, 2, 3) for share in (0.0, 1.0)] == [0.0, 1.0]
    assert [beta_share(x, 2, 3) for x in (-1.0, 0.0, 1.0, 2.0)] == [0.0, 0.0, 1.0, 1.0]


@given(st.integers(1, 400), st.integers(0, 400))
def test_a_share_is_the_chance_of_so_many_hits(lost: int, won: int) -> None:
    n = lost + won
    exact = sum(math.comb(n, k) for k in range(lost, n + 1)) / 2**n
    assert beta_share(0.5, lost, won + 1) == pytest.approx(exact, rel=1e-10)


@given(st.floats(1e-9, 1 - 1e-9), st.floats(0.5, 1e4, exclude_min=True), st.floats(0.5, 1e4))
def test_a_quantile_gives_its_share_back(share: float, a: float, b: float) -> None:
    x = beta_quantile(share, a, b)
    below = beta_share(math.nextafter(x, 0), a, b), beta_share(x, a, b)
    # Where the distribution is steep, the next float is far in share.
    assert below[0] <= share * (1 + 1e-9)
    assert below[1] >= share * (1 - 1e-9)


@given(st.integers(0, 20), st.integers(1, 400), st.floats(0.5, 40), st.floats(0.5, 400))
def test_beta_binomial_shares_are_scipys(most: int, tries: int, a: float, b: float) -> None:
    expected = stats.betabinom.cdf(most, tries, a, b)
    assert beta_binomial_share(most, tries, a, b) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_no_tries_have_no_hits() -> None:
    assert beta_binomial_share(0, 0.0, 1.0, 1.0) == 1.0
    assert beta_binomial_share(-1, 5.0, 1.0, 1.0) == 0.0
