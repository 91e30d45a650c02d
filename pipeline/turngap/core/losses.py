"""Turns that only one of two agents answered in time, and whether that is more than chance.

Conversations are exchanged and drawn whole, as for the other metrics: a machine that stalls through
nine turns of one conversation has shown one slow conversation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import beta, binomtest

from turngap.core.paired import Exchanges, Floats
from turngap.core.pairs import Pair, Reading


@dataclass(frozen=True, slots=True)
class Loss:
    """The share of all turns lost, net of those won, with the interval that its caller asked for.

    `detectable`: the share of turns, each lost by itself, that the test would have found with the
    asked power; None where no share of these conversations would be enough.
    """

    difference: float
    low: float
    high: float
    p_value: float
    detectable: float | None


def loss_of(
    pairs: Sequence[Pair], swaps: Exchanges, *, error: float, alpha: float, power: float
) -> Loss:
    """What the candidate lost of `pairs`, at least one; `swaps` are the exchanges of all of them.

    `error` is what either end of the interval may be wrong in, `alpha` the level of the test. Where
    a starved caller may have made a turn late, each bound takes it for what serves it least.
    """
    surely = _moved([p.in_doubt_for for p in pairs])
    perhaps = _moved([p.in_doubt_against for p in pairs])
    return Loss(
        difference=float(_moved(pairs).mean()),
        low=_interval(surely, swaps, error)[0],
        high=_interval(perhaps, swaps, error)[1],
        p_value=swaps.p_value(surely),
        detectable=_detectable(swaps.sums(surely), len(pairs), alpha, power),
    )


def _moved(pairs: Sequence[Pair]) -> Floats:
    return np.array([_hit(p.reference) - _hit(p.candidate) for p in pairs], dtype=np.float64)


def _hit(reading: Reading) -> int:
    return int(reading.outcome == "answered")


def _interval(moved: Floats, swaps: Exchanges, error: float) -> tuple[float, float]:
    """The wider of two at either end: neither alone is enough.

    Turn by turn a loss that was never seen still has a bound, but turns of a conversation are not
    lost one by one. Resampled conversations know that, and nothing of what was never seen.
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
    return 1.0 if k == n else float(beta.ppf(1 - error, k + 1, n - k))


def _share_at_least(k: int, n: int, error: float) -> float:
    return 0.0 if k == 0 else float(beta.ppf(error, k, n - k + 1))


def _detectable(sums: Floats, turns: int, alpha: float, power: float) -> float | None:
    """From the conversations that have to lose a turn, beside as many that win one."""
    k, won = len(sums), int(np.sum(sums < 0))
    enough = next((lost for lost in range(1, k + 1) if _sign_test(lost, won) <= alpha), None)
    if enough is None:
        return None
    of_conversations = float(beta.ppf(power, enough, k - enough + 1))
    return 1 - (1 - of_conversations) ** (k / turns)


def _sign_test(lost: int, won: int) -> float:
    return float(binomtest(lost, lost + won, 0.5, alternative="greater").pvalue)
