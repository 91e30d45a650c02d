"""Pairs in which the caller itself was late: how many a comparison bears, and on which side.

Each verdict holds whatever the caller's lateness did to those turns (`Pair.in_doubt_for`,
`Pair.in_doubt_against`); docs/methodology.md, "A starved caller", says why none is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turngap.core.paired import Exchanges
from turngap.core.pairs import Pair

# However much of a typical pair is in doubt, it counts for one limit in p50's balance: a quarter of
# them moves p50's bounds by at most a third of the limit (0.25 / 0.75), and what is left still
# decides. A quiet shared machine with two cores stalled in 5 of 72 turns; a build beside the caller
# does in most.
MAX_STARVED_PAIRS = 0.25
# Two-sided, that it was chance which of the two agents the caller was starved beside.
ONE_SIDED_ALPHA = 0.01


@dataclass(frozen=True, slots=True)
class Starvation:
    """How often the caller was starved, and beside whom.

    Attributes:
        pairs: pairs in which it was, on either side, of `of`.
        reference, candidate: turns of either side in which it was.
        error_ms: by how much one of these gaps may at most read long.
        p_value: of its having been chance which side they are on, conversations exchanged whole;
            1 without any.
    """

    pairs: int
    of: int
    reference: int
    candidate: int
    error_ms: float
    p_value: float

    @property
    def why_not_judged(self) -> str | None:
        """Why a comparison does not bear it; None where it does."""
        if self.p_value <= ONE_SIDED_ALPHA:
            sides = [(self.candidate, "candidate"), (self.reference, "reference")]
            (more, beside), (fewer, other) = sorted(sides, reverse=True)
            return (
                f"the caller was starved in {more} turns of the {beside} and in {fewer} of the "
                f"{other}, which is no chance (p = {self.p_value:.2g}): the {beside} takes the "
                "processor that the caller needs"
            )
        if self.pairs > MAX_STARVED_PAIRS * self.of:
            return f"the caller was starved in {self.pairs} of {self.of} pairs of turns"
        return None


def starvation_of(pairs: Sequence[Pair], swaps: Exchanges) -> Starvation:
    """Count it; `swaps` are the exchanges of all of `pairs`.

    The test on the sides is exact: it asks how many exchanges of whole conversations put at least
    as many more of the starved turns on one side (a sign test, if each lies in another one).
    """
    candidate = np.array([p.candidate.starved for p in pairs], dtype=np.float64)
    reference = np.array([p.reference.starved for p in pairs], dtype=np.float64)
    more = candidate - reference
    p_value = 1.0
    if np.any(more):
        p_value = min(1.0, 2 * float(min(swaps.p_value(more), swaps.p_value(-more))))
    errors = [r.caller_error_ms for p in pairs for r in (p.reference, p.candidate)]
    return Starvation(
        pairs=sum(p.starved for p in pairs),
        of=len(pairs),
        reference=int(reference.sum()),
        candidate=int(candidate.sum()),
        error_ms=max(errors, default=0.0),
        p_value=p_value,
    )
