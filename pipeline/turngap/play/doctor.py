"""Is this machine fit to measure and to run the agents: what works, what does not, what to do."""

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turngap.agent.stack import load_stack, resolved, stack_files
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.errors import TurngapError
from turngap.scenario.library import library_dir, library_paths, load_scenarios
from turngap.store.provenance import this_machine

# A packet's worth of time between wake-ups, as the sender's.
_TICKS = 100
_TICK_MS = 10.0
# Wake-ups later than this would show in the figures.
_LATE_MS = 5.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `remedy` is empty where there is nothing to do."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def examine(library: Path | None = None) -> Iterator[Check]:
    """Every check, in order, each as it is done."""
    machine = this_machine()
    yield Check(
        "python", True, f"{machine.python} ({sys.executable.split('/')[-1]}) on {machine.system}"
    )
    yield Check(
        "machine",
        machine.cores >= 2,
        f"{machine.cores} cores, {machine.memory_gib:.0f} GiB, {machine.cpu}",
        "" if machine.cores >= 2 else "caller and agent share one core: gaps will read too long",
    )
    yield asyncio.run(_timers())
    yield _scenarios(library)
    for name in stack_files():
        yield _stack(name)


async def _timers() -> Check:
    clock = MonotonicClock(precise=True)
    late_ms: list[float] = []
    due_ns = clock.now_ns()
    for _ in range(_TICKS):
        due_ns += ms_to_ns(_TICK_MS)
        await clock.sleep_until_ns(due_ns)
        late_ms.append(ns_to_ms(clock.now_ns() - due_ns))
    worst, ok = max(late_ms), max(late_ms) < _LATE_MS
    return Check(
        "timers",
        ok,
        f"woken at most {worst:.2f} ms late in {_TICKS} wake-ups",
        "" if ok else "something else keeps this machine busy; close it before measuring",
    )


def _scenarios(library: Path | None) -> Check:
    try:
        folder = library_dir(library)
        loaded = load_scenarios(library_paths(folder))
    except TurngapError as e:
        return Check("scenarios", False, e.message, e.hint)
    turns = sum(len(s.scenario.turns) for s in loaded)
    return Check("scenarios", True, f"{len(loaded)} with {turns} turns in {folder}")


def _stack(name: str) -> Check:
    try:
        engines = list(resolved(load_stack(name), None))
    except TurngapError as e:
        return Check(f"agent {name}", False, e.message, e.hint)
    return Check(f"agent {name}", True, ", ".join(f"{s.kind} {s.name}" for s, _ in engines))
