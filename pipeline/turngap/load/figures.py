"""The turns of a step in figures: made from raw turns alone, whoever played them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf

import numpy as np

from turngap.caller.ear import JITTER_MS
from turngap.core.clusters import Clusters
from turngap.core.stats import percentile, percentile_of, proportion_of
from turngap.load.confirm import NOTHING, Evidence
from turngap.load.record import LoadTurn, StepFigures
from turngap.load.schedule import Step

# A person who waits for less than this for the line, or the end of a greeting, has not noticed.
LATE_START_MS = 50.0
# So many reasons are kept for calls that were refused or broke off.
MOST_REASONS = 5


def figures_of(
    step: Step,
    turns: Sequence[LoadTurn],
    *,
    budget_ms: float,
    target: float,
    at_once: tuple[float, int],
    caller_late_ms: float | None = None,
) -> StepFigures:
    """Make a step's figures of its turns that count.

    Args:
        step: as it was planned.
        turns: every turn that counts, played or missed.
        budget_ms: a turn is on time within it.
        target: the share that has to be on time.
        at_once: calls that ran at the same time, in the mean and at most.
        caller_late_ms: p99 of how late the caller sent its packets in these turns.
    """
    hits = [turn.hit(budget_ms) for turn in turns]
    latencies = [_waited_ms(turn) for turn in turns]
    clusters = _clusters(turns)
    effective_n = clusters.effective_n_of(np.array(hits), latencies) if turns else 0.0
    hit_rate = proportion_of(hits, clusters, latencies)
    missed = {turn.call: turn.missed for turn in turns if turn.missed is not None}
    missed_how = Counter(missed.values())
    return StepFigures(
        sessions=step.sessions,
        offered_per_s=step.offered_per_s,
        seconds=step.window.measured_s,
        calls=len({turn.call for turn in turns}),
        turns=len(turns),
        hit_rate=hit_rate,
        effective_n=effective_n,
        holds=hit_rate.reaches(target),
        gap_ms={f"p{q}": percentile_of(latencies, clusters, q / 100) for q in (50, 95)},
        yield_ms=percentile(_yields_ms(turns), 0.5),
        holes=_holes(turns),
        outcomes=dict(Counter(outcome for turn in turns if (outcome := turn.outcome) is not None)),
        refused=missed_how["refused"],
        late_started=len({turn.call for turn in turns if _late_start(turn)}),
        dropped=len({turn.call for turn in turns if _broke_off(turn)}),
        at_once=at_once,
        caller_late_ms=caller_late_ms,
        waited=sum(turn.outcome == "answered" and not turn.hit(budget_ms) for turn in turns),
        reasons=_reasons(turns),
        not_played=max(0, step.turns - len(turns)),
    )


def cut_short(step: Step, turns: Sequence[LoadTurn]) -> Step:
    """Return a step as it was measured: where turns that count are missing, until the last one."""
    if len(turns) == step.turns:
        return step
    window = step.window
    until_s = max((turn.due_s for turn in turns), default=window.warm_up_s)
    measured_s = min(window.measured_s, until_s - window.warm_up_s)
    return replace(step, window=replace(window, measured_s=measured_s))


def evidence_so_far(step: Step, turns: Sequence[LoadTurn], budget_ms: float) -> Evidence:
    """Summarise a step's turns for a search while the step is played."""
    turns = [turn for turn in turns if turn.counted]
    if not turns:
        return NOTHING
    hits = np.array([turn.hit(budget_ms) for turn in turns])
    effective_n = _clusters(turns).effective_n_of(hits, [_waited_ms(turn) for turn in turns])
    seconds = cut_short(step, turns).window.measured_s
    return Evidence(len(turns), int(hits.sum()), effective_n, seconds)


def evidence_of(figures: StepFigures) -> Evidence:
    """Summarise a step's figures for a search."""
    return Evidence(
        figures.turns,
        figures.hit_rate.hits,
        figures.effective_n,
        figures.seconds,
        figures.caller_late_ms,
    )


def _clusters(turns: Sequence[LoadTurn]) -> Clusters:
    return Clusters.of_calls([turn.call for turn in turns], [turn.due_s for turn in turns])


def _waited_ms(turn: LoadTurn) -> float:
    """Return how long a caller waited for the reply; infinite without a proper one.

    An agent that cut in was not quick, and one that broke off has not replied.
    """
    replied = turn.played is not None and turn.played.replied
    return turn.latency_ms if replied and turn.latency_ms is not None else inf


def _yields_ms(turns: Sequence[LoadTurn]) -> list[float]:
    played = [turn.played for turn in turns if turn.played is not None]
    return [turn.yield_ms for turn in played if turn.yield_ms is not None]


def _holes(turns: Sequence[LoadTurn]) -> float | None:
    """Return the share of the replies with a hole; None if there was no reply."""
    holes_ms = [t.hole_ms for t in turns if t.hole_ms is not None and t.played and t.played.replied]
    return sum(ms >= JITTER_MS for ms in holes_ms) / len(holes_ms) if holes_ms else None


def _reasons(turns: Sequence[LoadTurn]) -> dict[str, int]:
    """Count the reasons why calls were refused or dropped, most frequent first."""
    why = {t.call: t.why or "" for t in turns if t.missed in ("refused", "dropped")}
    for turn in turns:
        if turn.played is not None and turn.played.lost:
            why.setdefault(turn.call, turn.played.why_no_gap or "the line was lost")
    return dict(Counter(why.values()).most_common(MOST_REASONS))


def _late_start(turn: LoadTurn) -> bool:
    return turn.waited_ms >= LATE_START_MS or turn.missed == "late_start"


def _broke_off(turn: LoadTurn) -> bool:
    lost = turn.played is not None and turn.played.lost
    return lost or turn.missed == "dropped"
