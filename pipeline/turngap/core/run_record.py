"""Models of a stored run: its record, how it was requested, and its pieces."""

from typing import Annotated

from pydantic import Field

from turngap.core.budget import MAX_STARVED_MS, MOST_PLAYED, NO_REPLY_MS, QUIET_MS, STARVED_MS
from turngap.core.clock import LONGEST_MS
from turngap.core.stats import Proportion
from turngap.core.stored import BudgetMs, Document, Header, Label, Said, Settings, Stored

# Changes whenever a figure would come out differently from the same events.
METRICS_VERSION = 4

# What a run's `agent` holds of an agent at a URL once a line to it is open.
TOLD_BY_THE_LINE = ("dialect", "line_rate_hz")

# What a run's `stand_ins` say where a script answered in place of a model.
SIMULATED_LLM = "simulated LLM"


class JudgedWith(Stored):
    """The recogniser with which a run was judged after it was played.

    `closed_domain`: a recogniser that hears nothing but sentences that it was given, whatever is
    said. `prompt`: the prompt of a judge model.
    """

    backend: str
    settings: Settings
    closed_domain: bool = False
    prompt: str | None = None
    utc: str


class Quantiles(Stored):
    """Absolute errors or other values in ms; a percentile is None where n is too small."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class CalibrationRecord(Stored):
    """Error of the instrument against injected, known gaps on this machine.

    `dialect`: that of the loopback agent; empty in runs from before there were several. `rate` is
    of the person's audio on the wire and `agent_rate` of the agent's, Hz; None: not known.
    """

    error_ms: Quantiles
    signed_p50_ms: float | None
    note: str = ""
    dialect: str = ""
    rate: int | None = None
    agent_rate: int | None = None


class OffsetRecord(Stored):
    """Agent's clock minus caller's clock, from the fastest of `n` exchanges; None: not answered."""

    offset_ns: int | None
    bound_ns: int | None
    n: int


def worse_offset(a: OffsetRecord | None, b: OffsetRecord) -> OffsetRecord:
    """Return the comparison with the wider bound; an unanswered one never replaces another."""
    if a is None or a.bound_ns is None:
        return b
    return b if b.bound_ns is not None and b.bound_ns > a.bound_ns else a


class MachineRecord(Stored):
    """Fingerprint of the machine: runs from different ones are not comparable as they are."""

    system: str
    python: str
    cpu: str
    cores: int
    memory_gib: float
    fingerprint: str


class HeldOutRecord(Stored):
    """The share of right answers of a model on dialogues that were held out when it was made.

    It comes with the model and was not measured in the run. `right` is of all turns of `dialogues`
    dialogues in writing; its interval allows for turns of one dialogue being alike.
    """

    model: str
    dialogues: int
    right: Proportion


class PlanRecord(Stored):
    """The request for a replay, without its secrets, so that it can be continued.

    `backends` and `sets` are the agent's overrides, `dialect`, `headers` and `subprotocols` are how
    a URL is spoken to. `files` are the scenarios, in the order of play.
    """

    agent: Said
    backends: dict[str, str] = Field(default_factory=dict[str, str])
    sets: tuple[Said, ...] = ()
    seed: int | None = None
    marks: bool = True
    dialect: Said = ""
    headers: tuple[Header, ...] = ()
    library: str
    files: tuple[str, ...]
    rounds: Annotated[int, Field(ge=1, le=MOST_PLAYED)]
    phase: Annotated[int, Field(ge=0, le=16 * LONGEST_MS)] = 0
    budget_ms: BudgetMs | None = None
    greeting_ms: Annotated[float, Field(ge=0, le=LONGEST_MS)] | None = None
    no_reply_ms: Annotated[float, Field(gt=0, le=LONGEST_MS)] = NO_REPLY_MS
    quiet_ms: Annotated[float, Field(gt=0, le=LONGEST_MS)] = QUIET_MS
    calibration_turns: Annotated[int, Field(ge=0, le=MOST_PLAYED)] = 0


class PieceRecord(Stored):
    """A part of a run that was interrupted and continued; `turns` are those that it added.

    `finished_utc` is None where the piece was killed. `failure` is what ended it otherwise.
    """

    started_utc: str
    finished_utc: str | None = None
    turns: int
    turngap_version: str
    commit: str | None
    machine: MachineRecord
    clock_offset: OffsetRecord | None = None
    calibration: CalibrationRecord | None = None
    failure: Said | None = None


class RunRecord(Document):
    """`run.json`. Written at the start, again when the run ends (`finished_utc`).

    `starved_ms`: how late the caller may be in a turn before the turn counts as starved.
    `planned_turns`: 0 where no one planned them, as in a live conversation. `stand_ins`: what was
    not real, in words: `SIMULATED_LLM`, "closed-domain recogniser", "synthetic voices". `held_out`:
    what is known of the agent's models beside this run. `found`: what its engines chose of what ran
    on its machine, in a line by kind. `voices`: what spoke the turns without a recording, by
    scenario. `pieces`: empty but for a run that was continued, of which the other fields are the
    first piece's; `clock_offset` and `calibration` are then the worst of all pieces'. `label`: what
    the user calls the run.
    """

    metrics_version: int = METRICS_VERSION
    turngap_version: str
    commit: str | None
    name: str
    started_utc: str
    finished_utc: str | None = None
    machine: MachineRecord
    agent: Settings
    settings: Settings
    scenario_hashes: dict[str, str]
    voices: dict[str, Said] = Field(default_factory=dict[str, Said])
    planned_turns: int
    budget_ms: BudgetMs
    starved_ms: Annotated[float, Field(ge=0, le=MAX_STARVED_MS)] = STARVED_MS
    stand_ins: tuple[str, ...] = ()
    held_out: tuple[HeldOutRecord, ...] = ()
    found: dict[str, Said] = Field(default_factory=dict[str, Said])
    plan: PlanRecord | None = None
    pieces: tuple[PieceRecord, ...] = ()
    clock_offset: OffsetRecord | None = None
    calibration: CalibrationRecord | None = None
    transcribed_with: JudgedWith | None = None
    judged_with: JudgedWith | None = None
    valid: bool = True
    why_invalid: tuple[Said, ...] = ()
    failure: Said | None = None
    label: Label = ""

    @property
    def measured_commit(self) -> str:
        """Return the commit of what was measured; empty if unknown.

        Of an agent from another checkout it is that one's, else that around the working directory.
        """
        return str(self.agent.get("commit") or self.commit or "")
