"""Stored records of `turngap compare` and `turngap turns`, next to their runs."""

from typing import Annotated, Literal, Self

from pydantic import model_validator

from turngap.core.budget import STARVED_MS
from turngap.core.cut_ins import CutIns, PausesOfLength
from turngap.core.paired import Starvation
from turngap.core.run_record import METRICS_VERSION, HeldOutRecord, JudgedWith, MachineRecord
from turngap.core.stats import Percentile, Proportion
from turngap.core.stored import Document, Label, Said, Settings, Stored, with_keys
from turngap.core.summary import Verdicts

COMPARISON_FILE = "compare.json"
TURNS_FILE = "turns.json"

# Why a difference is None that a late caller may have made.
INCONCLUSIVE = "inconclusive"


class PriceRecord(Stored):
    """US dollars for an average turn and for a right answer; None with the reason in `why_none`."""

    usd_per_turn: float | None
    usd_per_right: float | None
    why_none: str | None = None


class BackendRecord(Stored):
    """One backend over all turns.

    `cut_ins` are the turns that the agent cut into, of all turns; None in a comparison that did not
    store them. `llm` is the backend's name, `name` its name in this comparison. `simulated` says
    whether a script answered instead of a model. `held_out` is as in a run. `run` is its run's
    folder next to this file. `gap_n` turns are behind the gap. `ttft_ms` (to the first token),
    `tokens_per_s` (after it) and `window_tokens` (within the LLM's window) are medians over the
    `llm_n` turns whose agent reported its LLM's speed. `turn_ms` is the mean time from the person's
    first word to the agent's last. In `failed` turns the agent could not make all or part of its
    reply; `first_failure` is the first of its errors. In `fell_back` turns one part of a combined
    backend answered because another had failed. `correct` and the price of a right answer follow
    the scenarios' rules; `judged` follows the comparison's judge.
    """

    name: str
    llm: str
    simulated: bool = False
    held_out: tuple[HeldOutRecord, ...] = ()
    run: str
    valid: bool
    why_invalid: str = ""
    turns: int
    outcomes: dict[str, int]
    failed: int
    first_failure: str | None
    fell_back: int
    hit_rate: Proportion
    cut_ins: CutIns | None = None
    gap_n: int
    gap_ms: Annotated[dict[str, Percentile], with_keys("p50", "p95")]
    first_answer_ms: Percentile
    llm_n: int
    ttft_ms: float | None
    tokens_per_s: float | None
    window_tokens: float | None
    correct: Proportion
    not_judged: dict[str, int]
    judged: Verdicts | None = None
    turn_ms: float | None
    price: PriceRecord


class ChainRecord(Stored):
    """A task of several turns that all have to be right; a failure is noticed only at its end.

    `success` is the probability that a task succeeds at once, `success_low` to `success_high` by
    the interval of the right answers. `ms` and `usd` are the average time and price until a whole
    task succeeds, begun anew after each failure; None if it never succeeds, or if that is not
    known.
    """

    name: str
    success: dict[int, float]
    success_low: dict[int, float]
    success_high: dict[int, float]
    ms: dict[int, float | None]
    usd: dict[int, float | None]


class PairRecord(Stored):
    """Two backends over the same takes of the same turns, `one` minus `other`.

    `right` is the difference of the shares of right answers in the `right_n` takes that were judged
    with both; `only_one` and `only_other` count the takes in which only that backend was right.
    `gap_ms` is the median difference of the gap, over `gap_n` takes in which a reply was due.
    `cut_ins` is the difference of the shares of turns that were cut into, over all takes.
    `right_recorded` and `gap_recorded` are the numbers of recorded turns that these are takes of.

    Each interval allows for the caller's own lateness in these turns. `caller` is how late the
    caller was with `one` (the candidate) and with `other` (the reference); None in a comparison
    that did not store it. `inconclusive` says why the two are not compared, or which difference may
    be the caller's lateness alone; None if there is no such doubt.
    """

    one: str
    other: str
    right_n: int
    right_recorded: int
    only_one: int
    only_other: int
    right: Percentile
    gap_n: int
    gap_recorded: int
    gap_ms: Percentile
    cut_ins: Percentile | None = None
    caller: Starvation | None = None
    inconclusive: str | None = None


