"""By how much one sample of values lies higher than another, with the interval of that."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turngap.core.distributions import student_quantile
from turngap.core.stats import CONFIDENCE

Floats = NDArray[np.float64]


class Shift(NamedTuple):
    """A shift, and the ends of its 95 % interval; None where `why_none` says why there is none."""

    middle: float
    low: float | None
    high: float | None
    why_none: str | None = None


_TOO_FEW = "too few runs"
# Shares of the same runs come out of sums that are the same but for rounding.
_ALIKE = 1e-9


def shift_between(before: Floats, after: Floats) -> Shift:
    """By how much the values after lie higher than those before, with its 95 % interval.

    The median of all differences (Hodges and Lehmann), between the differences that Mann and
    Whitney's test does not reject; no ends where it rejects nothing, of too few values.
    """
    differences = np.sort((after[:, None] - before[None, :]).ravel())
    rank = _rejected(len(before), len(after))
    middle = float(np.median(differences))
    if rank == 0:
        return Shift(middle, None, None, _TOO_FEW)
    return Shift(middle, float(differences[rank - 1]), float(differences[-rank]))


def _rejected(m: int, n: int) -> int:
    """How many differences the test cuts off at each end, at half of 5 %."""
    tail = (1 - CONFIDENCE) / 2
    if m * n > 2500:  # from here on the normal distribution has it to the rank
        spread = math.sqrt(m * n * (m + n + 1) / 12)
        return max(0, math.floor(m * n / 2 - 1.959963984540054 * spread))
    # How many orders of the m + n values have so many pairs turned round: the coefficients of a
    # product of (1 - x^(n + i)) / (1 - x^i), one factor at a time.
    ways = np.zeros(m * n + 1)
    ways[0] = 1.0
    for i in range(1, m + 1):
        for k in range(m * n, n + i - 1, -1):
            ways[k] -= ways[k - n - i]
        for k in range(i, m * n + 1):
            ways[k] += ways[k - i]
    share = np.cumsum(ways) / math.comb(m + n, m)
    return int(np.count_nonzero(share <= tail))


def shift_of_means(before: Floats, after: Floats) -> Shift:
    """By how much the mean after is higher, with its 95 % interval (Welch's).

    No ends where the values vary on neither side, which tells nothing of what other runs would
    have, or where a side has only one.
    """
    middle = float(after.mean() - before.mean())
    if min(len(before), len(after)) < 2:
        return Shift(middle, None, None, _TOO_FEW)
    if max(float(np.ptp(before)), float(np.ptp(after))) < _ALIKE:
        return Shift(middle, None, None, "the runs on each side are all alike")
    parts = [(float(side.var(ddof=1)) / len(side), len(side) - 1) for side in (before, after)]
    total = sum(part for part, _ in parts)
    df = total**2 / sum(part**2 / free for part, free in parts)
    half = student_quantile((1 + CONFIDENCE) / 2, df) * math.sqrt(total)
    return Shift(middle, middle - half, middle + half)
