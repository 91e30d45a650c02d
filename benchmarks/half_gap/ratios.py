"""Ratios of one agent's gap to another's, over the same turns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turngap.core.budget import WITHOUT_GAP
from turngap.core.paired import Floats, Pair, Reading, exchanges, resampled_quantiles
from turngap.core.stats import CONFIDENCE, n_needed


@dataclass(frozen=True, slots=True)
class Ratio:
    """Candidate's percentile of the gap by reference's; `value` is None for `why_none`.

    `low` and `high` bound it with 95 % confidence, from resamples of whole conversations; either is
    None where that resample has turns without a reply at the percentile. `n` counts the pairs.
    """

    n: int
    value: float | None
    low: float | None = None
    high: float | None = None
    why_none: str | None = None


def gap_ratio(pairs: Sequence[Pair], q: float, seed: int = 0) -> Ratio:
    """Compute the ratio of the `q` quantiles (0 < q < 1) over pairs that were both due a reply.

    A turn without a reply counts as slower than all others.
    """
    counted = [p for p in pairs if _counts(p.reference) and _counts(p.candidate)]
    if len(counted) < n_needed(q):
        return Ratio(len(counted), None, why_none=f"n={len(counted)}, needs {n_needed(q)}")
    drawn = exchanges([p.conversation for p in counted], np.random.default_rng(seed))
    ours, theirs = _gaps([p.candidate for p in counted]), _gaps([p.reference for p in counted])
    mine, their = _quantile(ours, q), _quantile(theirs, q)
    if not (np.isfinite(mine) and np.isfinite(their) and their > 0):
        return Ratio(len(counted), None, why_none="too many turns without a reply")
    with np.errstate(invalid="ignore", divide="ignore"):
        resampled = resampled_quantiles(ours, q, drawn) / resampled_quantiles(theirs, q, drawn)
    resampled = np.sort(np.where(np.isnan(resampled), np.inf, resampled))
    tail = (1 - CONFIDENCE) / 2
    low, high = (resampled[int(at * (len(resampled) - 1))] for at in (tail, 1 - tail))
    return Ratio(len(counted), mine / their, _finite(low), _finite(high))


def _counts(reading: Reading) -> bool:
    return reading.outcome not in WITHOUT_GAP


def _gaps(readings: Sequence[Reading]) -> Floats:
    return np.array([np.inf if r.gap_ms is None else r.gap_ms for r in readings])


def _quantile(values: Floats, q: float) -> float:
    """Return the `q` quantile, by the same rule as `resampled_quantiles`."""
    return float(np.sort(values)[int(np.ceil(q * len(values) - 1e-9)) - 1])


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
