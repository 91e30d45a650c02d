"""What `turngap turns` leaves on disk: `turns.json`, beside the run of each point."""

from typing import Self

from pydantic import model_validator

from turngap.core.cut_ins import PausesOfLength
from turngap.core.results import MachineRecord
from turngap.core.run_record import METRICS_VERSION
from turngap.core.stats import Percentile, Proportion
from turngap.core.stored import Document, Label, Said, Settings, Stored

TURNS_FILE = "turns.json"


class PointRecord(Stored):
    """The agent with one value of what is varied, or as it is, over all turns.

    `run` is its run's folder beside this file. `gap_ms` and `gap_p95_ms` are over `gap_n` turns:
    those in which the agent cut in have no gap. `endpoint_ms`: the median of the agent's own
    decision after the person's end. `heard`: turns with a cut-in at the caller's ear; `decided`:
    those with a false endpoint, None with the reason in `why_not_decided`. `pauses`: what the
    labelled pauses drew, by their length.
    """

    value: str | None
    run: str
    valid: bool
    why_invalid: tuple[str, ...] = ()
    turns: int
    recorded: int
    gap_n: int
    gap_ms: Percentile
    gap_p95_ms: Percentile
    endpoint_ms: Percentile
    heard: Proportion
    decided: Proportion | None
    why_not_decided: str | None = None
    pauses: tuple[PausesOfLength, ...]


class Reading(Stored):
    """The place of a curve at one share of cut-ins, or at one gap; `value` is None with the reason.

    `low` and `high` bound it with 95 % confidence, as the intervals of the points do. An end is
    None where they do not reach there, or there are too few recorded turns.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    why_none: str | None = None


class CurvePoint(Stored):
    """The share of turns cut in on at a median gap, with its 95 % interval."""

    gap_ms: float
    cut_ins: float
    low: float | None
    high: float | None


class CurveRecord(Stored):
    """A curve. `gap_at_share_ms`: at 5 % cut-ins; `cut_ins_at_gap`: at a gap of 300 ms.

    `turns` of it are behind the curve; no point with the reason in `why_none`.
    """

    turns: int
    points: tuple[CurvePoint, ...]
    gap_at_share_ms: Reading
    cut_ins_at_gap: Reading
    why_none: str | None = None


class TurnsRecord(Document):
    """The whole of `turns.json`.

    `setting` is what was varied, None where the agent was played as it is. `measured` goes through
    the points; `waiting` is what the most patient of them had been like, had it waited longer;
    `silence` an agent that knows nothing but how long it has been quiet. `share` and `gap_ms` are
    where the curves are read. `labelled`: recorded turns whose pauses are labelled, of `recorded`.
    `virtual`: played in virtual time, so that gaps are lower bounds. `stand_ins` and `label`
    as in a run.
    """

    metrics_version: int = METRICS_VERSION
    turngap_version: str
    commit: str | None
    started_utc: str
    machine: MachineRecord
    agent: str
    setting: str | None
    scenarios: tuple[str, ...]
    rounds: int
    phases: int
    virtual: bool = False
    recorded: int
    labelled: int
    share: float
    gap_ms: float
    points: tuple[PointRecord, ...]
    measured: CurveRecord
    waiting: CurveRecord
    silence: CurveRecord
    failure: Said | None = None
    stand_ins: tuple[str, ...] = ()
    label: Label = ""
    settings: Settings

    @property
    def valid(self) -> bool:
        """Return whether the figures of every point can be used."""
        return self.failure is None and all(point.valid for point in self.points)

    @model_validator(mode="after")
    def _knows_the_same_pauses_at_each_point(self) -> Self:
        if len({len(point.pauses) for point in self.points}) > 1:
            raise ValueError("the points tell of pauses of different lengths")
        return self
