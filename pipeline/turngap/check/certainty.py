"""How often a check may be wrong, and how much it takes for so little."""

import math

# An agent compared with itself is called slower in at most this share of comparisons.
ALPHA = 0.01

# The typical gap, its tail, the hit rate and the cut-ins.
METRICS = 4
POWER = 0.95

# Each end of an interval is wrong in at most this share: 95 % in all.
MISSED = 0.025


def conversations_needed(alpha: float = ALPHA) -> int:
    """Return the least number of conversations whose turns must all be slower to show it.

    Of k conversations there are 2^k exchanges, and Holm's first step takes a quarter of `alpha`.
    """
    return math.ceil(-math.log2(alpha / METRICS))
