"""The normal, Student's, the beta and the beta-binomial distribution, in plain Python.

`scipy.stats` has them too, but takes over a second to import and 140 MB on disk. The tests compare
these with it.
"""

import math
from statistics import NormalDist

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
