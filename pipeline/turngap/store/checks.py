"""Stored check: `check.json`, and the baseline that a later check compares with."""

from dataclasses import dataclass
from typing import Literal

from turngap.core.budget import Outcome
from turngap.core.cut_ins import CutIns
from turngap.core.paired import Starvation
from turngap.core.results import TurnKey
from turngap.core.run_record import METRICS_VERSION, MachineRecord
from turngap.core.stats import Percentile
from turngap.core.stored import Document, Label, Said, Settings, Stored

# The record's file in a check's folder.
CHECK_FILE = "check.json"

# Why there is no verdict on a run that nothing was compared with.
NOTHING_COMPARED = "nothing was compared: neither a reference nor a budget was given"

CheckVerdict = Literal["pass", "regressed", "undecided", "cannot_compare"]


Verdict = Literal["pass", "regressed", "undecided"]

HIT_RATE = "hit rate"
CUT_INS = "cut-ins"


@dataclass(frozen=True, slots=True)
class MetricVerdict:
    """The change of one metric, candidate minus reference (for the hit rate: the loss).

    Attributes:
        difference: for p50 the shift of the typical turn (Huber's location of the paired
            differences), for p95 the difference of the two sides' p95; None if n is too small.
        low, high: its 95 % interval; an end is None if n is too small to bound it.
        p_value: one-sided p-value of no regression, before correction for several metrics.
        detectable: the regression that this comparison would have detected with 95 % power: every
            turn slower by this much, or this share of turns lost.
        turns_needed: about how many more pairs would decide, if more would help.
        why: why there is no figure, or why it is undecided.
    """

    name: str
    unit: Literal["ms", "share"]
    verdict: Verdict
    n: int
    limit: float
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    detectable: float | None = None
    turns_needed: int | None = None
    why: str | None = None

    @property
    def is_loss(self) -> bool:
        """Return whether `difference` counts losses, so that more of it lowers the metric."""
        return self.name == HIT_RATE


@dataclass(frozen=True, slots=True)
class StageShift:
    """The change of a stage.

    Attributes:
        shift_ms: the shift of the typical turn.
        slowed: turns in which the stage grew by over half the p95 limit, minus the turns in which
            it shrank by as much.
        moved: whether it grew, in the bulk or in the tail, beyond chance.
    """

    name: str
    n: int
    shift_ms: float
    slowed: int
    p_value: float
    moved: bool


class BudgetRecord(Stored):
    """A budget of the candidate alone: the share of turns within it, with its 95 % interval.

    `share` and `low` use the turns as read. `high` uses the turns at their quickest if a starved
    caller may have made them read long.
    """

    name: str
    budget_ms: float
    target: float
    verdict: Verdict
    n: int
    share: float | None
    low: float | None
    high: float | None


class NoiseRecord(Stored):
    """The reference against itself in the same run: how much identical code varies here."""

    n: int
    shift_p50_ms: float | None
    spread_p95_ms: float | None
    verdict: Verdict | None


class GapRecord(Stored):
    """The turn gaps of one side, ms; `slowest` names the turn whose reply took `slowest_ms`.

    A due turn without a reply counts as slower than any other in the percentiles.
    """

    p50: Percentile
    p95: Percentile
    slowest_ms: float | None = None
    slowest: TurnKey | None = None


class SideRecord(Stored):
    """One side of the comparison: its agent, and its run's folder next to `check.json`.

    `valid`: whether the figures of its run are valid by themselves. `cut_ins`: its turns that the
    agent cut into. `starved`: the number of turns with a starved caller. `caller_error_ms`: the
    most by which the gaps of all other turns may read too long because the caller was late. `gap`:
    None for a stored baseline, and in older checks.
    """

    agent: Settings
    run: str | None
    valid: bool | None
    turns: int
    cut_ins: CutIns | None = None
    starved: int
    caller_error_ms: float | None
    gap: GapRecord | None = None


class BaselineUse(Stored):
    """The use that was made of a stored baseline.

    Attributes:
        unmatched: turns of the candidate without a twin in the baseline (other rounds or phases).
        more_pairs: the pairs that playing more rounds could still make with it.
        rejudged: turns of the baseline that were saved under another budget than the candidate's,
            and were judged by the candidate's.
    """

    unmatched: int
    more_pairs: int
    rejudged: int


class SaveRecord(Stored):
    """The outcome of `--save`: the file as it was named, and the reason if it was not written."""

    file: str
    done: bool
    why_not: str | None = None


class CheckRecord(Document):
    """`check.json`.

    `why` names the deciding metric, or the reason why the two sides cannot be compared.
    `starved_ms` is how late the caller might be before a turn counted as starved. `command` repeats
    the check; it is empty in older checks. `line` is as `--line` takes it. `stand_ins` and `label`
    are as in a run.
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
    starvation: Starvation | None = None
    metrics: tuple[MetricVerdict, ...]
    stages: tuple[StageShift, ...]
    moved_stage: str | None
    budgets: tuple[BudgetRecord, ...]
    noise: NoiseRecord | None
    baseline: BaselineUse | None = None
    saved: SaveRecord | None = None
    command: Said = ""
    line: Said = ""
    label: Label = ""


class BaselineTurn(Stored):
    """One turn of a baseline, identified by scenario, turn, phase and repeat.

    `budget_ms` is the budget behind `outcome`. `caller_error_ms`: by how much the gap may read long
    because the caller was starved; 0 if it was not.
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

    @property
    def key(self) -> TurnKey:
        return (self.scenario, self.turn, self.phase_ms, self.repeat)

    @property
    def take(self) -> tuple[str, int, int]:
        return (self.scenario, self.turn, self.repeat)


class BaselineRecord(Document):
    """A stored reference. Compared only on the same machine, by the same metrics and audio.

    `starved_ms`, `line` and `caller_error_ms` are those of the run that it was saved from.
    """

    metrics_version: int = METRICS_VERSION
    saved_utc: str
    machine: MachineRecord
    agent: Settings
    scenario_hashes: dict[str, str]
    starved_ms: float
    line: Said = ""
    caller_error_ms: float | None
    turns: tuple[BaselineTurn, ...]
