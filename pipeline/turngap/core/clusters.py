"""Clusters of linked turns, which carry less information than as many independent turns.

Every round plays the same recordings, and a recording that is slow once is slow again. Turns of one
play of a conversation share a session and the state of the machine. Measured over stored runs
(docs/methodology.md), gaps are alike for both reasons, but not between different plays of a
conversation. So turns are clustered in two ways, which cross each other: by recording, and by play.

Many calls at once are traffic, and no recording stands for it. Their turns are linked by the call
and by the time: a slow spell of the machine hits all calls that run in it.

The intervals are those of independent turns with the effective n. For a median that is the number
of turns divided by the design effect (Kish 1965) of both clusterings together (Cameron, Gelbach and
Miller 2011). For a share or a tail, the effective n is the least possible: the number of recordings
or of plays. Misses are too few to show how they are linked, and a bound based on them would be
better with one miss than with none. Resampling recordings with all their rounds was tried: with 21
recordings, p95's interval held the truth 62 to 87 times in 100, since no resample is slower than
the slowest recording seen.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import floor, inf, sqrt

import numpy as np
from numpy.typing import NDArray

# Scenario, turn and round.
Take = tuple[str, int, int]
# Calls are mostly not linked, and neither are spells: their effects are estimated half a standard
# error lower. With planted links searches err as seldom as they say (docs/methodology.md).
CALLS_DOUBT = 0.5
# Many calls at once share the machine: what slows it down for a while hits the turns of them all.
# Stalls of a busy machine last from tenths of a second to a few seconds.
SPELL_S = 5.0
# Of fewer recordings, or plays, nothing shows how much they differ: the intervals of two held the
# truth in 80 of 100, of one in 17.
FEWEST = 3
# Of so few, an estimate of how much a median's turns are linked is too low by chance: of three, the
# intervals that were shown held it in 54 to 89 of 100.
ENOUGH = 5
NO_INTERVAL = f"no interval: it takes {FEWEST} different turns, each played {FEWEST} times"


@dataclass(frozen=True, slots=True)
class Clusters:
    """Two independent groupings of the same turns, for example by recording and by play.

    Attributes:
        kinds: for each grouping, the number of each turn's group, counted from 0.
        doubt: how many standard errors to subtract from each grouping's estimated design effect.
        recorded: the number of recorded turns that these are takes of; None if the turns are the
            traffic itself, which has no other turns to stand for.
        least: the effective n if all turns of a group are alike; None for traffic.
    """

    kinds: tuple[NDArray[np.intp], NDArray[np.intp]]
    doubt: float = 0.0
    recorded: int | None = None
    least: float | None = None

    @classmethod
    def of(cls, takes: Sequence[Take]) -> "Clusters":
        """Build the clusters of turns that are played again and again: recordings, and plays."""
        recordings = _numbered([(scenario, turn) for scenario, turn, _ in takes])
        plays = _numbered([(scenario, round_) for scenario, _, round_ in takes])
        kinds = recordings, plays
        return cls(kinds, recorded=_count(recordings), least=min(map(least_n, kinds)))

    @classmethod
    def of_plays(cls, calls: Sequence[Hashable]) -> "Clusters":
        """Build the clusters of turns that stand for these recordings alone: their calls.

        A call can be lost as a whole, for example if a recogniser does not connect.
        """
        plays = _numbered(calls)
        return cls((plays, plays), least=least_n(plays))

    @classmethod
    def of_calls(cls, calls: Sequence[Hashable], at_s: Sequence[float]) -> "Clusters":
        """Group the turns of simultaneous calls by call and by interval of 5 s.

        `at_s`: each turn's time. To combine tests, give them distinct call ids and times so far
        apart that no interval is shared.
        """
        spells = _numbered([floor(at / SPELL_S) for at in at_s])
        return cls((_numbered(calls), spells), CALLS_DOUBT)

    @property
    def few(self) -> bool:
        """Return whether there are too few recordings, or plays, for an interval."""
        return self.recorded is not None and min(map(_count, self.kinds)) < FEWEST

    def effective_n_of(
        self, hits: NDArray[np.bool_], values: Sequence[float] | None = None
    ) -> float:
        """Return the effective sample size of the share of hits.

        `values` are the values behind the hits, for example the gaps. The misses of traffic are too
        few to show how they cluster, so they are taken to cluster at least as the median does.
        """
        if self.least is not None:
            return self.least
        effective = self._estimate(hits)
        return effective if values is None else min(effective, self._estimate(up_to(values, 0.5)))

    def effective_n_at(self, values: Sequence[float], q: float) -> float:
        """Return the effective sample size of the `q` quantile of the values."""
        if self.least is not None and (q != 0.5 or min(map(_count, self.kinds)) < ENOUGH):
            return self.least
        return min(self._estimate(up_to(values, at)) for at in (0.5, q))

    def _estimate(self, chosen: NDArray[np.bool_]) -> float:
        deviations = chosen - chosen.mean()
        if not deviations.any():
            return len(chosen) if self.least is None else self.least
        effects = [
            _design_effect(_unevenness(deviations, kind), deviations, kind, self.doubt)
            for kind in self.kinds
        ]
        return len(chosen) / (sum(effects) - 1)


def least_n(clusters: NDArray[np.intp]) -> float:
    """Return the effective n if all turns of a cluster are alike.

    For clusters of equal size, that is their number.

    `clusters` has the number of each turn's cluster.
    """
    return len(clusters) ** 2 / max(1, int((np.bincount(clusters) ** 2).sum()))


def up_to(values: Sequence[float], q: float) -> NDArray[np.bool_]:
    """Mark the values at or below their `q` quantile."""
    return np.asarray(values) <= np.sort(values)[int(q * (len(values) - 1))]


def least_n_at(
    values: tuple[NDArray[np.float64], NDArray[np.float64]], q: float, clusters: NDArray[np.intp]
) -> float:
    """Return the least effective n of a quantile, if each value is known only between two bounds.

    Among the values that may be above the quantile, those that make the clusters most uneven count.
    """
    (lowest, highest), n, k = values, len(clusters), _count(clusters)
    rank = int(q * (n - 1))
    surely = np.bincount(clusters[lowest > np.sort(highest)[rank]], minlength=k)
    maybe = np.bincount(clusters[highest > np.sort(lowest)[rank]], minlength=k)
    above = min(n - 1 - rank, int(maybe.sum()))
    if above == 0:
        return n
    most = np.where(np.arange(above + 1) == 0, 0.0, -inf)  # for each number above, so far
    for size, least, last in zip(np.bincount(clusters), surely, maybe, strict=True):
        before, most = most, np.full(above + 1, -inf)
        for here in range(least, min(last, above) + 1):
            with_these = before[: above + 1 - here] + (here - size * above / n) ** 2
            most[here:] = np.maximum(most[here:], with_these)
    deviations = (np.arange(n) < above).astype(np.float64) - above / n
    return n / _design_effect(float(most[above]), deviations, clusters, CALLS_DOUBT)


def _unevenness(deviations: NDArray[np.float64], clusters: NDArray[np.intp]) -> float:
    return float((np.bincount(clusters, deviations) ** 2).sum())


def _design_effect(
    uneven: float, deviations: NDArray[np.float64], clusters: NDArray[np.intp], doubt: float
) -> float:
    """Estimate the ratio of the variance of a mean to that of independent turns; at least 1.

    The estimate is at most what it would be if all turns of a cluster were equal. A single cluster
    gives no estimate. `doubt` is the number of standard errors to subtract; the standard error is
    that of a variance of k values. `uneven` is the sum of the squares of the clusters' sums.
    """
    n, k = len(deviations), _count(clusters)
    if k in (1, n):
        return 1.0
    between = uneven * k / (k - 1)
    independent = float((deviations**2).sum()) * n / (n - 1)
    effect = between / independent * (1 - doubt * sqrt(2 / (k - 1)))
    return min(max(effect, 1.0), n / k)


def _numbered(names: Sequence[Hashable]) -> NDArray[np.intp]:
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.intp)


def _count(clusters: NDArray[np.intp]) -> int:
    return int(clusters.max()) + 1 if len(clusters) else 0
