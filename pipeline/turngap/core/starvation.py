"""Lateness of the caller itself: how often, with which of two agents, and by how much.

A gap may read long by the caller's own lateness (`PacingRecord.error_ms`). So each statement about
two agents uses the end of that range that supports it least (`Reading.at_best`). Lateness on one
side, or in too many turns, forbids any statement. docs/methodology.md, "A starved caller", says why
no turn is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from turngap.core.paired import TOLERANCE_MS, Exchanges, Pair, Reading, tail
from turngap.core.results import Turn

# However much of a typical pair is in doubt, it counts for one limit in p50's balance: a quarter of
# them moves p50's bounds by at most a third of the limit (0.25 / 0.75), and what is left still
# decides. A quiet shared machine with two cores stalled in 5 of 72 turns; beside a build it
# did in most.
MAX_STARVED_PAIRS = 0.25
# Two-sided, that it was chance with which of the two agents the caller was late.
ONE_SIDED_ALPHA = 0.01


def reading_of(turn: Turn) -> Reading:
    """Read the values that a comparison needs from a stored turn."""
    pacing = turn.pacing
    return Reading(
        turn.outcome, turn.gap_ms, turn.stage_ms, turn.budget_ms, pacing.error_ms, pacing.starved
    )


@dataclass(frozen=True, slots=True)
class Starvation:
    """The number of turns in which the caller was starved, and with which agent it was late.

    Attributes:
        pairs: pairs, out of `of`, in which it was starved on either side.
        reference, candidate: turns of each side in which it was starved.
        error_ms: by how much one of these gaps may at most read long.
        p_value: chance of a difference this large between the sides' lateness, by exchanging whole
            conversations; 1 if the caller was never later by more than 3 ms.
        reference_ms, candidate_ms: by how much a typical turn's gap may read long on each side.
    """

    pairs: int
    of: int
    reference: int
    candidate: int
    error_ms: float
    p_value: float
    reference_ms: float = 0.0
    candidate_ms: float = 0.0

    @property
    def why_not_judged(self) -> str | None:
        """Return why starvation makes the comparison invalid; None if it is valid."""
        return self.why_not("reference", "candidate")

    def why_not(self, reference: str, candidate: str) -> str | None:
        """Return why the comparison is invalid, naming the two sides; None if it is valid."""
        no_chance = self.p_value <= ONE_SIDED_ALPHA
        if no_chance or abs(self.candidate_ms - self.reference_ms) > TOLERANCE_MS:
            ours = (self.candidate, self.candidate_ms, candidate)
            theirs = (self.reference, self.reference_ms, reference)
            (more, late_ms, beside), (fewer, less_ms, other) = sorted((ours, theirs), reverse=True)
            sure = f", which is no chance (p = {self.p_value:.2g})" if no_chance else ""
            return (
                f"the caller was starved in {more} turns of the {beside} and in {fewer} of the "
                f"{other}, and in the typical turn up to {late_ms:.1f} and {less_ms:.1f} ms "
                f"late{sure}: the {beside} takes the processor that the caller needs"
            )
        if self.pairs > MAX_STARVED_PAIRS * self.of:
            return f"the caller was starved in {self.pairs} of {self.of} pairs of turns"
        return None


def starvation_of(pairs: Sequence[Pair], swaps: Exchanges) -> Starvation:
    """Count the starved turns; `swaps` are the exchanges of all of `pairs`.

    The test on the sides is exact: it asks how many exchanges of whole conversations make the
    caller at least as much later on one side. It counts lateness over 3 ms, up to 12 ms a turn. It
    is thus a sign test if the caller stood still in one turn of each conversation.
    """
    candidate = np.array([p.candidate.caller_error_ms for p in pairs], dtype=np.float64)
    reference = np.array([p.reference.caller_error_ms for p in pairs], dtype=np.float64)
    later = tail(2 * TOLERANCE_MS)(candidate - reference)
    p_value = 1.0
    if np.any(later):
        p_value = min(1.0, 2 * float(min(swaps.p_value(later), swaps.p_value(-later))))
    starved = [r for p in pairs for r in (p.reference, p.candidate) if r.starved]
    return Starvation(
        pairs=sum(p.starved for p in pairs),
        of=len(pairs),
        reference=sum(p.reference.starved for p in pairs),
        candidate=sum(p.candidate.starved for p in pairs),
        error_ms=max((r.caller_error_ms for r in starved), default=0.0),
        p_value=p_value,
        reference_ms=median(reference.tolist()) if pairs else 0.0,
        candidate_ms=median(candidate.tolist()) if pairs else 0.0,
    )
