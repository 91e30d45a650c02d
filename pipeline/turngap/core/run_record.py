"""Models of a stored run: its record, how it was requested, and its pieces."""

from typing import Annotated, Any, Literal

from pydantic import Field

from turngap.core.budget import MAX_STARVED_MS, MOST_PLAYED, NO_REPLY_MS, QUIET_MS, STARVED_MS
from turngap.core.clock import LONGEST_MS
from turngap.core.stats import Proportion
from turngap.core.stored import BudgetMs, Document, Header, Label, Said, Settings, Stored

# Changes whenever a figure would come out differently from the same events.
METRICS_VERSION = 5
METRICS_CHANGED = (
    "cut-ins, hits, first words, first answers and ambiguous turns are read differently"
)

# What a run's `agent` holds of an agent at a URL once a line to it is open.
TOLD_BY_THE_LINE = ("dialect", "line_rate_hz")

# What a run's `stand_ins` say where a script answered in place of a model.
SIMULATED_LLM = "simulated LLM"


class JudgedWith(Stored):
    """The recogniser or model that judged a run after it was played.

    `closed_domain`: the recogniser hears nothing but a given list of sentences, whatever is said.
    `prompt`: the prompt of a judge model.
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

    `dialect` is the loopback agent's; empty in older runs. `rate` is the sample rate of the
    person's audio on the wire and `agent_rate` the agent's, in Hz; None if not known.
    """

    error_ms: Quantiles
    signed_p50_ms: float | None
    note: str = ""
    dialect: str = ""
    rate: int | None = None
    agent_rate: int | None = None


class OffsetRecord(Stored):
    """Agent's clock minus caller's, from the fastest of `n` exchanges; None if not answered."""

    offset_ns: int | None
    bound_ns: int | None
    n: int


def worse_offset(a: OffsetRecord | None, b: OffsetRecord) -> OffsetRecord:
    """Return the comparison with the wider bound; an unanswered one never replaces another."""
    if a is None or a.bound_ns is None:
        return b
    return b if b.bound_ns is not None and b.bound_ns > a.bound_ns else a


class MachineRecord(Stored):
    """Fingerprint of the machine: runs on different machines are not directly comparable."""

    system: str
    python: str
    cpu: str
    cores: int
    memory_gib: float
    fingerprint: str


class HeldOutRecord(Stored):
    """The share of right answers of a model on dialogues that were held out from its training.

    It comes with the model and was not measured in the run. `right` counts all turns of `dialogues`
    written dialogues; its interval allows for the likeness of turns in one dialogue.
    """

    model: str
    dialogues: int
    right: Proportion


class PlanRecord(Stored):
    """The request for a replay, without its secrets, so that it can be continued.

    `backends` and `sets` are the agent's overrides. `dialect`, `headers` and `subprotocols` say how
    to speak to a URL. `files` are the scenarios, in the order of play. `line` is as `--line` takes
    it; empty for a plain one.
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
    line: Said = ""
    unpaired: bool = False


class PieceRecord(Stored):
    """A part of an interrupted and continued run; `turns` counts the turns that it added.

    `finished_utc` is None if the piece was killed. `failure` is any other reason why it ended.
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


class ClaimsRecord(Stored):
    """A platform's own account of a call, from the JSON next to its recording, without its texts.

    `latency_ms`: what it claims that its agent took, a figure a turn or one for the whole call.
    """

    platform: Said
    call_id: Said = ""
    started_utc: Said = ""
    agent: Said = ""
    latency_ms: tuple[float, ...] = ()


class ScoredCall(Stored):
    """A recording that was scored. `name` is the call's name among the turns, as `scenario`.

    `side`: the channel that holds the person, and `why_side` what decided that. `echo_db`: how loud
    the agent is in the person's channel, relative to its own; None if that cannot be measured.
    `offset_ms`: by how much one channel was shifted.
    """

    name: str
    file: str
    sha256: str
    seconds: float
    turns: int
    side: Literal["left", "right"]
    why_side: Said
    notes: tuple[Said, ...] = ()
    echo_db: float | None = None
    offset_ms: float = 0.0
    greeting_ms: float | None = None
    claims: ClaimsRecord | None = None


class UnscoredCall(Stored):
    """A file that could not be scored; `kind` and `why` are those of the error."""

    file: str
    kind: str
    why: Said
    hint: Said = ""


class ScoredRecord(Stored):
    """The recordings that a run was scored from, and those that could not be."""

    calls: tuple[ScoredCall, ...] = ()
    unscored: tuple[UnscoredCall, ...] = ()


class DeadPeerRecord(Stored):
    """A call whose peers had lost each other without a word: how soon each noticed, in ms.

    None if it had not noticed while turngap looked.
    """

    scenario: str
    repeat: int
    caller_ms: float | None
    agent_ms: float | None


class LineRecord(Stored):
    """The line over which a run was played: as it was named, and its numbers."""

    text: Said
    name: str = ""
    seed: int = 1
    source: str = ""
    settings: Settings = Field(default_factory=dict[str, Any])
    dead_peers: tuple[DeadPeerRecord, ...] = ()

    @property
    def breaks(self) -> bool:
        """Return whether the line ends calls itself."""
        return any(self.settings.get(fault) is not None for fault in ("half_open_s", "reset_s"))


class RunRecord(Document):
    """`run.json`. Written at the start, again when the run ends (`finished_utc`).

    `starved_ms`: how late the caller may be in a turn before the turn counts as starved.
    `planned_turns`: 0 if none were planned, as in a live conversation. `stand_ins`: the simulated
    parts, in words: `SIMULATED_LLM`, "closed-domain recogniser", "synthetic voices". `held_out`:
    the held-out figures of the agent's models. `found`: the programs that its engines found on its
    machine, in a line by kind. `voices`: the voices of the turns without a recording, by scenario.
    `pieces`: empty unless the run was continued; the other fields are then the first piece's, but
    `clock_offset` and `calibration` are the worst of all pieces'. `label`: the user's name for the
    run. `audio_sha256`: the SHA-256 of each stored audio file, by its path in the run's folder;
    empty in older runs. `scored`: None unless the turns were found in recordings of calls. `line`:
    None unless it was played over one.
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
    audio_sha256: dict[str, str] = Field(default_factory=dict[str, str])
    scored: ScoredRecord | None = None
    line: LineRecord | None = None

    @property
    def measured_commit(self) -> str:
        """Return the commit of the measured code; empty if unknown.

        For an agent from another checkout it is that checkout's commit, else the working
        directory's.
        """
        return str(self.agent.get("commit") or self.commit or "")
