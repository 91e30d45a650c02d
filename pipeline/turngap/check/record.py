"""What a check leaves on disk: `check.json`, and the baseline that a later check compares with."""

from typing import Literal

from turngap.core.budget import Outcome
from turngap.core.results import METRICS_VERSION, Document, MachineRecord, Settings, Stored

# The record's file in a check's folder.
CHECK_FILE = "check.json"

# Why there is no verdict on a run that nothing was compared with.
NOTHING_COMPARED = "nothing was compared: neither a reference nor a budget was given"

CheckVerdict = Literal["pass", "regressed", "undecided", "cannot_compare"]


class MetricRecord(Stored):
    """One metric's verdict; see `turngap.check.verdict.MetricVerdict`."""

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


class StageShiftRecord(Stored):
    """How a stage moved; see `turngap.check.verdict.StageShift`."""

    name: str
    n: int
    shift_ms: float
    slowed: int
    p_value: float
    moved: bool


class BudgetRecord(Stored):
    """A budget of the candidate alone: the share of turns within it, with Wilson's interval.

    `share` and `low` are as read; `high` is of the turns at their quickest, where a starved caller
    may have made them read long.
    """

    name: str
    budget_ms: float
    target: float
    verdict: Literal["pass", "regressed", "undecided"]
    n: int
    share: float | None
    low: float | None
    high: float | None


class NoiseRecord(Stored):
    """The reference against itself in the same run: what this machine does to identical code."""

    n: int
    shift_p50_ms: float | None
    spread_p95_ms: float | None
    verdict: Literal["pass", "regressed", "undecided"] | None


class SideRecord(Stored):
    """One side of the comparison: its agent, and its run's folder beside `check.json`.

    `valid`: whether the figures of its run hold by themselves. `starved`: in how many of its turns
    the caller was starved. `caller_error_ms`: by how much the gaps of all others may at most read
    long for a late caller.
    """

    agent: Settings
    run: str | None
    valid: bool | None
    turns: int
    starved: int
    caller_error_ms: float | None


class StarvationRecord(Stored):
    """Pairs in which the caller was late; see `turngap.check.verdict.Starvation`."""

    pairs: int
    of: int
    reference: int
    candidate: int
    error_ms: float
    p_value: float


class BaselineUse(Stored):
    """How far a stored baseline went.

    Attributes:
        unmatched: turns of the candidate that it has no twin for (other rounds or phases).
        more_pairs: the pairs that playing more rounds could still make with it.
        rejudged: its turns that were saved under another budget than the candidate's, and were
            judged by that.
    """

    unmatched: int
    more_pairs: int
    rejudged: int


class SaveRecord(Stored):
    """What became of `--save`: the file as it was named, and why it was not written."""

    file: str
    done: bool
    why_not: str | None = None


class CheckRecord(Document):
    """`check.json`.

    `why` says in words what decided: which metric, or why the two cannot be compared. `starved_ms`
    is how late the caller might be before a turn counted as starved; `stand_ins` as in a run.
    """

    metrics_version: int = METRICS_VERSION
    verdict: CheckVerdict
    why: tuple[str, ...]
    started_utc: str
    finished_utc: str
    machine: MachineRecord
    reference: SideRecord | None
    candidate: SideRecord
    scenarios: tuple[str, ...]
    rounds: int
    phases: int
    starved_ms: float
    stand_ins: tuple[str, ...] = ()
    pairs: int
    left_out: int
    starvation: StarvationRecord | None = None
    metrics: tuple[MetricRecord, ...]
    stages: tuple[StageShiftRecord, ...]
    moved_stage: str | None
    budgets: tuple[BudgetRecord, ...]
    noise: NoiseRecord | None
    baseline: BaselineUse | None = None
    saved: SaveRecord | None = None


class BaselineTurn(Stored):
    """One turn of a baseline, told from the others by scenario, turn, phase and repeat.

    `budget_ms` is the budget behind `outcome`. `caller_error_ms`: by how much the gap may read long
    because the caller was starved; 0 where it was not.
    """

    scenario: str
    turn: int
    phase_ms: float
    repeat: int
    outcome: Outcome
    budget_ms: float
    gap_ms: float | None
    stages: dict[str, float]
    caller_error_ms: float


class BaselineRecord(Document):
    """A stored reference. Compared only on the same machine, by the same metrics and audio.

    `starved_ms` and `caller_error_ms` are those of the run that it was saved from.
    """

    metrics_version: int = METRICS_VERSION
    saved_utc: str
    machine: MachineRecord
    agent: Settings
    scenario_hashes: dict[str, str]
    starved_ms: float
    caller_error_ms: float | None
    turns: tuple[BaselineTurn, ...]
