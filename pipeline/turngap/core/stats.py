"""Statistics that say how sure they are.

A turn that never got its reply has no gap, but it was not quick either: it counts as slower than
every measured one (right-censored), so that failing turns cannot improve a percentile.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import binom, binomtest

CONFIDENCE = 0.95


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


@dataclass(frozen=True, slots=True)
class Proportion:
    """`hits` of `n`, with Wilson's 95 % interval; `value` is None when n is 0."""

    hits: int
    n: int
    value: float | None
    low: float | None
    high: float | None


def n_needed(q: float) -> int:
    """How many values percentile `q` needs: one expected beyond it, and at least five in all."""
    return max(5, math.ceil(1 / min(q, 1 - q) - 1e-9))


def percentile(values: Sequence[float], q: float, *, censored: int = 0) -> Percentile:
    """The `q` quantile (0 < q < 1) of `values` and `censored` more that lie above them all.

    Linear interpolation between order statistics (NumPy's default, Hyndman and Fan's type 7).
    """
    n = len(values) + censored
    if n < n_needed(q):
        return Percentile(None, why_none=f"n={n}, needs {n_needed(q)}")
    ordered = [*sorted(values), *([math.inf] * censored)]
    position = q * (n - 1)
    below = math.floor(position)
    share = position - below
    value = ordered[below]
    if share > 0:
        value += share * (ordered[below + 1] - value)
    low, high = _order_statistic_bounds(n, q)
    if not math.isfinite(value):
        return Percentile(None, _at(ordered, low), None, f"{censored} of {n} turns have no reply")
    return Percentile(value, _at(ordered, low), _at(ordered, high))


def _order_statistic_bounds(n: int, q: float) -> tuple[int | None, int | None]:
    """Zero-based ranks that bound quantile `q` with 95 % confidence, None where n is too small."""
    tail = (1 - CONFIDENCE) / 2
    low = int(binom.ppf(tail, n, q)) - 1
    high = int(binom.ppf(1 - tail, n, q))
    return (low if low >= 0 else None), (high if high < n else None)


def _at(ordered: Sequence[float], rank: int | None) -> float | None:
    if rank is None or not math.isfinite(ordered[rank]):
        return None
    return ordered[rank]


def proportion(hits: int, n: int) -> Proportion:
    """A share with Wilson's interval, which holds near 0 and 1 and for small n."""
    if n == 0:
        return Proportion(0, 0, None, None, None)
    interval = binomtest(hits, n).proportion_ci(CONFIDENCE, method="wilson")
    return Proportion(hits, n, hits / n, float(interval.low), float(interval.high))
