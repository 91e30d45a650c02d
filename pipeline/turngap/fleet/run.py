"""Simulations of many calls at once on a fleet, and what the fleet does to their turn gap."""

import asyncio
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turngap.core import __version__
from turngap.core.errors import AgentError, InconclusiveError, InputError
from turngap.core.stats import (
    CONFIDENCE,
    Percentile,
    Proportion,
    percentile,
    proportion,
    student_quantile,
)
from turngap.fleet.files import CallTable, TurnTable
from turngap.fleet.fleet import DRAIN_S, Fleet, Load, Outcome, Pool, idle_turn_ms, simulate
from turngap.fleet.workload import TurnSample, Workload, measured_turns
from turngap.inference.server import PS_PER_S, StepCosts
from turngap.store.documents import git_commit, this_machine, write_document
from turngap.store.folders import new_folder, utc_now
from turngap.store.loads import (
    SIMULATION_FILE,
    AgentCpu,
    Capacity,
    LoadFigures,
    PoolRecord,
    SimulationRecord,
    WorkloadRecord,
)
from turngap.store.runs import Run
from turngap.workers import executor
from turngap.workers.pool import Executor, Lost, OnResult, Result

PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
# The measured time is cut into this many windows. Turns of one window share its queues, so it is
# windows that are independent draws, nearly, and not turns (the method of batch means).
WINDOWS = 20
# The search ends where the load that is held and the one that is not are so close.
RESOLUTION = 1.02
MOST_CALLS = 100_000.0


