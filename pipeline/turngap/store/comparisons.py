"""Stored records of `turngap compare` and `turngap turns`, next to their runs."""

from typing import Annotated, Literal, Self

from pydantic import model_validator

from turngap.core.budget import STARVED_MS
from turngap.core.cut_ins import CutIns, PausesOfLength
from turngap.core.run_record import METRICS_VERSION, HeldOutRecord, JudgedWith, MachineRecord
from turngap.core.starvation import Starvation
from turngap.core.stats import Percentile, Proportion
from turngap.core.stored import Document, Label, Said, Settings, Stored, with_keys
from turngap.core.summary import Verdicts

COMPARISON_FILE = "compare.json"
TURNS_FILE = "turns.json"

# Why a difference is None that a late caller may have made.
INCONCLUSIVE = "inconclusive"


class PriceRecord(Stored):
    """US dollars a turn on average, and a right answer; None with the reason in `why_none`."""

    usd_per_turn: float | None
    usd_per_right: float | None
    why_none: str | None = None


class BackendRecord(Stored):
    """One backend over all turns.

    `cut_ins` are the turns that the agent cut into, of all turns; None in a comparison that did not
    store them.
    `llm` is the backend's name, `name` what it was called in this comparison, `simulated` whether a
    script answered in place of a model; `held_out` as in a run; `run` its run's folder next to this
    file. `gap_n` turns are behind the gap. Of the `llm_n` turns whose agent said how fast its LLM
    was: `ttft_ms`, to the first token, `tokens_per_s` after it, and `window_tokens` within the
    LLM's window, each the median. `turn_ms`: mean time from the person's
    first word to the agent's last. In `failed` turns the agent could not make its reply, or not the
    whole of it; `first_failure` is what the first of them said. In `fell_back` turns another part
    of a combined backend answered than should have, since that one failed. `correct` is by the
    scenarios' rules, and so is the price of a right answer; `judged` by the comparison's judge.
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
    """A task of several turns that all have to be right; a failure shows at its end.

    `success`: the probability of getting through at once, `success_low` to `success_high` by the
    interval of the right answers; `ms` and `usd`: what it takes on average until a whole task went
    well, begun anew each time; None where that is endless or not known.
    """

    name: str
    success: dict[int, float]
    success_low: dict[int, float]
    success_high: dict[int, float]
    ms: dict[int, float | None]
    usd: dict[int, float | None]


class PairRecord(Stored):
    """Two backends over the same takes of the same turns, `one` less `other`.

    `right`: the difference of the shares of right answers in the `right_n` takes that were judged
    with both, in `only_one` of which the one alone was right and in `only_other` the other;
    `gap_ms`: the median of the differences in the gap, over `gap_n` takes in which a reply was due;
    `cut_ins`: the difference of the shares of turns that were cut into, over all takes.
    `right_recorded`, `gap_recorded`: how many recorded turns these are takes of.

    Each interval holds whatever the caller's own lateness did to these turns. `caller` is how late
    it was with `one` (the candidate) and with `other` (the reference); None in a comparison
    that did not store it. `inconclusive`: why the two are not compared, or which difference that
    lateness alone may have made; None where it made none.
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

    `n`: the takes that were judged with both. `why_none`: why neither overtakes the other at all.
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

    `judged_with`: the model that judged the turns of all backends; None where none was asked.
    `stand_ins` as in a run, of any of the backends; `label` as in a run.
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
    """The agent with one value of what is varied, or as it is, over all turns.

    `run` is its run's folder next to this file. `gap_ms` and `gap_p95_ms` are over `gap_n` turns:
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
            raise ValueError("the points have pauses of different lengths")
        return self
