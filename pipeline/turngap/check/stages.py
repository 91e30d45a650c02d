"""Which stage moved: what explains a verdict, and makes none."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from turngap.check.record import StageShift
from turngap.core.paired import TOLERANCE_MS, Exchanges, Limits, Pair, shift, tail, typical
from turngap.core.stats import n_needed

# Over all stages together. More than the verdict itself is allowed, since it only explains one.
STAGE_ALPHA = 0.05


def stage_shifts(pairs: Sequence[Pair], limits: Limits, swaps: Exchanges) -> tuple[StageShift, ...]:
    """Each stage's shift, and by Holm over the stages whether it grew."""
    names = dict.fromkeys(name for p in pairs for name in p.reference.stages)
    shifts = [s for s in (_stage_shift(name, pairs, limits, swaps) for name in names) if s]
    grown: set[str] = set()
    for rank, stage in enumerate(sorted(shifts, key=lambda s: s.p_value)):
        if stage.p_value > STAGE_ALPHA / (len(shifts) - rank):
            break
        grown.add(stage.name)
    return tuple(replace(s, moved=s.name in grown) for s in shifts)


def _stage_shift(
    name: str, pairs: Sequence[Pair], limits: Limits, swaps: Exchanges
) -> StageShift | None:
    known = np.array([name in p.reference.stages and name in p.candidate.stages for p in pairs])
    both = [p for p, has in zip(pairs, known, strict=True) if has]
    if len(both) < n_needed(0.5):
        return None
    moved = np.array([p.candidate.stages[name] - p.reference.stages[name] for p in both])
    swaps = swaps.of(known)
    bulk = swaps.p_value(typical(limits.p50_ms, TOLERANCE_MS)(moved))
    far = swaps.p_value(tail(limits.p95_ms)(moved))
    long = limits.p95_ms / 2
    return StageShift(
        name=name,
        n=len(both),
        shift_ms=shift(moved, limits.p50_ms),
        slowed=int(np.sum(moved > long)) - int(np.sum(moved < -long)),
        p_value=min(1.0, 2 * min(bulk, far)),
        moved=False,
    )