def figures(
    fleet: Fleet, calls: float, outcome: Outcome, budget_ms: float, target: float
) -> LoadFigures:
    """Compute all figures of one load."""
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

    The interval is the wider of two: that of independent turns, and that of the windows' hit rates
    (a ratio of batch means with Student's t).
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
    """Search for the most calls that a fleet holds: quadruple them until too many, then close in.

    `evaluate` receives whole numbers of calls, each one once.
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
    """Limit a capacity to the calls that fill all cores of the agent's machine."""
    if agent is None or capacity.held is None or capacity.held <= agent.most_calls:
        return capacity
    # 0.3 / 0.1 is a little less than 3.
    most = math.floor(agent.most_calls + 1e-9)
    return Capacity(float(most) if most else None, most + 1.0, of_llm=capacity.held)


# A worker takes as long to start as the turns of one load do. Below this, one process is faster.
WORTH_TURNS = 50_000.0

# The number of times that a worker reports its progress.
STEPS = 100


@dataclass(frozen=True, slots=True)
class LoadTask:
    """One load of a sweep: the input of `simulate_load`.

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
        """Simulate the load; `on_progress` receives the share that is done.

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


def simulate_load(task: LoadTask, tell: OnResult) -> None:
    """Simulate a load and report the share that is done, then the figures: a `Work`."""
    reported = 0

    def tell_share(share: float) -> None:
        nonlocal reported
        if round(share * STEPS) > reported:
            reported = round(share * STEPS)
            tell(share)

    try:
        tell(task.evaluate(tell_share))
    except InputError as e:
        tell(_Refused(e.kind, e.message, e.hint))


def sweep(
    tasks: Sequence[LoadTask], on: Executor, on_progress: Callable[[float], None]
) -> list[LoadFigures]:
    """Simulate loads on an executor; return their figures in the same order.

    `on_progress` receives the share of all that is done.

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
    async with on as workers, aclosing(workers.run(simulate_load, tasks)) as reports:
        async for each in reports:
            match each:
                case Result(piece, float(share)):
                    shares[piece] = share
                    on_progress(sum(shares) / len(shares))
                case Result(piece, LoadFigures() as load):
                    found[piece] = load
                case Result(_, _Refused(kind, message, hint)):
                    raise InputError(kind, message, hint=hint)
                case Lost(piece, why):
                    raise AgentError(
                        "simulate.lost",
                        f"the simulation of {tasks[piece].load.calls:g} calls broke off: {why}",
                        hint="--workers 1 simulates in one process",
                    )
    return [found[piece] for piece in range(len(tasks))]


# A load is by default measured over as many turns as give the hit rate to +-0.3 %, within these
# bounds.
TURNS = 20_000
LEAST_S, MOST_S = 300.0, 1800.0
# However short a time is asked for: of fewer turns, all of them in time, 99 % is not sure.
LEAST_TURNS = 400
# Fewer measured turns do not show how turns differ.
LEAST_SAMPLES = 5

SAMPLE_FIELDS = tuple(field.name for field in fields(TurnSample))


@dataclass(frozen=True, slots=True)
class Source:
    """Turns to draw from, and their origin.

    Attributes:
        system_tokens, turns: figures of the measured calls; None if not known.
    """

    samples: tuple[TurnSample, ...]
    runs: tuple[str, ...] = ()
    left_out: Mapping[str, int] | None = None
    system_tokens: int | None = None
    turns: float | None = None


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """A plan of what to simulate.

    Attributes:
        loads: simultaneous calls, one load after another; empty to search for the capacity.
        seconds: virtual time to measure each load over, longer if fewer than `LEAST_TURNS` turns
            fit; None for as long as `TURNS` need.
        agent: the machine that carries the agent; None for any load.
        workers: how many loads are simulated at once; None for one a processor if that is faster.
        executor: where the workers are, `local` or `ray`; `ray_address`: see `RayWorkers`.
        settings: stored with the record.
    """

    fleet: Fleet
    workload: Workload
    source: Source
    loads: Sequence[float] = ()
    budget_ms: float = 800.0
    target: float = 0.95
    seconds: float | None = None
    most_calls: float = MOST_CALLS
    seed: int = 1
    agent: AgentCpu | None = None
    out: Path | None = None
    workers: int | None = None
    executor: str = "local"
    ray_address: str | None = None
    settings: Mapping[str, Any] | None = None

    @property
    def turn_s(self) -> float:
        """Return the mean length of a turn with an idle LLM."""
        return (self.workload.mean_turn_ms + idle_turn_ms(self.fleet, self.workload)) / 1000

    def load(self, calls: float) -> Load:
        """Build the load of this many calls, with the time over which it is measured."""
        seconds = self.seconds or min(MOST_S, max(LEAST_S, TURNS * self.turn_s / calls))
        return Load(calls, max(seconds, LEAST_TURNS * self.turn_s / calls))

    def task(self, calls: float) -> LoadTask:
        """Build the task that measures this load, with everything that its figures need."""
        load = self.load(calls)
        return LoadTask(self.fleet, self.workload, load, self.seed, self.budget_ms, self.target)

    def carried(self, found: LoadFigures) -> LoadFigures:
        """Mark the load's figures as not held if the agent's machine cannot carry it."""
        if self.agent is not None and found.calls > self.agent.most_calls:
            return replace(found, holds=False)
        return found

    def executor_of_sweep(self) -> Executor | None:
        """Choose the executor of several loads; None if this process is the better place.

        Raises:
            InputError: there is no such executor, or Ray is not installed.
        """
        if self.executor != "local":
            return executor(self.executor, self.workers, self.ray_address)
        turns = sum(self.load(calls).seconds * calls / self.turn_s for calls in self.loads)
        most = self.workers or (os.cpu_count() or 1 if turns >= WORTH_TURNS else 1)
        on = executor("local", min(most, len(self.loads)), self.ray_address)
        return on if on.workers > 1 else None


def source_of(runs: Sequence[Run], turn: TurnTable) -> Source:
    """Read turns from stored runs, changed by the fleet file; without runs, use the file's turns.

    Raises:
        InputError: there is no run, and the file does not describe a whole turn.
        InconclusiveError: too few of the measured turns can be used; the message says why.
    """
    given = turn.model_dump(exclude_none=True)
    if not runs:
        if missing := [name for name in SAMPLE_FIELDS if name not in given]:
            raise InputError(
                "simulate.no_source",
                "a simulation needs turns: give --from RUN, or set "
                + ", ".join(f"turn.{name}" for name in missing),
                hint="measure one: turngap replay, then turngap simulate --from latest",
            )
        return Source((TurnSample(**given),))
    turns = [turn for run in runs for turn in run.turns]
    found = measured_turns(turns)
    if len(found.samples) < LEAST_SAMPLES:
        reasons = "; ".join(f"{n} × {why}" for why, n in found.left_out.items())
        raise InconclusiveError(
            "simulate.few_turns",
            f"{len(found.samples)} of {len(turns)} turns can be drawn from, expected "
            f"{LEAST_SAMPLES} or more" + (f": {reasons}" if reasons else ""),
            hint="replay more (--repeat), or describe a turn: --set turn.before_ms=300 …",
        )
    calls = {(id(run), t.scenario, t.repeat) for run in runs for t in run.turns}
    prompts = [str(run.record.agent.get("pipeline", {}).get("system_prompt", "")) for run in runs]
    words = max((len(prompt.split()) for prompt in prompts), default=0)
    return Source(
        samples=tuple(_changed(sample, given) for sample in found.samples),
        runs=tuple(run.path.name for run in runs),
        left_out=found.left_out,
        system_tokens=round(words * (found.tokens_per_word or 0)) or None,
        turns=len(turns) / len(calls),
    )


def _changed(sample: TurnSample, given: Mapping[str, Any]) -> TurnSample:
    """Change the sample; a shorter reply opens with its last token, unless the file says when."""
    opening = min(sample.opening_tokens, given.get("reply_tokens", sample.reply_tokens))
    return replace(sample, **{"opening_tokens": opening, **given})


def workload_of(source: Source, call: CallTable) -> Workload:
    """Build the workload from the fleet file's calls, or else from the measured ones.

    Raises:
        InputError: neither gives the length of the prompt or of a call.
    """
    system_tokens = source.system_tokens if call.system_tokens is None else call.system_tokens
    turns = source.turns if call.turns is None else call.turns
    if system_tokens is None or turns is None:
        key = "call.system_tokens" if system_tokens is None else "call.turns"
        raise InputError("simulate.no_source", f"{key} is not given", hint=f"give --set {key}=…")
    return Workload(source.samples, system_tokens, turns, call.think_ms, call.think_sigma)


def run_simulation(
    plan: SimulationPlan,
    on_loads: Callable[[Sequence[float]], None] = lambda _: None,
    on_progress: Callable[[float], None] = lambda _: None,
) -> tuple[SimulationRecord, Path]:
    """Simulate each load, or search for the capacity, and store the record.

    Several loads are simulated at once if the plan says so; the figures are the same. `on_loads`
    receives the calls of each load that begins, or of several that begin together; `on_progress`
    receives the share of these that is done.

    Raises:
        InputError: the fleet cannot serve such calls, or there is no such executor.
        AgentError: workers cannot be started, or one was lost.
    """
    done: dict[float, LoadFigures] = {}
    started, began = utc_now(), time.perf_counter()

    def evaluate(calls: float) -> LoadFigures:
        on_loads((calls,))
        done[calls] = plan.carried(plan.task(calls).evaluate(on_progress))
        return done[calls]

    capacity = None
    if not plan.loads:
        capacity = find_capacity(evaluate, plan.target, most=plan.most_calls)
        capacity = carried(capacity, plan.agent)
    elif (on := plan.executor_of_sweep()) is not None:
        on_loads(plan.loads)
        # The longest first, so that none is left over for one worker at the end.
        loads = sorted(set(plan.loads), reverse=True)
        found = sweep([plan.task(calls) for calls in loads], on, on_progress)
        done = dict(zip(loads, map(plan.carried, found), strict=True))
    else:
        for calls in plan.loads:
            evaluate(calls)
    virtual_s = 0.0
    for load in map(plan.load, sorted(done)):
        virtual_s += load.settle_s + load.seconds + DRAIN_S
    wall_s = time.perf_counter() - began  # git and the machine's description are no part of it
    work, source = plan.workload, plan.source
    record = SimulationRecord(
        turngap_version=__version__,
        commit=git_commit(),
        name="simulate",
        started_utc=started,
        machine=this_machine(),
        routing=plan.fleet.routing,
        prefix_cache=plan.fleet.prefix_cache,
        pools=tuple(_pool_record(pool) for pool in plan.fleet.pools),
        workload=WorkloadRecord(
            runs=source.runs,
            samples=len(work.samples),
            left_out=dict(source.left_out or {}),
            system_tokens=work.system_tokens,
            turns_per_call=work.turns,
            think_ms=work.think_ms,
            think_sigma=work.think_sigma,
            mean={
                name: sum(getattr(s, name) for s in work.samples) / len(work.samples)
                for name in SAMPLE_FIELDS
            },
        ),
        agent=plan.agent,
        budget_ms=plan.budget_ms,
        target=plan.target,
        seed=plan.seed,
        loads=tuple(done[calls] for calls in sorted(done)),
        capacity=capacity,
        virtual_s=virtual_s,
        wall_s=wall_s,
        settings=dict(plan.settings or {}),
    )
    folder = new_folder(plan.out, "simulate")
    write_document(folder / SIMULATION_FILE, record)
    return record, folder


def _pool_record(pool: Pool) -> PoolRecord:
    server, policy = pool.server, pool.policy
    alone_s = StepCosts(server).step_ps(1, server.context // 2) / PS_PER_S
    speculation = server.speculation
    tokens = speculation.tokens_per_step if speculation else 1.0
    return PoolRecord(
        hardware=server.accelerator.name,
        parts=server.parts,
        replicas=pool.replicas,
        model=server.model.name,
        weights=server.weights,
        kv=server.kv,
        policy=policy.name,
        max_batch=policy.max_batch,
        chunk_tokens=policy.chunk_tokens,
        max_wait_ms=policy.max_wait_ms,
        speculation=speculation and asdict(speculation),
        part_hour_usd=pool.part_hour_usd,
        alone_tokens_per_s=tokens / alone_s,
        most_tokens=server.kv_tokens,
    )
