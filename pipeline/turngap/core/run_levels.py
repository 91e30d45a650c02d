"""How slow each of many runs was, from the turns that they share.

The p50 of a run of a dozen turns depends on which of them happened to be slow. The same turns are
played in every run, so each turn can be held against itself: a gap is taken for the sum of what the
turn takes, what its run adds, and chance. What a run adds is known far better than its p50.

A new version of an agent slows the same turns in every run. A machine that had something else to do
slows other turns each time, and that shows within the run (`_uneven`).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from turngap.core.paired import CENSORED_MS, shift

Key = TypeVar("Key", bound=Hashable)

# A turn counts for no more than this in its run's balance, however late it was.
LIMIT_MS = 30.0
# Of the turns, a run has to share so many with the others to have a level.
LEAST_TURNS = 5
# A run is held against so many before it and after it.
NEIGHBOURS = 4
# A run is uneven if its turns are so many times as far off as those of its neighbours. Chosen on
# made-up series (seeds below 600), where 2 and 3 did as well.
UNEVEN = 2.5
# Where more than this share of a series is uneven, nothing is said of it: a run is uneven against
# what is usual around it, and where nearly half are, it is chance which half is taken for the usual
# one. Of 720 made series (30 runs, seeds below 120), in some of which every other run was slow, no
# more than 27 % were uneven, and of others 33 %: more was never
# tried.
MOST_UNEVEN = 1 / 3
# Less than this is no fault of any run, and a turn counts for no more than that.
_EVEN_MS, _FAR_MS = 5.0, 60.0
_ROUNDS = 8
_SETTLED_MS = 0.05


@dataclass(frozen=True, slots=True)
class RunLevel:
    """How slow a run was, as the gap of a typical turn. `turns`: those that tell it.

    `ms` is None where the run shares too few turns with the others. `uneven`: from turn to turn, it
    is off the runs around it by very different amounts, so that its level says little.
    """

    ms: float | None
    turns: int
    uneven: bool = False


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
    told = zip((middle + added).tolist(), _uneven(gaps[enough], added), strict=True)
    found: list[RunLevel] = []
    for n, known in zip(turns, enough, strict=True):
        ms, uneven = next(told) if known else (None, False)
        found.append(RunLevel(ms, int(n), uneven))
    return found


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


def _uneven(gaps: NDArray[np.float64], added: NDArray[np.float64]) -> list[bool]:
    """Which runs are off their neighbours by amounts that differ far more from turn to turn.

    Each is held against the runs before it and against those after it, and the better of the two
    counts: a new version that slows only some turns begins a pattern, which its later runs share.
    If it slows others each time, its later runs do that, too, and are no more even. A turn without
    a reply says nothing here: that is the agent's doing.
    """
    own = np.where(gaps < CENSORED_MS, gaps, np.nan) - added[:, None]
    off = np.array(
        [
            min(
                _off(own[run], own[max(0, run - NEIGHBOURS) : run]),
                _off(own[run], own[run + 1 : run + 1 + NEIGHBOURS]),
            )
            for run in range(len(own))
        ]
    )
    off[np.isinf(off)] = 0.0
    wide = 2 * NEIGHBOURS + 1
    first = np.clip(np.arange(len(own)) - NEIGHBOURS, 0, max(0, len(own) - wide))
    usual = np.array([np.median(off[at : at + wide]) for at in first])
    return (off > np.maximum(UNEVEN * usual, _EVEN_MS)).tolist()


def _off(run: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """How far in ms a turn of a run is off what it is in the others, on average.

    Infinite where the run and these have too few turns in common.
    """
    told = ~np.isnan(run) & ~np.all(np.isnan(others), axis=0)
    if np.count_nonzero(told) < LEAST_TURNS:
        return np.inf
    apart = run[told] - np.nanmedian(others[:, told], axis=0)
    return float(np.mean(np.minimum(np.abs(apart - np.median(apart)), _FAR_MS)))
