"""What a check leaves on disk: `check.json`, and the baseline that a later check compares with."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from turngap.core.budget import Outcome
from turngap.core.results import METRICS_VERSION, MachineRecord

CHECK_SCHEMA_VERSION = 1
# The record's file in a check's folder.
CHECK_FILE = "check.json"

CheckVerdict = Literal["pass", "regressed", "undecided", "cannot_compare"]


class _Stored(BaseModel):
    # JSON has no inf or nan: written as null, they could not be read back.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MetricRecord(_Stored):
    """One metric's verdict; see `turngap.core.verdict.MetricVerdict`."""

    name: str
    unit: Literal["ms", "share"]
    verdict: Literal["pass", "regressed", "undecided"]
    n: int
    limit: float
    difference: float | None
    low: float | None
    high: float | None
    p_value: float | None
    detectable: float | None
    turns_needed: int | None
    why: str | None


class StageShiftRecord(_Stored):
    """How a stage moved; see `turngap.core.stage_shifts.StageShift`."""

    name: str
    n: int
    shift_ms: float
    slowed: int
    p_value: float
    moved: bool


class BudgetRecord(_Stored):
    """A budget of the candidate alone: the share of turns within it, with Wilson's interval."""

    name: str
    budget_ms: float
    target: float
    verdict: Literal["pass", "regressed", "undecided"]
    n: int
    share: float | None
    low: float | None
    high: float | None


class NoiseRecord(_Stored):
    """The reference against itself in the same run: what this machine does to identical code."""

    n: int
    shift_p50_ms: float | None
    spread_p95_ms: float | None
    verdict: Literal["pass", "regressed", "undecided"] | None


class SideRecord(_Stored):
    """One side of the comparison: its agent, and its run's folder beside `check.json`."""

    agent: dict[str, Any]
    run: str | None
    valid: bool | None
    turns: int


class CheckRecord(_Stored):
    """`check.json`.

    `why` says in words what decided: which metric, or why the two cannot be compared.
    """

    schema_version: int = CHECK_SCHEMA_VERSION
    metrics_version: int = METRICS_VERSION
    verdict: CheckVerdict
    why: tuple[str, ...]
    started_utc: str
    finished_utc: str
    machine: MachineRecord
    reference: SideRecord | None
    candidate: SideRecord
    rounds: int
    pairs: int
    left_out: int
    metrics: tuple[MetricRecord, ...]
    stages: tuple[StageShiftRecord, ...]
    moved_stage: str | None
    budgets: tuple[BudgetRecord, ...]
    noise: NoiseRecord | None


class BaselineTurn(_Stored):
    """One turn of a baseline. `key`: scenario, turn, phase in ms, repeat."""

    scenario: str
    turn: int
    phase_ms: float
    repeat: int
    outcome: Outcome
    gap_ms: float | None
    stages: dict[str, float]


class BaselineRecord(_Stored):
    """A stored reference. Compared only on the same machine, by the same metrics and audio."""

    schema_version: int = CHECK_SCHEMA_VERSION
    metrics_version: int = METRICS_VERSION
    saved_utc: str
    machine: MachineRecord
    agent: dict[str, Any]
    scenario_hashes: dict[str, str]
    turns: tuple[BaselineTurn, ...]
