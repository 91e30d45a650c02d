"""From a simulated load to the figures that are shown, and to the load that a fleet holds."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from turngap.core.distributions import student_quantile
from turngap.core.stats import CONFIDENCE, Percentile, Proportion, percentile, proportion
from turngap.fleet.fleet import Fleet, Outcome
from turngap.fleet.record import AgentCpu, Capacity, LoadFigures

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
# The measured time is cut into so many windows. Turns of one window share its queues, so it is
# windows that are independent draws, nearly, and not turns (the method of batch means).
WINDOWS = 20
# The search ends where the load that is held and the one that is not are so close.
RESOLUTION = 1.02
MOST_CALLS = 100_000.0


def figures(
    fleet: Fleet, calls: float, outcome: Outcome, budget_ms: float, target: float
) -> LoadFigures:
    """Make all figures of one load."""
    late = len(outcome.unanswered_s)
    part_hours = usd = None
    why_no_usd = "no accelerator's price is given" if fleet.hour_usd is None else "no turn"
    if outcome.turns:
        hours = outcome.seconds / 3600 * 1000 / outcome.turns
        part_hours = fleet.parts * hours
        if fleet.hour_usd is not None:
            usd = fleet.hour_usd * hours
    share = hit_rate(outcome, budget_ms)
    return LoadFigures(
        calls=calls,
        mean_calls=outcome.calls,
        seconds=outcome.seconds,
        turns=outcome.turns,
        unanswered=late,
        hit_rate=share,
        holds=share.reaches(target),
        gap_ms=_percentiles(outcome.gap_ms, late),
        llm_ms=_percentiles(outcome.llm_ms, late),
        busy=outcome.busy,
        batch=outcome.batch,
        cached=outcome.hit,
        part_hours_per_1000=part_hours,
        usd_per_1000=usd,
        why_no_usd=None if usd is not None else why_no_usd,
    )


def hit_rate(outcome: Outcome, budget_ms: float) -> Proportion:
    """Compute the share of turns within budget.

    The interval is the wider of that of independent turns and that of the windows' hit rates (a
    ratio of batch means with Student's t).
    """
    hit = outcome.gap_ms <= budget_ms
    share = proportion(int(hit.sum()), outcome.turns)
    if share.value is None or share.low is None or share.high is None:
        return share
    edges = np.linspace(0, outcome.seconds, WINDOWS + 1)
    hits = np.histogram(outcome.at_s[hit], edges)[0]
    turns = np.histogram(np.concatenate((outcome.at_s, outcome.unanswered_s)), edges)[0]
    spread = float(((hits - share.value * turns) ** 2).sum()) * WINDOWS / (WINDOWS - 1)
    half = student_quantile(0.5 + CONFIDENCE / 2, WINDOWS - 1) * math.sqrt(spread) / outcome.turns
    return Proportion(
        share.hits,
        share.n,
        share.value,
        max(0.0, min(share.low, share.value - half)),
        min(1.0, max(share.high, share.value + half)),
    )


def _percentiles(values: NDArray[np.float64], late: int) -> dict[str, Percentile]:
    ordered = np.sort(values).tolist()  # once: what is in order is quickly put in order again
    found = {name: percentile(ordered, q, censored=late) for name, q in PERCENTILES.items()}
    # Its interval is that of independent turns, which these are not.
    return {name: Percentile(p.value, why_none=p.why_none) for name, p in found.items()}


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
        if evaluate(calls).hit_rate.reaches(target):
            held, calls = calls, calls * 4
        else:
            not_held = calls
    if held is None or not_held is None:
        return Capacity(held, not_held)
    while not_held > held * RESOLUTION and not_held > held + 1:
        middle = float(round(math.sqrt(held * not_held)))
        middle = min(max(middle, held + 1), not_held - 1)
        if evaluate(middle).hit_rate.reaches(target):
            held = middle
        else:
            not_held = middle
    return Capacity(held, not_held)


def carried(capacity: Capacity, agent: AgentCpu | None) -> Capacity:
    """Limit a capacity to what the agent's machine carries: calls that fill all of its cores."""
    if agent is None or capacity.held is None or capacity.held <= agent.most_calls:
        return capacity
    # 0.3 / 0.1 is a little less than 3.
    most = math.floor(agent.most_calls + 1e-9)
    return Capacity(float(most) if most else None, most + 1.0, of_llm=capacity.held)