class CrossingRecord(Stored):
    """The shortest task at which `follower` costs less than `leader`, as `side_by_side.Crossing`.

    `n`: the takes that were judged with both. `why_none`: why neither backend overtakes the other
    at all.
    """

    what: Literal["time", "price"]
    leader: str
    follower: str
    turns: int | None
    earliest: int | None
    latest: int | None
    longest: int
    n: int
    why_none: str | None = None


class ComparisonRecord(Document):
    """The whole of `compare.json`.

    `judged_with`: the model that judged the turns of all backends; None if none was asked.
    `stand_ins` has those of any backend, as in a run; `label` is as in a run.
    """

    metrics_version: int = METRICS_VERSION
    turngap_version: str
    commit: str | None
    started_utc: str
    machine: MachineRecord
    agent: str
    scenarios: tuple[str, ...]
    rounds: int
    budget_ms: float
    backends: tuple[BackendRecord, ...]
    judged_with: JudgedWith | None = None
    pairs: tuple[PairRecord, ...]
    chain: tuple[ChainRecord, ...]
    crossings: tuple[CrossingRecord, ...]
    failure: Said | None = None
    stand_ins: tuple[str, ...] = ()
    label: Label = ""
    settings: Settings

    @model_validator(mode="after")
    def _names_its_backends(self) -> Self:
        names = {name for pair in self.pairs for name in (pair.one, pair.other)}
        names |= {row.name for row in self.chain}
        names |= {name for c in self.crossings for name in (c.leader, c.follower)}
        if unknown := names - {backend.name for backend in self.backends}:
            raise ValueError(f"no backend is called {min(unknown)!r}")
        return self

    @property
    def valid(self) -> bool:
        """Return whether the figures of every backend can be used."""
        return self.failure is None and all(backend.valid for backend in self.backends)

    @property
    def inconclusive(self) -> list[PairRecord]:
        """Return the pairs that the caller's lateness leaves without an answer."""
        return [pair for pair in self.pairs if pair.inconclusive is not None]

    @property
    def starved_ms(self) -> float:
        """Return how late the caller may be before a turn counts as starved."""
        return self.settings.get("starved_ms", STARVED_MS)


class PointRecord(Stored):
    """The agent with one value of the varied setting, or as it is, over all turns.

    `run` is its run's folder next to this file. `gap_ms` and `gap_p95_ms` are over `gap_n` turns,
    without those in which the agent cut in. `endpoint_ms`: the median time from the person's end to
    the agent's own decision. `heard`: turns with a cut-in at the caller's ear; `decided`: turns
    with a false endpoint, None with the reason in `why_not_decided`. `pauses`: the early turns that
    labelled pauses caused, by their length.
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
    """The value of a curve at one share of cut-ins, or at one gap; `value` is None with the reason.

    `low` and `high` bound it with 95 % confidence, like the intervals of the points. An end is None
    if the intervals do not reach there, or there are too few recorded turns.
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

    `turns` counts the turns behind the curve; without points, `why_none` has the reason.
    """

    turns: int
    points: tuple[CurvePoint, ...]
    gap_at_share_ms: Reading
    cut_ins_at_gap: Reading
    why_none: str | None = None


class TurnsRecord(Document):
    """The whole of `turns.json`.

    `setting` is the varied setting; None if the agent was played as it is. `measured` is the curve
    through the points. `waiting` is the curve of the most patient agent if it had waited longer,
    and `silence` that of an agent that knows only how long it has been quiet. `share` and `gap_ms`
    are where the curves are read. `labelled`: recorded turns with labelled pauses, of `recorded`.
    `virtual`: played in virtual time, so gaps are lower bounds. `stand_ins` and `label` are as in a
    run.
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
            raise ValueError("the points have pauses of different lengths")
        return self
