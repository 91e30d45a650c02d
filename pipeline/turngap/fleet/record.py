"""What a simulation leaves on disk: `simulation.json`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from turngap.core.results import MachineRecord
from turngap.core.stats import Percentile, Proportion
from turngap.core.stored import (
    BudgetMs,
    Document,
    NotNegative,
    Positive,
    Settings,
    Stored,
    with_keys,
)

SIMULATION_FILE = "simulation.json"

Percentiles = Annotated[dict[str, Percentile], with_keys("p50", "p95", "p99")]
MEANS = ("before_ms", "after_ms", "speech_ms", "reply_ms", "reply_tokens", "opening_tokens")


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One load in figures.

    Attributes:
        calls: calls at once that were asked for; `mean_calls` is how many there were.
        turns: all turns of the measured time, `unanswered` ones among them.
        hit_rate: turns answered within budget of all turns; its interval holds for turns that are
            not independent.
        holds: whether at least the target share of turns is in time; None: these turns do not tell.
        gap_ms: percentiles of the turn gap; turns without an answer count as slower than any.
        llm_ms: the same of the LLM's share.
        busy: share of the time in which a replica works, on average.
        batch: sequences decoded together, on average over steps; None without a step.
        cached: share of prompt tokens that the prefix caches spared.
        part_hours_per_1000: accelerator-hours for 1000 turns; None without turns.
        usd_per_1000: price of 1000 turns; None with the reason in `why_no_usd`.
    """

    calls: Positive
    mean_calls: float
    seconds: float
    turns: int
    unanswered: int
    hit_rate: Proportion
    holds: bool | None
    gap_ms: Percentiles
    llm_ms: Percentiles
    busy: float
    batch: float | None
    cached: float
    part_hours_per_1000: NotNegative | None
    usd_per_1000: NotNegative | None
    why_no_usd: str | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The number of calls that a fleet holds.

    Attributes:
        held: the most calls at which the interval lies above the target; None: not even one.
        not_held: the fewest calls looked at, above `held`, of which that cannot be said; None where
            the search ended at its limit.
        of_llm: what the LLM's servers would hold, where the agent's machine carries fewer calls;
            `held` and `not_held` are then its bound.
    """

    held: float | None
    not_held: float | None
    of_llm: float | None = None


# Processors, or a part of one; a number outside of these is of another unit.
Cores = Annotated[float, Field(ge=1e-6, le=1e6)]


@dataclass(frozen=True, slots=True)
class AgentCpu:
    """The machine that runs the agent, and what a call takes of it: a bound, and no more.

    How calls wait for each other's work is not simulated, so that fewer calls may be too many.

    Attributes:
        cores: what it has for the calls.
        cores_per_call: CPU seconds that a call takes a second on average, as measured in one.
    """

    cores: Cores
    cores_per_call: Cores

    @property
    def most_calls(self) -> float:
        """Return the number of calls that take all of the cores."""
        return self.cores / self.cores_per_call


class PoolRecord(Stored):
    """Equal replicas, as they were described, and what follows from it.

    `alone_tokens_per_s`: what a sequence gets that has a replica to itself; `most_tokens`: tokens
    of conversation that a replica has room for.
    """

    hardware: str
    parts: int
    replicas: int
    model: str
    weights: str
    kv: str
    policy: str
    max_batch: int
    chunk_tokens: int | None
    max_wait_ms: float | None
    speculation: dict[str, float] | None
    part_hour_usd: float | None
    alone_tokens_per_s: float
    most_tokens: int


class WorkloadRecord(Stored):
    """The callers. `runs`: what the turns were measured in, none where flags describe them.

    `left_out`: measured turns that could not be used, by reason. `mean`: the samples' means.
    """

    runs: tuple[str, ...]
    samples: int
    left_out: dict[str, int]
    system_tokens: int
    turns_per_call: float
    think_ms: float
    think_sigma: float
    mean: Annotated[dict[str, float], with_keys(*MEANS)]


class SimulationRecord(Document):
    """All of a simulation. `virtual_s` were played in `wall_s`.

    `agent`: None where the agent's machine is taken as large enough for any load.
    """

    kind: Literal["simulation"] = "simulation"
    turngap_version: str
    commit: str | None
    name: str
    started_utc: str
    machine: MachineRecord
    routing: str
    prefix_cache: bool
    pools: tuple[PoolRecord, ...]
    workload: WorkloadRecord
    agent: AgentCpu | None = None
    budget_ms: BudgetMs
    target: float
    seed: int
    loads: Annotated[tuple[LoadFigures, ...], Field(min_length=1)]
    capacity: Capacity | None
    virtual_s: float
    wall_s: float
    settings: Settings
