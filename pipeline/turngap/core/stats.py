"""Statistics with their uncertainty.

A turn that never got its reply has no gap, but it was not quick either. It counts as slower than
every measured one (right-censored), so failing turns cannot improve a percentile.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from math import inf, isfinite
from statistics import NormalDist

import numpy as np

from turngap.core.clusters import NO_INTERVAL, Clusters, Take

CONFIDENCE = 0.95
# Each end of an interval is wrong in at most this share.
MISSED = (1 - CONFIDENCE) / 2


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile with its interval; `value` is None with the reason in `why_none`.

    `low` and `high` bound it with 95 % confidence from order statistics alone (no shape assumed).
    Either is None if n is too small to bound that side or the bound lies among the censored.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    why_none: str | None = None

    @property
    def why_no_interval(self) -> str | None:
        """Say why an end of the interval is None; None if both ends have a value."""
        if self.low is not None and self.high is not None:
            return None
        return self.why_none or "too few independent turns, or turns without a reply"

    def __str__(self) -> str:
        if self.value is None:
            return f"none ({self.why_none})"
        if self.low is None and self.high is None:
            return f"{self.value:.0f} (too few turns for an interval)"
        ends = [
            f"{word} {end:.0f}"
            for word, end in (("from", self.low), ("to", self.high))
            if end is not None
        ]
        return f"{self.value:.0f} (95 % interval {' '.join(ends)})"


@dataclass(frozen=True, slots=True)
class Proportion:
    """`hits` of `n`, with Clopper and Pearson's 95 % interval; `value` is None when n is 0.

    `low` and `high` are also None if the takes are of too few recorded turns (`NO_INTERVAL`).
    `recorded` is the number of recorded turns that the `n` are takes of; None if not known.
    """

    hits: int
    n: int
    value: float | None
    low: float | None
    high: float | None
    recorded: int | None = None

    @property
    def why_no_interval(self) -> str | None:
        """Say why there is no interval; None if there is one."""
        if self.value is None:
            return "no turns"
        return NO_INTERVAL if self.low is None else None

    def reaches(self, target: float) -> bool | None:
        """Return whether the share is at least `target`; None if the interval does not decide."""
        if self.low is None or self.high is None:
            return None
        return True if self.low >= target else False if self.high < target else None

    def __str__(self) -> str:
        if self.value is None:
            return "none (n=0)"
        interval = NO_INTERVAL
        if self.low is not None and self.high is not None:
            interval = f"95 % interval from {self.low:.2f} to {self.high:.2f}"
        return f"{self.value:.2f} ({self.hits} of {self.n}; {interval})"


def n_needed(q: float) -> int:
    """Return how many values percentile `q` needs: one expected beyond it, and at least five."""
    return max(5, math.ceil(1 / min(q, 1 - q) - 1e-9))


def percentile(
    values: Sequence[float],
    q: float,
    *,
    censored: int = 0,
    below: int = 0,
    effective_n: float | None = None,
) -> Percentile:
    """Compute the `q` quantile (0 < q < 1) of `values` and of the values above or below them all.

    Linear interpolation between order statistics (NumPy's default, Hyndman and Fan's type 7).
    `censored` and `below` count the values above and below all others. `effective_n` is the
    effective sample size, if it is smaller than n; the interval is based on it.
    """
    n = len(values) + censored + below
    if n < n_needed(q):
        return Percentile(None, why_none=f"n={n}, needs {n_needed(q)}")
    ordered = [*([-math.inf] * below), *sorted(values), *([math.inf] * censored)]
    position = q * (n - 1)
    rank = math.floor(position)
    share = position - rank
    value = ordered[rank]
    if share > 0:
        value += share * (ordered[rank + 1] - value)
    low, high = bounding_ranks(n, q, n if effective_n is None else effective_n)
    if not math.isfinite(value):
        why = f"{censored + below} of {n} turns have no reply"
        return Percentile(None, _at(ordered, low), _at(ordered, high), why)
    return Percentile(value, _at(ordered, low), _at(ordered, high))


def bounding_ranks(
    n: int, q: float, effective_n: float, missed: float = MISSED
) -> tuple[int | None, int | None]:
    """Return the zero-based ranks that bound quantile `q`; None if n is too small.

    Each bound is wrong with probability `missed`. The ranks are those of the effective n, spread
    over all n (Woodruff 1952).
    """
    few = max(1, math.floor(effective_n + 1e-9))
    low = _binomial_quantile(missed, few, q) - 1
    high = _binomial_quantile(1 - missed, few, q)
    # In whole numbers, as no rank may be lost to rounding: floor, and ceil less one.
    lowest, highest = low * n // few, -(-(high + 1) * n // few) - 1
    return (lowest if low >= 0 else None), (highest if high < few else None)


@cache
def _binomial_quantile(share: float, n: int, p: float) -> int:
    """Return the least k for which at least `share` of cases have k or fewer hits in `n` tries.

    Like `scipy.stats.binom.ppf`; `p` is the chance of a hit. All probabilities are relative to that
    of the likeliest number. So even with many tries, none that matters is too small for a float.
    """
    likeliest, odds = min(n, math.floor((n + 1) * p)), p / (1 - p)
    down = accumulate(
        range(likeliest, 0, -1), lambda w, k: w * k / ((n - k + 1) * odds), initial=1.0
    )
    up = accumulate(range(likeliest, n), lambda w, k: w * (n - k) * odds / (k + 1), initial=1.0)
    weights = [*reversed(list(down)), *list(up)[1:]]
    wanted, total = share * math.fsum(weights), 0.0
    for k, weight in enumerate(weights):
        total += weight
        if total >= wanted:
            return k
    return n


def _at(ordered: Sequence[float], rank: int | None) -> float | None:
    if rank is None or not math.isfinite(ordered[rank]):
        return None
    return ordered[rank]


def proportion(hits: int, n: int) -> Proportion:
    """Compute a share with Clopper and Pearson's interval, which has at least its stated coverage.

    Wilson's interval is narrower, but misses a share of 1 % in 10 of 100 samples of ten.
    """
    if n == 0:
        return Proportion(0, 0, None, None, None)
    return Proportion(hits, n, hits / n, at_least(hits, n), at_most(hits, n))


@cache
def at_least(hits: float, n: float, missed: float = MISSED) -> float:
    """Return Clopper and Pearson's lower bound of a share; neither number need be whole."""
    return 0.0 if hits <= 0 else beta_quantile(missed, hits, max(0.0, n - hits) + 1)


