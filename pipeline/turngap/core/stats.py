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
    """`hits` of `n`, with Wilson's 95 % interval; `value` is None when n is 0.

    `recorded`: how many recorded turns the `n` are takes of, where they are; None where not known.
    """

    hits: int
    n: int
    value: float | None
    low: float | None
    high: float | None
    recorded: int | None = None


def n_needed(q: float) -> int:
    """How many values percentile `q` needs: one expected beyond it, and at least five in all."""
    return max(5, math.ceil(1 / min(q, 1 - q) - 1e-9))


def percentile(
    values: Sequence[float],
    q: float,
    *,
    censored: int = 0,
    below: int = 0,
    effective_n: float | None = None,
) -> Percentile:
    """The `q` quantile (0 < q < 1) of `values` and of more that lie above or `below` them all.

    Linear interpolation between order statistics (NumPy's default, Hyndman and Fan's type 7).
    `effective_n`: how many independent values tell as much, where that is fewer; the interval is
    the one of so many.
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
    low = int(binom.ppf(tail, few, q)) - 1
    high = int(binom.ppf(1 - tail, few, q))
    # In whole numbers, as no rank may be lost to rounding: floor, and ceil less one.
    lowest, highest = low * n // few, -(-(high + 1) * n // few) - 1
    return (lowest if low >= 0 else None), (highest if high < few else None)


def _at(ordered: Sequence[float], rank: int | None) -> float | None:
    if rank is None or not math.isfinite(ordered[rank]):
        return None
    return ordered[rank]


def proportion(hits: int, n: int) -> Proportion:
    """A share with Wilson's interval, which holds near 0 and 1 and for small n."""
    if n == 0:
        return Proportion(0, 0, None, None, None)
    return Proportion(hits, n, hits / n, *wilson(hits / n, n))


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
    return Proportion(hits, n, share, *wilson(share, effective), recorded=len(tried))


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's interval of a share of `n`, which need not be a whole number."""
    z2 = float(norm.isf((1 - CONFIDENCE) / 2)) ** 2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * n)) / n) / (1 + z2 / n)
    # At 0 and 1 the two are the same number but for the last digit.
    low = 0.0 if share == 0 else max(0.0, middle - half)
    return low, 1.0 if share == 1 else min(1.0, middle + half)
