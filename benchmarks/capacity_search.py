"""Measure how often the search for the most sessions finds it, its length and its errors.

    python benchmarks/capacity_search.py --trials 200
    python benchmarks/capacity_search.py --only errors --trials 1000

All of it is played in virtual time, by the schedule, the dialling, the counting and the search of
`turngap load`. `trials`: against an agent of known capacity. `closed`: the same agents, as callers
in a closed loop see them. `errors`: made-up turns of levels that do not hold, linked by their call
or by the time. `stalls`: the same where all that is late is so in rare stalls.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from capacity_agent import (
    PACE,
    Limit,
    Trial,
    held_closed_loop,
    held_open_loop,
    on_time,
    searched,
)
from numpy.typing import NDArray
from scipy.special import ndtri

from turngap.core.clusters import Clusters
from turngap.load.confirm import Evidence
from turngap.load.search import Probe, Search

CAPACITY = 12
LIMITS: tuple[Limit, ...] = ("slows", "refuses", "queues")
LEVELS = (12, 13, 14, 16, 24)
HELD_TURNS = 400
CALL_TURNS = 5
MISSED = 0.0501
STALLED = 0.06
STALLS_S = (0.5, 1.0, 2.0, 4.0, 8.0)
MOST = (4, 8, 32)


def show_trials(trials: int) -> None:
    print(f"agent of {CAPACITY} sessions, {trials} searches; turn every {PACE.turn_s:.1f} s")
    print("| beyond them it | found | turns | minutes, p50 and p90 | CPU s a search |")
    print("| --- | --- | --- | --- | --- |")
    for limit in LIMITS:
        begun = time.process_time()
        made = [searched(CAPACITY, seed, limit) for seed in range(1, trials + 1)]
        cpu_s = (time.process_time() - begun) / trials
        print(f"| {limit} | {_found(made)} | {_cost(made)} | {cpu_s:.2f} |")


def _found(trials: Sequence[Trial]) -> str:
    found = Counter(trial.sessions for trial in trials)
    return ", ".join(f"{level or 'none'}: {n}" for level, n in found.most_common())


def _cost(trials: Sequence[Trial]) -> str:
    turns = np.mean([trial.turns for trial in trials])
    half, most = np.quantile([trial.seconds / 60 for trial in trials], [0.5, 0.9])
    return f"{turns:.0f} | {half:.1f}, {most:.1f}"


def show_closed() -> None:
    print(f"share of turns on time, agent of {CAPACITY} sessions, n = {HELD_TURNS} in each cell")
    print("| sessions | " + " | ".join(f"{limit}: ours | closed loop" for limit in LIMITS) + " |")
    print("| --- |" + " --- | --- |" * len(LIMITS))
    for level in LEVELS:
        cells: list[str] = []
        for limit in LIMITS:
            probe = Probe(level, HELD_TURNS, confirms=False)
            ours = held_open_loop(CAPACITY, limit, probe, 1)
            seconds = HELD_TURNS * PACE.turn_s / min(level, CAPACITY)
            theirs = held_closed_loop(CAPACITY, limit, level, seconds, 1)
            cells += [f"{ours.hit_rate.value or 0:.1%}", f"{on_time(theirs):.1%}"]
        print(f"| {level} | " + " | ".join(cells) + " |")


# Searches among levels that do not hold: what they certify is a mistake.


def show_errors(trials: int) -> None:
    """Gaps are normal, of which calls and spells of time share a part (their correlation)."""
    cases = [(0.0, 0.0, 4.0), (0.3, 0.0, 4.0), (0.0, 0.3, 4.0), (0.3, 0.3, 4.0)]
    cases += [(0.0, 0.3, 10.0), (0.0, 0.3, 20.0)]
    print(f"searches of 100 that certify a level with {MISSED:.1%} late, n = {trials} each")
    print("| correlation: call, spell | spell | no level holds | 8 hold | found 8 |")
    print("| --- | --- | --- | --- | --- |")
    for case in cases:
        calls, spells, spell_s = case
        random = np.random.default_rng(1)

        def step(probe: Probe, late: float) -> Evidence:
            return _linked(random, probe, late, case)  # noqa: B023

        none = [_certified(step, lambda _: MISSED) for _ in range(trials)]
        some = [_certified(step, _late_above_8) for _ in range(trials)]
        wrong, above = np.mean([n > 0 for n in none]), np.mean([n > 8 for n in some])
        right = np.mean([n == 8 for n in some])
        print(f"| {calls}, {spells} | {spell_s:g} s | {wrong:.1%} | {above:.1%} | {right:.0%} |")


def _late_above_8(sessions: int) -> float:
    return 0.01 if sessions <= 8 else MISSED if sessions == 9 else 0.5


def _certified(
    step: Callable[[Probe, float], Evidence], late: Callable[[int], float], highest: int = 32
) -> int:
    search = Search(highest, PACE)
    while (probe := search.next()) is not None:
        search.observe(probe, step(probe, late(probe.sessions)))
    return search.certificate().sessions or 0


def _linked(
    random: np.random.Generator, probe: Probe, late: float, case: tuple[float, float, float]
) -> Evidence:
    calls, spells, spell_s = case
    turns = np.arange(probe.turns)
    number, line = np.divmod(turns, probe.sessions)
    call = line * 1000 + (number + line) // CALL_TURNS
    at_s = turns / probe.sessions * PACE.turn_s
    spell = np.floor((at_s + random.uniform(0, spell_s)) / spell_s).astype(np.intp)

    def shared(kind: NDArray[np.intp], part: float) -> NDArray[np.float64]:
        return part**0.5 * random.standard_normal(int(kind.max()) + 1)[kind]

    own = (1 - calls - spells) ** 0.5 * random.standard_normal(len(turns))
    gaps = shared(call, calls) + shared(spell, spells) + own
    hits = gaps <= ndtri(1 - late)
    clusters = Clusters.of_calls(call.tolist(), at_s.tolist())
    effective_n = clusters.effective_n_of(hits, gaps.tolist())
    return Evidence(probe.turns, int(hits.sum()), effective_n, PACE.measured_s(probe))


# Rare stalls: all turns that end in one are late, and nothing else shows of it.


def show_stalls(trials: int) -> None:
    """At every level the agent stalls for more of the time than may be late: none holds."""
    print(f"searches of 100 that certify a level with {STALLED:.0%} late in stalls, n = {trials}")
    print("| a stall of | once in | " + " | ".join(f"up to {n}" for n in MOST) + " |")
    print("| --- | --- |" + " --- |" * len(MOST))
    for stall_s in STALLS_S:
        cells = [f"{np.mean(stalled_errors(stall_s, most, trials)):.1%}" for most in MOST]
        print(f"| {stall_s:g} s | {stall_s / STALLED:.0f} s | {' | '.join(cells)} |")


def stalled_errors(stall_s: float, highest: int, trials: int, seed: int = 1) -> list[bool]:
    """Check for each search whether it certifies a level though none holds."""
    random = np.random.default_rng(seed)
    return [
        _certified(lambda probe, _: stalled_step(random, probe, stall_s), lambda _: 0, highest) > 0
        for _ in range(trials)
    ]


def stalled_step(random: np.random.Generator, probe: Probe, stall_s: float) -> Evidence:
    """Play a step of an agent that stalls by chance, `STALLED` of all time; else it is quick."""
    turns, seconds = np.arange(probe.turns), PACE.measured_s(probe)
    number, line = np.divmod(turns, probe.sessions)
    call = line * 1000 + (number + line) // CALL_TURNS
    at_s = (turns + random.random(probe.turns)) / probe.sessions * PACE.turn_s
    between_s = stall_s * (1 / STALLED - 1)
    begins = np.cumsum(random.exponential(between_s, 20 + int(3 * seconds / between_s)) + stall_s)
    # The first one may have begun before the step.
    begins -= stall_s + (stall_s * random.random() + begins[0] if random.random() < STALLED else 0)
    since = at_s - np.concatenate(([-np.inf], begins))[np.searchsorted(begins, at_s, "right")]
    gaps = np.where(since < stall_s, 1500.0, 420 + 60 * random.standard_normal(probe.turns))
    hits = gaps <= 800
    clusters = Clusters.of_calls(call.tolist(), at_s.tolist())
    return Evidence(
        probe.turns, int(hits.sum()), clusters.effective_n_of(hits, gaps.tolist()), seconds
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--only", choices=["trials", "closed", "errors", "stalls"])
    asked = parser.parse_args()
    shown: dict[str, Callable[[], None]] = {
        "trials": lambda: show_trials(asked.trials),
        "closed": show_closed,
        "errors": lambda: show_errors(asked.trials),
        "stalls": lambda: show_stalls(asked.trials),
    }
    for name in [asked.only] if asked.only else list(shown):
        shown[name]()
        print()


if __name__ == "__main__":
    main()
