"""Which stage moved: what explains a verdict, and makes none."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from turngap.core.paired import Exchanges, shift, tail, typical
from turngap.core.pairs import TOLERANCE_MS, Limits, Pair
from turngap.core.stats import n_needed

# Over all stages together. More than the verdict itself is allowed, since it only explains one.
STAGE_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class StageShift:
    """How a stage moved.

    Attributes:
        shift_ms: of the typical turn.
        slowed: in how many turns more it took long (half the p95 limit) over its pair than under.
        moved: whether it grew, in the bulk or in the tail, beyond chance.
    """

    name: str
    n: int
    shift_ms: float
    slowed: int
    p_value: float
    moved: bool


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
