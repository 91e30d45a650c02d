"""From a simulated load to the figures that are shown, and to the load that a fleet holds."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from turngap.core.stats import CONFIDENCE, Percentile, Proportion, percentile, proportion
from turngap.fleet.fleet import Fleet, Outcome

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
# The measured time is cut into so many windows. Turns of one window share its queues, so it is
# windows that are independent draws, nearly, and not turns (the method of batch means).
WINDOWS = 20
# The search ends where the load that is held and the one that is not are so close.
RESOLUTION = 1.02
MOST_CALLS = 100_000.0


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One load in figures.

    Attributes:
        calls: calls at once that were asked for; `mean_calls` is how many there were.
        turns: all turns of the measured time, `unanswered` ones among them.
        hit_rate: turns answered within budget of all turns; its interval holds for turns that are
            not independent.
        gap_ms: percentiles of the turn gap; turns without an answer count as slower than any.
        llm_ms: the same of the LLM's share.
        busy: share of the time in which a replica works, in the mean.
        batch: sequences decoded together, in the mean over steps; None without a step.
        cached: share of prompt tokens that the prefix caches spared.
        part_hours: accelerator-hours for 1000 turns; None without turns.
        usd: price of 1000 turns; None with the reason in `why_no_usd`.
    """

    calls: float
    mean_calls: float
    seconds: float
    turns: int
    unanswered: int
    hit_rate: Proportion
    gap_ms: dict[str, Percentile]
    llm_ms: dict[str, Percentile]
    busy: float
    batch: float | None
    cached: float
    part_hours: float | None
    usd: float | None
    why_no_usd: str | None

    def holds(self, target: float) -> bool | None:
        """Whether at least `target` of all turns are in time; None: these turns do not tell."""
        low, high = self.hit_rate.low, self.hit_rate.high
        if low is None or high is None:
            return None
        if low >= target:
            return True
        return False if high < target else None


def figures(fleet: Fleet, calls: float, outcome: Outcome, budget_ms: float) -> LoadFigures:
    """All figures of one load."""
    late = len(outcome.unanswered_s)
    part_hours = usd = None
    why_no_usd = "no accelerator's price is given" if fleet.hour_usd is None else "no turn"
    if outcome.turns:
        hours = outcome.seconds / 3600 * 1000 / outcome.turns
        part_hours = fleet.parts * hours
        if fleet.hour_usd is not None:
            usd = fleet.hour_usd * hours
    return LoadFigures(
        calls=calls,
        mean_calls=outcome.calls,
        seconds=outcome.seconds,
        turns=outcome.turns,
        unanswered=late,
        hit_rate=hit_rate(outcome, budget_ms),
        gap_ms=_percentiles(outcome.gap_ms, late),
        llm_ms=_percentiles(outcome.llm_ms, late),
        busy=outcome.busy,
        batch=outcome.batch,
        cached=outcome.hit,
        part_hours=part_hours,
        usd=usd,
        why_no_usd=None if usd is not None else why_no_usd,
    )


def hit_rate(outcome: Outcome, budget_ms: float) -> Proportion:
    """Turns within budget of all turns.

    The interval is the wider of Wilson's, as if turns were independent, and that of the windows'
    hit rates (a ratio of batch means with Student's t).
    """
    hit = outcome.gap_ms <= budget_ms
    share = proportion(int(hit.sum()), outcome.turns)
    if share.value is None or share.low is None or share.high is None:
        return share
    edges = np.linspace(0, outcome.seconds, WINDOWS + 1)
    hits = np.histogram(outcome.at_s[hit], edges)[0]
    turns = np.histogram(np.concatenate((outcome.at_s, outcome.unanswered_s)), edges)[0]
    spread = float(((hits - share.value * turns) ** 2).sum()) * WINDOWS / (WINDOWS - 1)
    half = float(student.ppf(0.5 + CONFIDENCE / 2, WINDOWS - 1)) * math.sqrt(spread) / outcome.turns
    return Proportion(
        share.hits,
        share.n,
        share.value,
        max(0.0, min(share.low, share.value - half)),
        min(1.0, max(share.high, share.value + half)),
    )


def _percentiles(values: NDArray[np.float64], late: int) -> dict[str, Percentile]:
    ordered = np.sort(values).tolist()  # once: what is in order is quickly put in order again
    return {name: percentile(ordered, q, censored=late) for name, q in PERCENTILES.items()}


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a fleet holds.

    Attributes:
        target: share of turns that have to be in time.
        held: the most calls at which the interval lies above the target; None: not even one.
        not_held: the fewest calls looked at, above `held`, of which that cannot be said; None where
            the search ended at its limit.
    """

    target: float
    held: float | None
    not_held: float | None


def find_capacity(
    evaluate: Callable[[float], LoadFigures], target: float, *, most: float = MOST_CALLS
) -> Capacity:
    """Search for the most calls that a fleet holds: quadruple until it does not, then close in.

    `evaluate` is asked for whole numbers of calls, each one once.
    """
    held: float | None = None
    not_held: float | None = None
    calls = 1.0
    while not_held is None and calls <= most:
        if evaluate(calls).holds(target):
            held, calls = calls, calls * 4
        else:
            not_held = calls
    if held is None or not_held is None:
        return Capacity(target, held, not_held)
    while not_held > held * RESOLUTION and not_held > held + 1:
        middle = float(round(math.sqrt(held * not_held)))
        middle = min(max(middle, held + 1), not_held - 1)
        if evaluate(middle).holds(target):
            held = middle
        else:
            not_held = middle
    return Capacity(target, held, not_held)
