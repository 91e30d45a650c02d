"""What is linked: turns that tell less than as many independent ones would.

Every round plays the same recordings, and a recording that is slow once is slow again; turns of
one play of a conversation share a session and what the machine did meanwhile. Measured over
stored runs (docs/methodology.md), gaps are alike for both reasons, and not where turns of a
conversation were taken in different plays. So recordings and plays are the two clusters, which
cross each other.

Many calls at once are traffic, which no recording stands for. Their turns are linked by the call,
and by the time: what slows the machine down for a while hits all calls that run in it.

The intervals are those of independent turns for the effective n: all turns, divided by the
design effect (Kish 1965), that of the two clusters together (Cameron, Gelbach and Miller 2011).
Resampling recordings with all their rounds was tried: of 21, p95's interval held the truth 62 to
87 times in 100, since no resample is slower than the slowest recording seen.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import floor, sqrt

import numpy as np
from numpy.typing import NDArray

# Scenario, turn and round.
Take = tuple[str, int, int]
# Plays are mostly not linked, and few in one round: by its estimate alone the effect of four would
# leave every fourth median of 12 turns that nothing links without an interval. Half a standard
# error less, none; and with planted links intervals still hold in 95 of 100 (docs/methodology.md).
PLAYS_DOUBT = 0.5
# Many calls at once share the machine: what slows it down for a while hits the turns of them all.
# Stalls of a busy machine last from tenths of a second to a few seconds.
SPELL_S = 5.0


@dataclass(frozen=True, slots=True)
class Clusters:
    """What turns share: two ways in which they are linked, which cross each other.

    Attributes:
        kinds: of each way, the number of each turn's cluster, counted from 0.
        doubts: of each way, how many standard errors its effect is lowered by.
        recorded: how many recorded turns these are takes of; None where these are the traffic
            itself, which has no other turns to stand for.
    """

    kinds: tuple[NDArray[np.intp], NDArray[np.intp]]
    doubts: tuple[float, float]
    recorded: int | None

    @classmethod
    def of(cls, takes: Sequence[Take]) -> "Clusters":
        """Clusters of turns that are played again and again: recordings, and plays."""
        recordings = _numbered([(scenario, turn) for scenario, turn, _ in takes])
        plays = _numbered([(scenario, round_) for scenario, _, round_ in takes])
        return cls((recordings, plays), (0.0, PLAYS_DOUBT), _count(recordings))

    @classmethod
    def of_calls(cls, calls: Sequence[Hashable], at_s: Sequence[float]) -> "Clusters":
        """Clusters of turns of many calls at once: their calls, and spells of the same time.

        `at_s` are their instants; turns of different tests need calls and instants far apart.
        """
        spells = _numbered([floor(at / SPELL_S) for at in at_s])
        return cls((_numbered(calls), spells), (PLAYS_DOUBT, PLAYS_DOUBT), None)

    def effective_n(self, chosen: NDArray[np.bool_]) -> float:
        """Return the effective sample size of the share of `chosen` turns.

        If all turns have the same result, nothing shows that one take of a recording adds
        information to another: the number of recorded turns is returned.
        """
        deviations = chosen - chosen.mean()
        if not deviations.any():
            return float(len(chosen) if self.recorded is None else self.recorded)
        effects = [
            _design_effect(deviations, kind, doubt=doubt)
            for kind, doubt in zip(self.kinds, self.doubts, strict=True)
        ]
        return len(chosen) / (sum(effects) - 1)

    def effective_n_of(self, hits: NDArray[np.bool_], values: Sequence[float]) -> float:
        """Return the effective sample size of the hit rate, given the `values` behind the hits.

        The values are, for example, the gaps. Misses are too few to show how they cluster, so the
        clustering is taken to be at least that of the median.
        """
        effective = self.effective_n(hits)
        if self.recorded is not None and hits.all() | ~hits.any():
            return effective
        return min(effective, self.effective_n(up_to(values, 0.5)))


def up_to(values: Sequence[float], q: float) -> NDArray[np.bool_]:
    """Mark the values that are no higher than their `q` quantile."""
    return np.asarray(values) <= np.sort(values)[int(q * (len(values) - 1))]


def _design_effect(
    deviations: NDArray[np.float64], clusters: NDArray[np.intp], *, doubt: float = 0.0
) -> float:
    """Estimate the ratio of the variance of a mean to that of independent turns; at least 1.

    It is at most the value that it has if all turns of a cluster are equal. A single cluster gives
    no estimate. `doubt` is the number of standard errors to subtract; the standard error is that of
    a variance of k values.
    """
    n, k = len(deviations), _count(clusters)
    if k in (1, n):
        return 1.0
    sums = np.bincount(clusters, deviations)
    between = float((sums**2).sum()) * k / (k - 1)
    independent = float((deviations**2).sum()) * n / (n - 1)
    effect = between / independent * (1 - doubt * sqrt(2 / (k - 1)))
    return min(max(effect, 1.0), n / k)


def _numbered(names: Sequence[Hashable]) -> NDArray[np.intp]:
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.intp)


def _count(clusters: NDArray[np.intp]) -> int:
    return int(clusters.max()) + 1 if len(clusters) else 0
