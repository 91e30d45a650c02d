"""Figures of steps, computed from raw turns, and of several steps: the knee and the certainties."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Literal

import numpy as np

from turngap.caller.ear import JITTER_MS
from turngap.core.clusters import SPELL_S, Clusters
from turngap.core.stats import n_needed, percentile, percentile_of, proportion_of
from turngap.load.calls import CallMark
from turngap.load.confirm import NOTHING, Evidence
from turngap.load.schedule import Step, Window
from turngap.load.search import LEAST_SPELLS
from turngap.store.loads import LoadTurn, StepFigures

# A person who waits for less than this for the line, or the end of a greeting, has not noticed.
LATE_START_MS = 50.0
# The number of reasons that are kept for calls that were refused or broke off.
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
    """Compute a step's figures from its turns that count.

    Args:
        step: the step as planned.
        turns: every turn that counts, played or missed.
        budget_ms: the time within which a turn is on time.
        target: the share of turns that must be on time.
        at_once: calls that ran at the same time, on average and at most.
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
        yield_ms=percentile(
            [t.played.yield_ms for t in turns if t.played and t.played.yield_ms is not None], 0.5
        ),
        holes=_holes(turns),
        outcomes=dict(Counter(outcome for turn in turns if (outcome := turn.outcome) is not None)),
        refused=missed_how["refused"],
        late_started=len(
            {t.call for t in turns if t.waited_ms >= LATE_START_MS or t.missed == "late_start"}
        ),
        dropped=len(
            {t.call for t in turns if (t.played and t.played.lost) or t.missed == "dropped"}
        ),
        at_once=at_once,
        caller_late_ms=caller_late_ms,
        waited=sum(turn.outcome == "answered" and not turn.hit(budget_ms) for turn in turns),
        reasons=_reasons(turns),
        not_played=max(0, step.turns - len(turns)),
    )


def cut_short(step: Step, turns: Sequence[LoadTurn]) -> Step:
    """Return the step as measured; if turns that count are missing, it ends with the last one."""
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
    """Return how long a caller waited for the reply; infinite without a whole one.

    An agent that cut in was not quick, and one that broke off has not replied.
    """
    replied = turn.played is not None and turn.played.replied
    return turn.latency_ms if replied and turn.latency_ms is not None else inf


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


def at_once(marks: Sequence[CallMark], window: Window) -> tuple[float, int]:
    """Count the simultaneous calls in the measured window: mean and maximum."""
    running = most = 0
    area, since_s = 0.0, window.warm_up_s
    for mark in [*sorted(marks, key=lambda m: m.at_s), CallMark(0, window.end_s, running=False)]:
        at_s = min(max(mark.at_s, window.warm_up_s), window.end_s)
        if at_s > since_s:
            area, most = area + running * (at_s - since_s), max(most, running)
        since_s = at_s
        running += 1 if mark.running else -1
    return area / window.measured_s, most


def pooled_at_once(steps: Sequence[StepFigures]) -> tuple[float, int] | None:
    """Pool the numbers of simultaneous calls over several steps; None without a step."""
    whole_s = sum(step.seconds for step in steps)
    if not whole_s:
        return None
    mean = sum(step.at_once[0] * step.seconds for step in steps) / whole_s
    return mean, max(step.at_once[1] for step in steps)


def why_void(turns: Sequence[LoadTurn], starved_ms: float, late_ms: float | None) -> str | None:
    """Return why the step is void and does not measure the agent; None if it does.

    A single late packet does not make it void: a turn has a hundred of them, and the kernel stamps
    what arrives while the event loop is late. It can only make a gap read longer, never shorter, so
    no turn is on time because of it.

    Args:
        turns: turns that count.
        starved_ms: how late the caller may be.
        late_ms: p99 of how late the caller was.
    """
    if lost := sorted({turn.why or "" for turn in turns if turn.missed == "worker_lost"}):
        return f"a caller was lost: {lost[0]}"
    if late_ms is not None and late_ms > starved_ms:
        return (
            f"the caller was late by {late_ms:.1f} ms (p99), over {starved_ms:g} ms: it needs a "
            "quieter machine, more processes (--callers) or another machine (--on ray)"
        )
    return None


# The gap grows once its p95 is this many times that of the fewest sessions. With the 60 turns of a
# short step, p95 of an unchanged agent moves by a third between two takes; half as much again is
# beyond that.
KNEE = 1.5
_SHARE = {"p50": 0.5, "p95": 0.95}


def best_steps(steps: Sequence[StepFigures]) -> list[StepFigures]:
    """Return each level's step with the most turns, by sessions; without void ones."""
    best: dict[int, StepFigures] = {}
    for step in steps:
        if step.sessions is None or step.void is not None or not step.turns:
            continue
        if step.sessions not in best or step.turns > best[step.sessions].turns:
            best[step.sessions] = step
    return [best[sessions] for sessions in sorted(best)]


def enough(certified: int | None, steps: Sequence[StepFigures], min_sessions: int) -> bool | None:
    """Return True if `min_sessions` are certified, False if they certainly do not hold, or None."""
    if certified is not None and certified >= min_sessions:
        return True
    # More sessions do not make an agent faster: one that does not hold fewer does not hold these.
    levels = range((certified or 0) + 1, min_sessions + 1)
    for step in steps:
        # A step of a few seconds may be one slow spell.
        long_enough = round(step.seconds / SPELL_S) >= LEAST_SPELLS
        if step.void is None and step.sessions in levels and step.holds is False and long_enough:
            return False
    return None


def knee(steps: Sequence[StepFigures]) -> tuple[StepFigures, StepFigures] | None:
    """Find the last level before the gap grows, and the first after; None if it does not grow."""
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
    """Return a percentile of the gap; None if the step has too few turns for it.

    It is infinite if the step has enough turns, but too few of them were answered.
    """
    value = step.gap_ms[name].value
    if value is None and step.turns >= n_needed(_SHARE[name]):
        return inf
    return value
