"""How many more sessions an agent holds from several processes than from one.

    python benchmarks/worker_scaling.py [--workers 1 2] [--max-sessions 32] [--rounds 1] [--seed 1]

Searches for the capacity with each number of workers, one after the other in turn, with
`turngap load`: about ten minutes a search, on a machine that does nothing else. Prints each
certificate with its turns, the ratio, and how many cores agent and callers took when the agent took
most, which says what limits it: the callers need cores of the same machine.
"""

import argparse
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil
from endings import errors_told

import turngap

LOOK_S = 5.0
# Of a core, or of all: what is above cannot be had, as the system needs some.
ALL_OF_IT = 0.9


@dataclass(frozen=True, slots=True)
class Cores:
    """What was taken over `LOOK_S`: by the agent in all, its busiest process, and all others."""

    agent: float = 0.0
    busiest: float = 0.0
    callers: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """What one search came to."""

    workers: int
    sessions: int | None
    turns: int
    low: float | None
    most: Cores
    why: str | None


@dataclass
class _Watch:
    """Looks at the CPU time of this process and its children, and keeps the busiest look."""

    most: Cores = field(default_factory=Cores)
    before: dict[int, float] = field(default_factory=dict[int, float])

    def look(self) -> None:
        took: dict[bool, list[float]] = {True: [], False: []}
        now: dict[int, float] = {}
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                now[process.pid] = times.user + times.system
                spent_s = now[process.pid] - self.before.get(process.pid, now[process.pid])
                took["serve" in process.cmdline()].append(spent_s / LOOK_S)
        self.before = now
        agent = took[True]
        seen = Cores(sum(agent), max(agent, default=0.0), sum(took[False]))
        self.most = max(self.most, seen, key=lambda cores: cores.agent)


@contextmanager
def watching() -> Iterator[_Watch]:
    watch, done = _Watch(), threading.Event()

    def look() -> None:
        while not done.wait(LOOK_S):
            watch.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        done.set()
        thread.join()


def searched(workers: int, most: int, seed: int) -> Found:
    with watching() as watch:
        loaded = turngap.load("embedded", agent_workers=workers, max_sessions=most, seed=seed)
    capacity = loaded.capacity
    turns = sum(step.turns for step in loaded.record.steps)
    if capacity is None:
        return Found(workers, None, turns, None, watch.most, loaded.record.failure)
    return Found(workers, capacity.sessions, turns, capacity.low, watch.most, capacity.why)


def shown(found: Found) -> str:
    held = "none" if found.sessions is None else str(found.sessions)
    low = "" if found.low is None else f"{found.low:.1%}"
    cores = found.most
    row = f"{found.workers:>7}{held:>10}{found.turns:>8}{low:>9}"
    return f"{row}{cores.agent:>8.2f}{cores.busiest:>9.2f}{cores.callers:>9.2f}  {found.why or ''}"


def limit_of(cores: Cores, all_cores: int) -> str:
    """What was used up when the agent took most, in words."""
    used = f"agent {cores.agent:.2f} and callers {cores.callers:.2f} of {all_cores} cores"
    if cores.agent + cores.callers >= ALL_OF_IT * all_cores:
        return f"the machine's cores, which the callers share ({used})"
    if cores.busiest >= ALL_OF_IT:
        return f"the core of the busiest process ({cores.busiest:.2f}; {used})"
    return f"neither the machine's cores nor that of a process ({used})"


def compared(found: list[Found], all_cores: int) -> list[str]:
    """The ratios to the fewest workers, with their n, and what limits each."""
    fewest = min(each.workers for each in found)
    lines: list[str] = []
    for workers in sorted({each.workers for each in found}):
        mine = [each for each in found if each.workers == workers]
        base = [each.sessions for each in found if each.workers == fewest]
        held = [each.sessions for each in mine]
        busiest = max((each.most for each in mine), key=lambda cores: cores.agent)
        limit = f"limited by {limit_of(busiest, all_cores)}"
        if workers != fewest and None not in (*held, *base):
            ratio = sum(s or 0 for s in held) / max(1, sum(s or 0 for s in base))
            n = f"n = {len(mine)} searches" if len(mine) != 1 else "n = 1 search"
            lines.append(
                f"{workers} workers hold {ratio:.2f} times the sessions of {fewest} ({n} each)"
            )
        lines.append(f"{workers} workers: {limit}" if workers != 1 else f"1 worker: {limit}")
    return lines


def measure(levels: list[int], most: int, rounds: int, seed: int) -> None:
    found: list[Found] = []
    print("workers  sessions   turns   at least   agent  busiest  callers  (cores)")
    for number in range(rounds):
        for workers in levels if number % 2 == 0 else reversed(levels):
            found.append(searched(workers, most, seed + number))
            print(shown(found[-1]), flush=True)
    print("\n".join(compared(found, psutil.cpu_count() or 1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--max-sessions", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with errors_told():
        measure(asked.workers, asked.max_sessions, asked.rounds, asked.seed)


if __name__ == "__main__":
    main()