def at_most(hits: float, n: float, missed: float = MISSED) -> float:
    """Return Clopper and Pearson's upper bound of a share; neither number need be whole."""
    return 1 - at_least(n - hits, n, missed)


def net_share(gained: float, lost: float, n: float, missed: float = MISSED) -> tuple[float, float]:
    """Bound the share of `n` that was gained minus the share that was lost.

    Each bound is wrong with probability `missed`. The bounds of both shares are combined as errors
    that go together (Zou and Donner 2008), because a turn that is gained cannot be lost. With this
    correlation, no further loss ever raises a bound, and intervals hold in 95 of 100 cases whatever
    the two shares are.
    """
    difference, linked = (gained - lost) / n, 0.75 * (gained + lost) / n

    def apart(a: float, b: float) -> float:
        return math.sqrt(a * a + b * b + 2 * linked * a * b)

    down = apart(gained / n - at_least(gained, n, missed), at_most(lost, n, missed) - lost / n)
    up = apart(at_most(gained, n, missed) - gained / n, lost / n - at_least(lost, n, missed))
    return max(-1.0, difference - down), min(1.0, difference + up)


def n_without_a_miss(share: float, missed: float = MISSED) -> int:
    """Return how many hits without a miss show that a share is at least `share`."""
    return math.ceil(math.log(missed) / math.log(share) - 1e-9)


def percentile_of(
    values: Sequence[float], takes: Sequence[Take] | Clusters, q: float
) -> Percentile:
    """Compute `percentile` of turns that are not independent.

    A missing reply is an infinite value.
    """
    finite = [value for value in values if isfinite(value)]
    above, below = list(values).count(inf), list(values).count(-inf)
    if not values:
        return percentile(finite, q)
    clusters = takes if isinstance(takes, Clusters) else Clusters.of(takes)
    effective = clusters.effective_n_at(values, q)
    found = percentile(finite, q, censored=above, below=below, effective_n=effective)
    return replace(found, low=None, high=None) if clusters.few else found


