"""Statistics that say how sure they are.

A turn that never got its reply has no gap, but it was not quick either: it counts as slower than
every measured one (right-censored), so that failing turns cannot improve a percentile.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy.stats import binom, norm

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


def percentile(
    values: Sequence[float], q: float, *, censored: int = 0, below: int = 0
) -> Percentile:
    """The `q` quantile (0 < q < 1) of `values` and of more that lie above or `below` them all.

    Linear interpolation between order statistics (NumPy's default, Hyndman and Fan's type 7).
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
    low, high = _order_statistic_bounds(n, q)
    if not math.isfinite(value):
        why = f"{censored + below} of {n} turns have no reply"
        return Percentile(None, _at(ordered, low), _at(ordered, high), why)
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
    return Proportion(hits, n, hits / n, *_wilson(hits / n, n))


def proportion_of_takes(takes: Iterable[Sequence[bool]]) -> Proportion:
    """A share over things that were tried several times each, a sequence of takes for each thing.

    Who does alike in every take tells as much in ten as in one. So Wilson's interval is taken for
    the effective n: all takes, divided by how much more the things differ than takes by chance
    would (Kish's design effect); never less than the things, nor more than the takes. Where all
    takes came out alike, nothing shows that one tells anything beyond another: the things count.
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
    return Proportion(hits, n, share, *_wilson(share, effective))


def _wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's interval of a share of `n`, which need not be a whole number."""
    z2 = float(norm.isf((1 - CONFIDENCE) / 2)) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n) / (1 + z2 / n)
    # At 0 and 1 the two are the same number but for the last digit.
    low = 0.0 if share == 0 else max(0.0, middle - half)
    return low, 1.0 if share == 1 else min(1.0, middle + half)
