"""Several loads simulated at once, each in a process: the figures are those of one process."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from turngap.core.errors import AgentError, InputError
from turngap.fleet.figures import figures
from turngap.fleet.fleet import Fleet, Load, simulate
from turngap.fleet.record import LoadFigures
from turngap.fleet.workload import Workload
from turngap.workers import Executor, Lost, Tell, Told

# A worker takes as long to start as the turns of one load do. Below so many, one process is faster.
WORTH_TURNS = 50_000.0

# How often a worker tells how far it has come.
STEPS = 100


@dataclass(frozen=True, slots=True)
class LoadTask:
    """One load of a sweep: what `simulate_load` is given.

    Attributes:
        budget_ms, target: see `figures`.
    """

    fleet: Fleet
    workload: Workload
    load: Load
    seed: int
    budget_ms: float
    target: float

    def evaluate(self, on_progress: Callable[[float], None]) -> LoadFigures:
        """Simulate the load; `on_progress` is told the share that is done.

        Raises:
            InputError: the fleet cannot serve such calls.
        """
        outcome = simulate(
            self.fleet, self.workload, self.load, seed=self.seed, on_progress=on_progress
        )
        return figures(self.fleet, self.load.calls, outcome, self.budget_ms, self.target)


@dataclass(frozen=True, slots=True)
class _Refused:
    kind: str
    message: str
    hint: str


def simulate_load(task: LoadTask, tell: Tell) -> None:
    """Simulate a load and tell its share that is done, then its figures: a `Work`."""
    told = 0

    def tell_share(share: float) -> None:
        nonlocal told
        if round(share * STEPS) > told:
            told = round(share * STEPS)
            tell(share)

    try:
        tell(task.evaluate(tell_share))
    except InputError as e:
        tell(_Refused(e.kind, e.message, e.hint))


def sweep(
    tasks: Sequence[LoadTask], on: Executor, on_progress: Callable[[float], None]
) -> list[LoadFigures]:
    """Simulate loads on an executor; return their figures in the same order.

    `on_progress` is told the share that is done of all.

    Raises:
        InputError: the fleet cannot serve such calls.
        AgentError: the workers cannot be started, or one was lost.
    """
    return asyncio.run(_sweep(tasks, on, on_progress))


async def _sweep(
    tasks: Sequence[LoadTask], on: Executor, on_progress: Callable[[float], None]
) -> list[LoadFigures]:
    shares = [0.0] * len(tasks)
    found: dict[int, LoadFigures] = {}
    async with on as workers, aclosing(workers.run(simulate_load, tasks)) as told:
        async for each in told:
            match each:
                case Told(piece, float(share)):
                    shares[piece] = share
                    on_progress(sum(shares) / len(shares))
                case Told(piece, LoadFigures() as load):
                    found[piece] = load
                case Told(_, _Refused(kind, message, hint)):
                    raise InputError(kind, message, hint=hint)
                case Lost(piece, why):
                    raise AgentError(
                        "simulate.lost",
                        f"the simulation of {tasks[piece].load.calls:g} calls broke off: {why}",
                        hint="--workers 1 simulates in one process",
                    )
    return [found[piece] for piece in range(len(tasks))]
