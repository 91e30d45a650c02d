"""Turns that only one of two agents failed, and whether that is more than chance.

Conversations are exchanged and drawn whole, as for the other metrics: a machine that stalls through
nine turns of one conversation has shown one slow conversation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turngap.check.record import CUT_INS, HIT_RATE
from turngap.core.distributions import beta_quantile, beta_share
from turngap.core.paired import Exchanges, Floats, Pair, Reading

Failed = Callable[[Reading], bool]

# Whether an agent failed a turn, as these metrics count it.
FAILED: dict[str, Failed] = {
    HIT_RATE: lambda reading: reading.outcome != "answered",
    CUT_INS: lambda reading: reading.outcome == "cut_in",
}


@dataclass(frozen=True, slots=True)
class Failures:
    """The share of turns that the candidate alone failed, less that of the reference alone.

    `detectable`: the share of turns, each failed by itself, that the test would have found; None
    where no share of these conversations would be enough.
    """

    difference: float
    low: float
    high: float
    p_value: float
    detectable: float | None


def failures_of(pairs: Sequence[Pair], swaps: Exchanges, failed: Failed, share: float) -> Failures:
    """Estimate what the candidate failed of `pairs`, at least one; `swaps` are their exchanges.

    `share` is as in `judge`. If a starved caller may have made a turn late, each bound assumes what
    favours it least.
    """
    error = MISSED * share
    surely = _moved([p.in_doubt_for for p in pairs], failed)
    perhaps = _moved([p.in_doubt_against for p in pairs], failed)
    return Failures(
        difference=float(_moved(pairs, failed).mean()),
        low=_interval(surely, swaps, error)[0],
        high=_interval(perhaps, swaps, error)[1],
        p_value=swaps.p_value(surely),
        detectable=_detectable(swaps.sums(surely), len(pairs), ALPHA * share / METRICS),
    )


def _moved(pairs: Sequence[Pair], failed: Failed) -> Floats:
    moved = [int(failed(p.candidate)) - int(failed(p.reference)) for p in pairs]
    return np.array(moved, dtype=np.float64)


def _interval(moved: Floats, swaps: Exchanges, error: float) -> tuple[float, float]:
    """Return the wider of two intervals at either end: neither alone is enough.

    The interval by turns bounds even a loss that was never seen, but turns of a conversation are
    not lost one by one. Resampled conversations allow for that, but not for losses that were never
    seen.
    """
    n, lost, won = len(moved), int(np.sum(moved > 0)), int(np.sum(moved < 0))
    # What was lost less what was won, each bounded by Clopper and Pearson at half the error.
    half = error / 2
    turns = (
        _share_at_least(lost, n, half) - _share_at_most(won, n, half),
        _share_at_most(lost, n, half) - _share_at_least(won, n, half),
    )
    sizes = swaps.sums(np.ones(n))
    resampled = (swaps.counts @ swaps.sums(moved)) / (swaps.counts @ sizes)
    low, high = (float(end) for end in np.quantile(resampled, (error, 1 - error)))
    return min(turns[0], low), max(turns[1], high)


def _share_at_most(k: int, n: int, error: float) -> float:
    return 1.0 if k == n else beta_quantile(1 - error, k + 1, n - k)


def _share_at_least(k: int, n: int, error: float) -> float:
    return 0.0 if k == 0 else beta_quantile(error, k, n - k + 1)


def _detectable(sums: Floats, turns: int, alpha: float) -> float | None:
    """From the conversations that have to lose a turn, beside as many that win one."""
    k, won = len(sums), int(np.sum(sums < 0))
    enough = next((lost for lost in range(1, k + 1) if _sign_test(lost, won) <= alpha), None)
    if enough is None:
        return None
    of_conversations = beta_quantile(POWER, enough, k - enough + 1)
    return 1 - (1 - of_conversations) ** (k / turns)


def _sign_test(lost: int, won: int) -> float:
    """Return the chance of losing as often or more by chance alone."""
    return beta_share(0.5, lost, won + 1) if lost else 1.0


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
