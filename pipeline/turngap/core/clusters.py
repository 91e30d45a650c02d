"""Intervals of turns that tell less than as many independent ones would.

Every round plays the same recordings, and a recording that is slow once is slow again; turns of one
play of a conversation share a session and what the machine did meanwhile. Measured over stored runs
(docs/methodology.md), gaps are alike for both reasons, and not where turns of a conversation were
taken in different plays. So recordings and plays are the two clusters, which cross each other.

The intervals are those of independent turns for the effective n: all turns, divided by the design
effect (Kish 1965), that of the two clusters together (Cameron, Gelbach and Miller 2011). Resampling
recordings with all their rounds was tried: of 21, p95's interval held the truth 62 to 87 times in
100, since no resample is slower than the slowest recording seen.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import numpy as np
from numpy.typing import NDArray

from turngap.core.stats import Percentile, Proportion, percentile, wilson

# Scenario, turn and round.
Take = tuple[str, int, int]
# Plays are mostly not linked, and few in one round: by its estimate alone the effect of four would
# leave every fourth median of 12 turns that nothing links without an interval. Half a standard
# error less, none; and with planted links intervals still hold in 95 of 100 (docs/methodology.md).
PLAYS_DOUBT = 0.5


@dataclass(frozen=True, slots=True)
class Clusters:
    """Where turns were taken: of each one its recording, and the play of a conversation it was in.

    Attributes:
        recordings, plays: their numbers, counted from 0.
    """

    recordings: NDArray[np.intp]
    plays: NDArray[np.intp]

    @classmethod
    def of(cls, takes: Sequence[Take]) -> "Clusters":
        """From the takes, in the order of the turns."""
        recordings = _numbered([(scenario, turn) for scenario, turn, _ in takes])
        return cls(recordings, _numbered([(scenario, round_) for scenario, _, round_ in takes]))

    @property
    def recorded(self) -> int:
        """How many recorded turns were taken."""
        return _count(self.recordings)

    def effective_n(self, chosen: NDArray[np.bool_]) -> float:
        """How many independent turns tell as much of the share that was chosen of these.

        Where all came out alike, nothing shows that one take of a recording tells anything beyond
        another: the recorded turns count.
        """
        deviations = chosen - chosen.mean()
        if not deviations.any():
            return float(self.recorded)
        of_recordings = _design_effect(deviations, self.recordings)
        of_plays = _design_effect(deviations, self.plays, doubt=PLAYS_DOUBT)
        return len(chosen) / (of_recordings + of_plays - 1)


def percentile_of(values: Sequence[float], takes: Sequence[Take], q: float) -> Percentile:
    """As `percentile`, of turns that are not independent; without a reply a value is infinite.

    In the tail are too few turns to show whose they are: it takes at least the median's effect.
    """
    finite = [value for value in values if isfinite(value)]
    above, below = list(values).count(inf), list(values).count(-inf)
    if not values:
        return percentile(finite, q)
    clusters = Clusters.of(takes)
    effective = min(clusters.effective_n(_up_to(values, at)) for at in (0.5, q))
    return percentile(finite, q, censored=above, below=below, effective_n=effective)


def proportion_of(
    hits: Sequence[bool], takes: Sequence[Take], values: Sequence[float] | None = None
) -> Proportion:
    """As `proportion`, of turns that are not independent.

    `values` are what the hits were told by, as the gaps: misses are too few to show whose they are,
    and where there are some it takes at least the effect of the median.
    """
    if not hits:
        return Proportion(0, 0, None, None, None, recorded=0)
    clusters, share = Clusters.of(takes), sum(hits) / len(hits)
    effective = clusters.effective_n(np.array(hits))
    if values is not None and 0 < share < 1:
        effective = min(effective, clusters.effective_n(_up_to(values, 0.5)))
    low, high = wilson(share, effective)
    return Proportion(sum(hits), len(hits), share, low, high, recorded=clusters.recorded)


def _up_to(values: Sequence[float], q: float) -> NDArray[np.bool_]:
    """Which of the values lie no higher than their `q` quantile."""
    return np.asarray(values) <= np.sort(values)[int(q * (len(values) - 1))]


def _design_effect(
    deviations: NDArray[np.float64], clusters: NDArray[np.intp], *, doubt: float = 0.0
) -> float:
    """How many times the variance of a mean is what independent turns would have; 1 at least.

    At most as if all turns of a cluster were one. Of a single cluster nothing is known. So many
    standard errors are left out as are in `doubt`; it is that of a variance of k values.
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
