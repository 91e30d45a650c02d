"""How slow each of many runs was, from the turns that they share.

The p50 of a run of a dozen turns depends on which of them happened to be slow. The same turns are
played in every run, so each turn can be held against itself: a gap is taken for the sum of what the
turn takes, what its run adds, and chance. What a run adds is known far better than its p50.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from turngap.core.paired import shift

Key = TypeVar("Key", bound=Hashable)

# A turn counts for no more than this in its run's balance, however late it was.
LIMIT_MS = 30.0
# Of the turns, a run has to share so many with the others to have a level.
LEAST_TURNS = 5
_ROUNDS = 8
_SETTLED_MS = 0.05


@dataclass(frozen=True, slots=True)
class RunLevel:
    """How slow a run was, as the gap of a typical turn. `turns`: those that tell it.

    `ms` is None where the run shares too few turns with the others.
    """

    ms: float | None
    turns: int


def run_levels(runs: Sequence[Mapping[Key, float]]) -> list[RunLevel]:
    """The level of each run, given its turns' gaps in ms by what tells the turns apart.

    Only turns that were taken in at least half of the runs count. A level is the middle of all
    turns' typical gaps, plus what the run adds to each of its own: runs with other turns compare.
    """
    taken = [key for run in runs for key in run]
    counts: dict[Key, int] = {}
    for key in taken:
        counts[key] = counts.get(key, 0) + 1
    shared = [key for key, count in counts.items() if 2 * count >= len(runs)]
    gaps = np.array(
        [[run.get(key, np.nan) for key in shared] for run in runs], dtype=np.float64
    ).reshape(len(runs), len(shared))
    turns = np.count_nonzero(~np.isnan(gaps), axis=1)
    enough = turns >= LEAST_TURNS
    if not enough.any():
        return [RunLevel(None, int(n)) for n in turns]
    typical, added = _fitted(gaps[enough])
    middle = float(np.median(typical))
    levels = iter((middle + added).tolist())
    return [
        RunLevel(next(levels) if known else None, int(n))
        for n, known in zip(turns, enough, strict=True)
    ]


def _fitted(gaps: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What each turn takes, in the median over the runs, and what each run adds to its turns."""
    gaps = gaps[:, ~np.all(np.isnan(gaps), axis=0)]
    added = np.zeros(len(gaps))
    typical = np.nanmedian(gaps, axis=0)
    for _ in range(_ROUNDS):
        typical = np.nanmedian(gaps - added[:, None], axis=0)
        before, added = added, np.array([_added(row - typical) for row in gaps])
        if float(np.max(np.abs(added - before))) < _SETTLED_MS:
            break
    return typical, added


def _added(over: NDArray[np.float64]) -> float:
    return shift(over[~np.isnan(over)], LIMIT_MS)
