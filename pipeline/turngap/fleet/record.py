"""What a simulation leaves on disk: `simulation.json`."""

from typing import TYPE_CHECKING, Literal

from turngap.core.results import Document, MachineRecord, Settings, Stored

if TYPE_CHECKING:
    from turngap.fleet.figures import Capacity, LoadFigures

SIMULATION_FILE = "simulation.json"


class ShareRecord(Stored):
    """A share of turns with its 95 % interval; None where there is no turn."""

    hits: int
    n: int
    value: float | None
    low: float | None
    high: float | None


class QuantileRecord(Stored):
    """A percentile in ms; None with the reason in `why_none`."""

    value: float | None
    why_none: str | None = None


class LoadRecord(Stored):
    """One load; see `turngap.fleet.figures.LoadFigures`.

    `holds`: whether at least the target share of turns is in time; None: these turns do not tell.
    """

    calls: float
    mean_calls: float
    seconds: float
    turns: int
    unanswered: int
    hit_rate: ShareRecord
    holds: bool | None
    gap_ms: dict[str, QuantileRecord]
    llm_ms: dict[str, QuantileRecord]
    busy: float
    batch: float | None
    cached: float
    part_hours_per_1000: float | None
    usd_per_1000: float | None
    why_no_usd: str | None


class CapacityRecord(Stored):
    """The most calls held, and the fewest above of which that cannot be said."""

    held: float | None
    not_held: float | None


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
    """Who calls. `runs`: what the turns were measured in, none where flags describe them.

    `left_out`: measured turns that could not be used, by reason. `mean`: the samples' means.
    """

    runs: tuple[str, ...]
    samples: int
    left_out: dict[str, int]
    system_tokens: int
    turns_per_call: float
    think_ms: float
    think_sigma: float
    mean: dict[str, float]


class SimulationRecord(Document):
    """All of a simulation. `virtual_s` were played in `wall_s`."""

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
    budget_ms: float
    target: float
    seed: int
    loads: tuple[LoadRecord, ...]
    capacity: CapacityRecord | None
    virtual_s: float
    wall_s: float
    settings: Settings


def load_record(figures: "LoadFigures", target: float) -> LoadRecord:
    """One load as it is stored."""
    rate = figures.hit_rate
    return LoadRecord(
        calls=figures.calls,
        mean_calls=figures.mean_calls,
        seconds=figures.seconds,
        turns=figures.turns,
        unanswered=figures.unanswered,
        hit_rate=ShareRecord(
            hits=rate.hits, n=rate.n, value=rate.value, low=rate.low, high=rate.high
        ),
        holds=figures.holds(target),
        gap_ms={
            k: QuantileRecord(value=p.value, why_none=p.why_none) for k, p in figures.gap_ms.items()
        },
        llm_ms={
            k: QuantileRecord(value=p.value, why_none=p.why_none) for k, p in figures.llm_ms.items()
        },
        busy=figures.busy,
        batch=figures.batch,
        cached=figures.cached,
        part_hours_per_1000=figures.part_hours,
        usd_per_1000=figures.usd,
        why_no_usd=figures.why_no_usd,
    )


def capacity_record(capacity: "Capacity") -> CapacityRecord:
    """The search's result as it is stored."""
    return CapacityRecord(held=capacity.held, not_held=capacity.not_held)
