"""Statistics that say how sure they are.

A turn that never got its reply has no gap, but it was not quick either: it counts as slower than
every measured one (right-censored), so that failing turns cannot improve a percentile.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import inf, isfinite

import numpy as np

from turngap.core.clusters import Clusters, Take, up_to

CONFIDENCE = 0.95
# Of the normal distribution, to the last digit. scipy.stats takes over a second to import, and most
# of what shows statistics needs no more of it than this and `_binomial_quantile`.
_Z = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile with its interval; `value` is None with the reason in `why_none`.

    `low` and `high` bound it with 95 % confidence from order statistics alone (no shape assumed);
    either is None where n is too small to bound that side or the bound lies among the censored.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    why_none: str | None = None

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
    """`hits` of `n`, with Wilson's 95 % interval; `value` is None when n is 0.

    `recorded`: how many recorded turns the `n` are takes of, where they are; None where not known.
    """

    hits: int
    n: int
    value: float | None
    low: float | None
    high: float | None
    recorded: int | None = None

    def reaches(self, target: float) -> bool | None:
        """Say whether the share is at least `target`; None where the interval does not tell."""
        if self.low is None or self.high is None:
            return None
        return True if self.low >= target else False if self.high < target else None

    def __str__(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return "none (n=0)"
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
    """Compute the `q` quantile (0 < q < 1) of `values` and of values above or `below` them all.

    Linear interpolation between order statistics (NumPy's default, Hyndman and Fan's type 7).
    `censored` and `below` count the values above and below all others. `effective_n` is the
    effective sample size, where it is smaller; the interval is based on it.
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
    low, high = _order_statistic_bounds(n, q, n if effective_n is None else effective_n)
    if not math.isfinite(value):
        why = f"{censored + below} of {n} turns have no reply"
        return Percentile(None, _at(ordered, low), _at(ordered, high), why)
    return Percentile(value, _at(ordered, low), _at(ordered, high))


def _order_statistic_bounds(n: int, q: float, effective_n: float) -> tuple[int | None, int | None]:
    """Zero-based ranks that bound quantile `q` with 95 % confidence, None where n is too small.

    The ranks of the effective n, spread over all n (Woodruff 1952).
    """
    tail, few = (1 - CONFIDENCE) / 2, max(1, math.floor(effective_n + 1e-9))
    low = _binomial_quantile(tail, few, q) - 1
    high = _binomial_quantile(1 - tail, few, q)
    # In whole numbers, as no rank may be lost to rounding: floor, and ceil less one.
    lowest, highest = low * n // few, -(-(high + 1) * n // few) - 1
    return (lowest if low >= 0 else None), (highest if high < few else None)


@cache
def _binomial_quantile(share: float, n: int, p: float) -> int:
    """Return the least k at which at least `share` of cases have k or fewer hits in `n` tries.

    Like `scipy.stats.binom.ppf`; `p` is the chance of a hit. The chances are taken relative to that
    of the likeliest number, so that none of those that count is too small for a float, however many
    tries there are.
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
    """Compute a share with Wilson's interval, which holds near 0 and 1 and for small n."""
    if n == 0:
        return Proportion(0, 0, None, None, None)
    return Proportion(hits, n, hits / n, *wilson(hits / n, n))


def proportion_of_takes(takes: Iterable[Sequence[bool]]) -> Proportion:
    """Compute a share over things that were tried several times, given the takes of each thing.

    A thing that does the same in every take adds as much in ten takes as in one. So Wilson's
    interval is computed for the effective n: all takes, divided by Kish's design effect (how much
    more the things differ than takes by chance would). It is never less than the number of things,
    nor more than the number of takes. If all takes have the same result, nothing shows that one
    take adds information to another: it is the number of things.
    """
    tried = [list(take) for take in takes if take]
    hits, n = sum(map(sum, tried)), sum(map(len, tried))
    if n == 0:
        return proportion(0, 0)
    share = hits / n
    if hits in (0, n):
        effective = float(len(tried))
    else:
        between = sum((sum(take) - share * len(take)) ** 2 for take in tried)
        effect = between / (n * share * (1 - share))
        effective = max(len(tried), n / max(effect, 1.0))
    return Proportion(hits, n, share, *wilson(share, effective), recorded=len(tried))


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's interval of a share of `n`, which need not be a whole number."""
    z2 = _Z**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n) / (1 + z2 / n)
    # At 0 and 1 the two are the same number but for the last digit.
    low = 0.0 if share == 0 else max(0.0, middle - half)
    return low, 1.0 if share == 1 else min(1.0, middle + half)


def percentile_of(
    values: Sequence[float], takes: Sequence[Take] | Clusters, q: float
) -> Percentile:
    """Compute `percentile` of turns that are not independent; a missing reply is an infinite value.

    The tail has too few turns to show how they cluster: the clustering is taken to be at least that
    of the median.
    """
    finite = [value for value in values if isfinite(value)]
    above, below = list(values).count(inf), list(values).count(-inf)
    if not values:
        return percentile(finite, q)
    clusters = takes if isinstance(takes, Clusters) else Clusters.of(takes)
    effective = min(clusters.effective_n(up_to(values, at)) for at in (0.5, q))
    return percentile(finite, q, censored=above, below=below, effective_n=effective)


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
    chosen, share = np.array(hits), sum(hits) / len(hits)
    if values is None:
        effective = clusters.effective_n(chosen)
    else:
        effective = clusters.effective_n_of(chosen, values)
    low, high = wilson(share, effective)
    return Proportion(sum(hits), len(hits), share, low, high, recorded=clusters.recorded)