def proportion_of(
    hits: Sequence[bool],
    takes: Sequence[Take] | Clusters,
    values: Sequence[float] | None = None,
) -> Proportion:
    """Compute `proportion` of turns that are not independent.

    `values` are the values behind the hits, for example the gaps (`Clusters.effective_n_of`).
    """
    clusters = takes if isinstance(takes, Clusters) else Clusters.of(takes)
    if not hits:
        return Proportion(0, 0, None, None, None, recorded=clusters.recorded)
    n, share = clusters.effective_n_of(np.array(hits), values), sum(hits) / len(hits)
    low, high = (None, None) if clusters.few else (at_least(share * n, n), at_most(share * n, n))
    return Proportion(sum(hits), len(hits), share, low, high, recorded=clusters.recorded)


# --- distributions --------------------------------------------------------------------------------
# The normal, Student's, the beta and the beta-binomial distribution. `scipy.stats` has them too,
# but takes over a second to import and 140 MB on disk. The tests compare these with it.

_NORMAL = NormalDist()
# Lentz's algorithm takes a few dozen steps for any parameters that turns can have.
_STEPS = 10_000
_TINY, _EPSILON = 1e-300, 1e-16


def normal_quantile(share: float) -> float:
    """Return the value below which `share` of the normal distribution lies."""
    if 0 < share < 1:
        return _NORMAL.inv_cdf(share)
    return math.inf if share >= 1 else -math.inf


def student_quantile(share: float, df: float) -> float:
    """Return the value below which `share` of Student's t distribution lies; `df` is at least 1."""
    if share < 0.5:
        return -student_quantile(1 - share, df)
    outside = 2 * (1 - share)  # of both tails
    # Each from the end that it is near to, where a float is finest.
    if outside < 0.5:
        far = beta_quantile(outside, df / 2, 0.5)
        return math.sqrt(df * (1 - far) / far) if far > 0 else math.inf
    near = beta_quantile(1 - outside, 0.5, df / 2)
    return math.sqrt(df * near / (1 - near))


def beta_quantile(share: float, a: float, b: float) -> float:
    """Return the value below which `share` of the beta distribution lies."""
    if not 0 < share < 1:
        return 0.0 if share <= 0 else 1.0
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if beta_share(middle, a, b) < share:
            low = middle
        else:
            high = middle
    return high


def beta_binomial_share(most: int, tries: float, a: float, b: float) -> float:
    """Return the chance of at most `most` hits in `tries`, each with a chance from Beta(a, b).

    `tries` need not be a whole number.
    """
    if most < 0:
        return 0.0
    if most >= tries:
        return 1.0
    fixed = math.lgamma(tries + 1) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    fixed -= math.lgamma(tries + a + b)
    return min(
        1.0,
        math.fsum(
            math.exp(
                fixed
                - math.lgamma(hits + 1)
                - math.lgamma(tries - hits + 1)
                + math.lgamma(hits + a)
                + math.lgamma(tries - hits + b)
            )
            for hits in range(most + 1)
        ),
    )


def beta_share(x: float, a: float, b: float) -> float:
    """Return the share of the beta distribution that lies below `x`.

    For whole numbers it is the chance of at least `a` hits in `a + b - 1` tries of chance `x`.
    """
    if not 0 < x < 1:
        return 0.0 if x <= 0 else 1.0
    # The continued fraction converges fast on this side of the mean.
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta_below(1 - x, b, a)
    return _beta_below(x, a, b)


def _beta_below(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function by its continued fraction (DLMF 8.17.22)."""
    logs = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    front = math.exp(logs + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b))
    value, c, d = 1.0, 1.0, 0.0
    for step in range(_STEPS):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2 == 0:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        else:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / ((1 + term * d) or _TINY)
        c = (1 + term / c) or _TINY
        value *= c * d
        if abs(c * d - 1) < _EPSILON * 2:
            break
    return front * (value - 1)
