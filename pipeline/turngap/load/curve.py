"""What is drawn of a load test: one step for each level, and where the gap begins to grow."""

from collections.abc import Sequence
from math import inf
from typing import Literal

from turngap.core.clusters import SPELL_S
from turngap.core.stats import n_needed
from turngap.load.record import StepFigures
from turngap.load.search import LEAST_SPELLS

# The gap grows once its p95 is so many times that of the fewest sessions. With the 60 turns of a
# short step, p95 of an unchanged agent moves by a third between two takes; half as much again is
# beyond that.
KNEE = 1.5
_SHARE = {"p50": 0.5, "p95": 0.95}


def best_steps(steps: Sequence[StepFigures]) -> list[StepFigures]:
    """Each level's step with the most turns, the fewest sessions first; without void ones."""
    best: dict[int, StepFigures] = {}
    for step in steps:
        if step.sessions is None or step.void is not None or not step.turns:
            continue
        if step.sessions not in best or step.turns > best[step.sessions].turns:
            best[step.sessions] = step
    return [best[sessions] for sessions in sorted(best)]


def surely_not_held(step: StepFigures) -> bool:
    """Return whether the step proves a failure: one of a few seconds may be one slow spell."""
    return step.holds is False and round(step.seconds / SPELL_S) >= LEAST_SPELLS


def enough(certified: int | None, steps: Sequence[StepFigures], min_sessions: int) -> bool | None:
    """Return whether this many sessions are certified; False if they surely do not hold."""
    if certified is not None and certified >= min_sessions:
        return True
    # More sessions do not make an agent faster: who does not hold fewer does not hold these.
    asked = range((certified or 0) + 1, min_sessions + 1)
    told = [step for step in steps if step.void is None and step.sessions in asked]
    return False if any(surely_not_held(step) for step in told) else None


def knee(steps: Sequence[StepFigures]) -> tuple[StepFigures, StepFigures] | None:
    """Find the last level before the gap grows, and the first after; None if it does not."""
    before: StepFigures | None = None
    first: float | None = None
    for step in best_steps(steps):
        p95 = gap_ms(step, "p95")
        if p95 is None:
            continue
        if first is None:
            first = p95
        elif before is not None and first < inf and p95 > KNEE * first:
            return before, step
        before = step
    return None


def gap_ms(step: StepFigures, name: Literal["p50", "p95"]) -> float | None:
    """Return a percentile of the gap; infinite if too few turns were answered for it.

    Return None if there were too few turns for it, answered or not.
    """
    value = step.gap_ms[name].value
    if value is None and step.turns >= n_needed(_SHARE[name]):
        return inf
    return value
