"""Stored records of `turngap load` and `turngap simulate`: how many calls an agent holds."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from turngap.core.budget import STARVED_MS, Outcome
from turngap.core.results import Turn
from turngap.core.run_record import CalibrationRecord, MachineRecord
from turngap.core.stats import Percentile, Proportion
from turngap.core.stored import (
    BudgetMs,
    Document,
    Label,
    NotNegative,
    Positive,
    Said,
    Settings,
    Stored,
    with_keys,
)

LOAD_FILE = "load.json"
SIMULATION_FILE = "simulation.json"

Percentiles = Annotated[dict[str, Percentile], with_keys("p50", "p95")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Sessions = Annotated[int, Field(ge=1, le=1_000_000)]
Missed = Literal["refused", "late_start", "dropped", "not_reached", "worker_lost"]


class LoadTurn(Document):
    """One line of a load test's `turns.jsonl`: a turn that was planned, played or not.

    `step` and `call` count from 1. `due_s` is when the person was expected to end the turn, from
    the beginning of the step. `counted`: the turn is in the measured window. `waited_ms`: how much
    later than intended the person could begin to speak, because the line was not open, or the
    greeting came later than in a call alone; the latency of a call's first turn includes it.
    `hole_ms` is the longest interruption of the reply's audio; None without audio. `played` is None
    if there is no turn; `missed` then has the reason, and `why` describes it. `node`: the machine
    and process of the caller.
    """

    step: int
    call: int
    line: int
    scenario: str
    turn: int
    due_s: float
    counted: bool
    waited_ms: float
    played: Turn | None
    missed: Missed | None = None
    why: Said | None = None
    hole_ms: float | None = None
    node: str = ""

    @property
    def latency_ms(self) -> float | None:
        """Return the gap from the intended instant, which includes the wait for the line."""
        if self.played is None or self.played.gap_ms is None:
            return None
        return self.played.gap_ms + self.waited_ms

    @property
    def outcome(self) -> Outcome | Missed | None:
        """Return the turn's outcome, or why there is none."""
        return self.missed if self.played is None else self.played.outcome

    def hit(self, budget_ms: float) -> bool:
        """Return whether the turn was answered in budget, counted from the intended instant."""
        latency_ms = self.latency_ms
        answered = self.played is not None and self.played.replied
        return answered and latency_ms is not None and latency_ms <= budget_ms


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One step of a load test in figures: a level, or a stretch of arrivals.

    Attributes:
        sessions: the level that was held; None if calls arrive at a rate.
        offered_per_s: calls a second that the schedule dialled in the measured window.
        seconds: length of the measured window.
        calls: calls with a turn that counts.
        turns: counted turns, all of them in the denominator.
        hit_rate: its interval takes the turns of one session as linked.
        effective_n: the number of independent turns with as much information.
        holds: whether at least the target share is on time; None if undecided.
        gap_ms: percentiles of the latency from the intended instant; missed turns count as slower.
        yield_ms: time to fall silent, over turns that were interrupted.
        holes: share of the replies with a hole in their audio of 20 ms or more.
        outcomes: the number of turns with each outcome, or missed for each reason.
        refused: calls that the agent refused, or that could not be opened.
        late_started: calls whose person had to wait for the line, or for a late greeting.
        dropped: calls that broke off.
        waited: turns over the budget only because of the wait for the line, or a greeting.
        reasons: the number of calls refused or broken off for each reason, the most frequent ones.
        at_once: calls whose lines were open at the same time, on average and at most.
        caller_late_ms: p99 of the lateness of the caller's packets; None if nothing was sent.
        void: why the step does not measure the agent: the caller was late, or a worker was lost.
        confirms: whether its turns count towards the certificate of a search.
        not_played: planned turns that were not over when the step ended early, because enough had
            missed for a search.
    """

    sessions: Sessions | None
    offered_per_s: NotNegative
    seconds: NotNegative
    calls: Count
    turns: Count
    hit_rate: Proportion
    effective_n: NotNegative
    holds: bool | None
    gap_ms: Percentiles
    yield_ms: Percentile
    holes: Share | None
    outcomes: dict[str, Count]
    refused: Count
    late_started: Count
    dropped: Count
    at_once: tuple[NotNegative, Count]
    caller_late_ms: float | None
    void: str | None = None
    confirms: bool = False
    waited: Count = 0
    not_played: Count = 0
    reasons: dict[Said, Count] = field(default_factory=dict[Said, Count])


@dataclass(frozen=True, slots=True)
class Certificate:
    """The most sessions that are certain to hold.

    Attributes:
        sessions: None if not even one holds, or nothing is certain; `why` says which.
        hit_rate: share of the turns of the confirming steps that were on time.
        turns: the number of turns of the confirming steps.
        low: the lower bound of the share at this `confidence`, after all looks together.
        confidence: the chance that no level is wrongly certified, over the whole search.
        not_held: the fewest sessions above these that were tried and did not hold, or could not be
            certified; levels still open when the time was over do not count.
        caller_late_ms: the greatest p99 of the caller's lateness while it confirmed.
        seconds: length of the confirming steps' measured windows; None if nothing is certified.
        at_once: calls that ran at the same time while it confirmed, on average and at most; None if
            nothing is certified.
    """

    sessions: Sessions | None
    hit_rate: Share | None
    turns: Count
    low: Share | None
    confidence: Share
    not_held: Sessions | None
    caller_late_ms: float | None
    why: str | None = None
    seconds: float | None = None
    at_once: tuple[NotNegative, Count] | None = None


class LoadRecord(Document):
    """All of a load test.

    `mode`: a search for the capacity, one held level, a ramp of levels, or calls at a rate.
    `ended`: why it ended when it did, in words. `finished_utc` is None if it broke off; its steps
    are then those that were over. `caller_late_limit_ms`: a step whose caller was later than this
    is void. `label`: the user's name for the test.
    """

    kind: Literal["load"] = "load"
    turngap_version: str
    commit: str | None
    name: str
    started_utc: str
    finished_utc: str | None = None
    machine: MachineRecord
    agent: Settings
    mode: Literal["search", "held", "ramp", "rate"]
    arrivals: str
    scenario_hashes: dict[str, str]
    voices: dict[str, str]
    stand_ins: tuple[str, ...]
    budget_ms: BudgetMs
    target: Annotated[float, Field(gt=0, lt=1)]
    confidence: Share = 0.95
    seed: int
    warm_up_s: float
    executor: str
    workers: int
    calibration: CalibrationRecord | None = None
    steps: tuple[StepFigures, ...]
    capacity: Certificate | None
    ended: Said = ""
    caller_late_limit_ms: float = STARVED_MS
    failure: Said | None = None
    label: Label = ""
    settings: Settings

    @property
    def certified(self) -> bool:
        """Return whether a search certified a capacity, which other steps cannot change."""
        return self.capacity is not None and self.capacity.sessions is not None

    @property
    def void(self) -> str | None:
        """Return why a step that the answer is based on is void; None if none is."""
        return None if self.certified else next((s.void for s in self.steps if s.void), None)

    @property
    def valid(self) -> bool:
        """Return whether its figures can be used."""
        return self.failure is None and self.finished_utc is not None and self.void is None


# Simulations

LoadPercentiles = Annotated[dict[str, Percentile], with_keys("p50", "p95", "p99")]
MEANS = ("before_ms", "after_ms", "speech_ms", "reply_ms", "reply_tokens", "opening_tokens")


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One load in figures.

    Attributes:
        calls: simultaneous calls that were requested; `mean_calls` is how many there were.
        turns: all turns of the measured time, including `unanswered` ones.
        hit_rate: turns answered within budget of all turns; its interval holds for turns that are
            not independent.
        holds: whether at least the target share of turns is in time; None if undecided.
        gap_ms: percentiles of the turn gap; turns without an answer count as slower than any.
        llm_ms: percentiles of the LLM's share of the gap.
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
    gap_ms: LoadPercentiles
    llm_ms: LoadPercentiles
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
        held: the most calls whose interval lies above the target; None if not even one does.
        not_held: the fewest calls above `held` that were tried and whose interval does not lie
            above the target; None if the search ended at its limit.
        of_llm: the calls that the LLM's servers would hold, if the agent's machine carries fewer;
            `held` and `not_held` are then limited by that machine.
    """

    held: float | None
    not_held: float | None
    of_llm: float | None = None


# Processors, or a part of one; a number outside of these is of another unit.
Cores = Annotated[float, Field(ge=1e-6, le=1e6)]


@dataclass(frozen=True, slots=True)
class AgentCpu:
    """The machine that runs the agent, and the CPU time of a call: an upper bound on the calls.

    How calls wait for each other's work is not simulated, so fewer calls may already be too many.

    Attributes:
        cores: the cores that it has for the calls.
        cores_per_call: CPU seconds that a call takes per second, on average, as measured in one
            call.
    """

    cores: Cores
    cores_per_call: Cores

    @property
    def most_calls(self) -> float:
        """Return the number of calls that use all of the cores."""
        return self.cores / self.cores_per_call


class PoolRecord(Stored):
    """Equal replicas as described, and the figures that follow.

    `alone_tokens_per_s`: the speed of a sequence that has a replica to itself; `most_tokens`:
    tokens of conversation that a replica has room for.
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
    """The callers. `runs`: the runs that the turns were measured in; none if flags describe them.

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

    `agent`: None if the agent's machine is assumed large enough for any load.
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
