"""Turns that only one of two agents failed, and whether that is more than chance.

Conversations count whole, as for the other metrics: a machine that stalls through nine turns of one
conversation has shown one slow conversation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from turngap.check.record import CUT_INS, HIT_RATE
from turngap.core.clusters import least_n
from turngap.core.distributions import beta_quantile, beta_share
from turngap.core.paired import Exchanges, Floats, Pair, Reading
from turngap.core.stats import MISSED, net_share

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
    surely = _moved([p.in_doubt_for for p in pairs], failed)
    perhaps = _moved([p.in_doubt_against for p in pairs], failed)
    return Failures(
        difference=float(_moved(pairs, failed).mean()),
        low=_bounds(surely, swaps, share)[0],
        high=_bounds(perhaps, swaps, share)[1],
        p_value=swaps.p_value(surely),
        detectable=_detectable(swaps.sums(surely), len(pairs), ALPHA * share / METRICS),
    )


def _moved(pairs: Sequence[Pair], failed: Failed) -> Floats:
    moved = [int(failed(p.candidate)) - int(failed(p.reference)) for p in pairs]
    return np.array(moved, dtype=np.float64)


def _bounds(moved: Floats, swaps: Exchanges, share: float) -> tuple[float, float]:
    """Bound what was lost less what was won, as if all turns of a conversation had the same fate.

    A call is lost whole, as by a recogniser that does not connect. That none was lost in ten tells
    nothing of what comes once in ten, however many turns they have.
    """
    n = least_n(swaps.groups)
    lost, won = float(np.mean(moved > 0)), float(np.mean(moved < 0))
    return net_share(lost * n, won * n, n, MISSED * share)


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


def conversations_needed(alpha: float = ALPHA) -> int:
    """Return the least number of conversations whose turns must all be slower to show it.

    Of k conversations there are 2^k exchanges, and Holm's first step takes a quarter of `alpha`.
    """
    return math.ceil(-math.log2(alpha / METRICS))
