"""Play an agent, as it is or with several values of one setting; compute and store its curve."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from pathlib import Path
from typing import Self, get_args

import numpy as np
from numpy.typing import NDArray

from turngap.backends import Kind
from turngap.core import __version__
from turngap.core.clusters import Clusters
from turngap.core.cut_ins import (
    by_pause_length,
    cut_ins_of,
    early_turns,
    heard_cut_in,
)
from turngap.core.errors import InputError, TurngapError
from turngap.core.results import Turn
from turngap.core.stats import Percentile, Proportion, proportion_of
from turngap.core.summary import counted_turns, due_gaps, due_percentile, turn_taking
from turngap.core.wording import several
from turngap.play.options import Asked
from turngap.play.plan import SILENT, PlayPlan, Progress, played_as
from turngap.play.rounds import play_in_turns
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice, Target, resolve
from turngap.scenario.library import chosen
from turngap.store.comparisons import (
    TURNS_FILE,
    CurvePoint,
    CurveRecord,
    PointRecord,
    Reading,
    TurnsRecord,
)
from turngap.store.documents import git_commit, this_machine, write_document
from turngap.store.folders import new_folder, utc_now

# Each value is a process of its own, about 200 MB, for as long as this lasts.
MAX_VALUES = 8

_EXAMPLE = "for example: --vary turn.certainty=0.5,0.7,0.9"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsPlan(PlayPlan):
    """A plan of which agent to play, over which recordings.

    Attributes:
        setting: the setting to vary, `table.key` of the stack, e.g. `turn.certainty`; or None.
        values: of the setting, as they would be written after `--set table.key=`.
    """

    choice: AgentChoice
    library: Path
    setting: str | None = None
    values: Sequence[str] = ()

    @classmethod
    def asked(cls, asked: Asked) -> Self:
        """Plan according to the options of `turns`, and check it before anything is started.

        Raises:
            InputError, AgentError: as `targets`; or there is no such scenario.
        """
        choice = AgentChoice.asked(asked)
        setting, values = (None, []) if asked.vary is None else parse_vary(asked.vary)
        library, scenarios = chosen(choice.agent, asked.scenarios, asked.tag, asked.library)
        plan = cls(
            choice=choice,
            library=library,
            setting=setting,
            values=values,
            scenarios=scenarios,
            rounds=asked.rounds,
            **played_as(asked),
        )
        plan.targets()
        if asked.virtual and choice.is_url:
            raise InputError(
                "turns.virtual",
                f"{choice.agent} is a running agent, and only a built-in one keeps virtual time",
                hint="drop --virtual, or name a stack",
            )
        return plan

    @property
    def points(self) -> Sequence[str | None]:
        """Return the value at each point of the curve; a single None if nothing is varied."""
        return [None] if self.setting is None else list(self.values)

    @property
    def agents(self) -> int:
        return len(self.points)

    def targets(self) -> list[Target]:
        """Resolve one agent for each value, and check all before anything is started.

        Raises:
            InputError: the stack refuses a value, there are too many, or the agent is a URL.
        """
        if self.setting is None:
            return [resolve(self.choice, self.library)]
        if not 2 <= len(self.values) <= MAX_VALUES:
            raise InputError(
                "turns.values",
                f"{several(len(self.values), 'value')} for {self.setting}; expected 2 to "
                f"{MAX_VALUES}",
                hint=_EXAMPLE,
            )
        if self.choice.is_url:
            raise InputError(
                "turns.url",
                f"{self.choice.agent} is a running agent: its settings cannot be varied from here",
                hint="play it as it is, without --vary, or name a stack",
            )
        sets = [(*self.choice.sets, f"{self.setting}={value}") for value in self.values]
        return [resolve(dataclasses.replace(self.choice, sets=s), self.library) for s in sets]


def parse_vary(text: str) -> tuple[str, list[str]]:
    """Parse a setting and its values from `TABLE.KEY=V1,V2,…`.

    Raises:
        InputError: the text is not of that form.
    """
    name, equals, values = text.partition("=")
    if name in get_args(Kind):
        raise InputError(
            "turns.setting",
            f"{text!r}: {name} is an engine, and --vary takes a setting of one: {name}.KEY=V1,V2,…",
            hint=f"measure one engine at a time, as with --set {name}={values.split(',')[0]}",
        )
    if not equals or "." not in name:
        raise InputError("turns.setting", f"{text!r}: expected TABLE.KEY=V1,V2,…", hint=_EXAMPLE)
    return name, [value.strip() for value in values.split(",") if value.strip()]


Played = tuple[TurnsRecord, Path, TurngapError | None]


async def turns(plan: TurnsPlan, progress: Progress = SILENT) -> Played:
    """Play every scenario with each value in turn, so that a slow period affects all values alike.

    The played turns are stored in any case; an error that ended the play is returned too.
    """
    started, folder, runs = _begun(plan, progress)
    failure = await play_in_turns(runs, plan, progress)
    return _stored(plan, started, folder, runs, failure)


def turns_in_virtual_time(plan: TurnsPlan, progress: Progress = SILENT) -> Played:
    """Play a stack's agent in memory and virtual time (`turngap.play.virtual`).

    Call it in a thread where no event loop runs.
    """
    from turngap.play.virtual import play_in_virtual_time

    started, folder, runs = _begun(plan, progress)
    failure = play_in_virtual_time(runs, plan, progress)
    return _stored(plan, started, folder, runs, failure, virtual=True)


def _begun(plan: TurnsPlan, progress: Progress) -> tuple[str, Path, list[RunInProgress]]:
    targets, started = plan.targets(), utc_now()
    what = plan.choice.name if plan.setting is None else plan.setting.replace(".", "-")
    folder = new_folder(plan.out, f"turns-{what}")
    progress.on_folder(folder)
    runs = [
        RunInProgress(
            plan,
            target,
            plan.choice.name if value is None else f"{plan.setting}-{value}",
            progress.on_turn,
            out=folder,
            settings={"turns": plan.setting, "value": value},
        )
        for target, value in zip(targets, plan.points, strict=True)
    ]
    return started, folder, runs


def _stored(
    plan: TurnsPlan,
    started: str,
    folder: Path,
    runs: Sequence[RunInProgress],
    failure: TurngapError | None,
    *,
    virtual: bool = False,
) -> Played:
    stored = [run.finish(str(failure) if failure else None) for run in runs]
    points = [
        point_figures(
            run.turns,
            value=value,
            run=run.path.name,
            valid=run.record.valid,
            why_invalid=run.record.why_invalid,
        )
        for value, run in zip(plan.points, stored, strict=True)
    ]
    played = counted_turns([turn for run in stored for turn in run.turns])
    gaps = [point.gap_ms.value or 0.0 for point in points]  # the most patient one waits longest
    record = TurnsRecord(
        turngap_version=__version__,
        commit=git_commit(),
        started_utc=started,
        machine=this_machine(),
        agent=str(stored[0].record.agent.get("url") or plan.choice.name),
        setting=plan.setting,
        scenarios=tuple(s.scenario.name for s in plan.scenarios),
        rounds=plan.rounds,
        phases=plan.phases,
        virtual=virtual,
        recorded=len({turn.take[:2] for turn in played}),
        labelled=len({turn.take[:2] for turn in played if turn.pauses is not None}),
        share=SHARE,
        gap_ms=GAP_MS,
        points=tuple(points),
        measured=measured_curve([run.turns for run in stored]),
        waiting=waiting_curve(stored[gaps.index(max(gaps))].turns),
        silence=silence_curve(played),
        failure=None if failure is None else str(failure),
        stand_ins=tuple(dict.fromkeys(name for run in stored for name in run.record.stand_ins)),
        label=plan.label,
        settings={"seed": plan.choice.seed, "starved_ms": plan.starved_ms, **plan.line_setting},
    )
    write_document(folder / TURNS_FILE, record)
    return record, folder, failure


# --- figures and curves ---------------------------------------------------------------------------
# Computed from turns, however they were played.

# Where curves are read, as eot-bench reads them: what people bear, and about what they leave
# among themselves.
SHARE, GAP_MS = 0.05, 300.0

# Curves that are computed go up to so much waiting, in such steps: labels are no finer.
LONGEST_MS, STEP_MS = 3000.0, 10.0
WAITS = np.arange(0.0, LONGEST_MS + STEP_MS / 2, STEP_MS)
# Pauses are labelled from this length on, so that nothing is known of a shorter hold.
SHORTEST_HOLD_MS = 100.0

NO_PAUSES = (
    "no recording has labelled pauses: `turngap label FILE` finds them and writes them into the "
    "scenario"
)

Floats = NDArray[np.float64]
# A curve's median gaps, and its shares of cut-ins.
Row = tuple[Floats, Floats]


def point_figures(turns: Sequence[Turn], **about: object) -> PointRecord:
    """Compute all figures of one point; `about` holds fields that do not come from its turns."""
    counted = counted_turns(turns)
    early, due = early_turns(counted), due_gaps(counted)
    return PointRecord.model_validate(
        {
            "turns": len(counted),
            "recorded": len({turn.take[:2] for turn in counted}),
            "gap_n": len(due),
            "gap_ms": due_percentile(due, 0.5),
            "gap_p95_ms": due_percentile(due, 0.95),
            "endpoint_ms": turn_taking(turns).endpoint_ms,
            "heard": early.heard,
            "decided": early.decided,
            "why_not_decided": early.why_none,
            "pauses": by_pause_length(counted),
            **about,
        }
    )


# Curves. Each is drawn three times: as it was seen, through the lower ends of the intervals of its
# points, and through the upper ones. Where the outer two lie bounds where the curve itself does.
# Resampling recordings was tried: of 20, the gap at 5 % cut-ins was held in 39 of 60.


def _drawn(gaps: Sequence[Percentile], shares: Sequence[Proportion]) -> list[Row]:
    """Draw a curve and its bounds, each in the order of its gaps; nan where an end is not known."""
    rows: list[Row] = []
    for end in ("value", "low", "high"):
        x, y = (np.array([getattr(p, end) for p in ends], float) for ends in (gaps, shares))
        order = np.argsort(x)
        rows.append((x[order], y[order]))
    return rows


def measured_curve(points: Sequence[Sequence[Turn]]) -> CurveRecord:
    """Draw the curve through the points that were played, straight between any two of them."""
    played = [(turns, _median(turns)) for turns in map(counted_turns, points)]
    known = [(turns, gap) for turns, gap in played if gap.value is not None]
    if not known:
        return _no_curve(_why_no_median(played[0][1] if played else due_percentile([], 0.5)))
    shares = [cut_ins_of(turns) for turns, _ in known]
    rows = _drawn([gap for _, gap in known], shares)
    drawn = [_curve_point(gap.value or 0.0, p) for (_, gap), p in zip(known, shares, strict=True)]
    drawn.sort(key=lambda point: point.gap_ms)
    return _curve(sum(len(turns) for turns, _ in known), drawn, rows)


def waiting_curve(turns: Sequence[Turn]) -> CurveRecord:
    """Simulate the agent as if it had waited longer before each decision.

    Every gap grows by the wait. A cut-in remains one if the agent would still have decided within
    a pause (`outlasted_ms`). Turns that were not cut in on remain so.
    """
    turns = counted_turns(turns)
    cut_ins = [turn for turn in turns if turn.outcome == "cut_in"]
    if any(turn.pauses is None for turn in cut_ins):
        return _no_curve(NO_PAUSES)
    median = _median(turns)
    if median.value is None:
        return _no_curve(_why_no_median(median))
    lasts = np.array([outlasted_ms(t) if t.outcome == "cut_in" else -1.0 for t in turns])
    hits = (lasts[:, None] > WAITS) | ((lasts[:, None] >= 0) & (WAITS == 0))
    gaps = [
        Percentile(
            median.value + wait,
            None if median.low is None else median.low + wait,
            None if median.high is None else median.high + wait,
        )
        for wait in WAITS.tolist()
    ]
    return _cornered(turns, gaps, hits)


def _median(turns: Sequence[Turn]) -> Percentile:
    return due_percentile(due_gaps(turns), 0.5)


def _why_no_median(gap: Percentile) -> str:
    return f"there is no median gap: {gap.why_none}"


def outlasted_ms(turn: Turn) -> float:
    """Return how much longer the agent would have had to wait not to cut in on this turn.

    The agent decided at some instant of a pause. A wait is long enough if neither that pause nor a
    later one of the turn lasts longer than the time to the decision plus the wait. An agent that
    does not report its decision made it by its onset, or, if it was heard over speech, as the pause
    began at the earliest. No wait helps against a cut-in that no labelled pause explains.
    """
    cut_in = heard_cut_in(turn)
    if cut_in is None or cut_in.pause is None:
        return inf
    begun_ms = cut_in.pause.start_ms
    known_ms = cut_in.decided_ms
    if known_ms is None:
        known_ms = begun_ms if cut_in.over_speech else cut_in.at_ms
    later = [pause.ms for pause in turn.pauses or () if pause.start_ms >= begun_ms]
    return max(0.0, max(later) - (known_ms - begun_ms))


def silence_curve(turns: Sequence[Turn]) -> CurveRecord:
    """Simulate an agent that knows only how long it has been quiet, from the labelled pauses.

    With a hold of h it cuts in on every turn with a pause of h or more, and its gap is h: no
    engine's time is included.
    """
    known = [turn for turn in counted_turns(turns) if turn.pauses is not None]
    once = list({turn.take[:2]: turn for turn in known}.values())
    if not once:
        return _no_curve(NO_PAUSES)
    longest = np.array([max((p.ms for p in turn.pauses or ()), default=0.0) for turn in once])
    holds = WAITS[WAITS >= SHORTEST_HOLD_MS]
    gaps = [Percentile(hold, hold, hold) for hold in holds.tolist()]
    return _cornered(once, gaps, longest[:, None] >= holds)


def _no_curve(why: str) -> CurveRecord:
    none = Reading(value=None, why_none=why)
    return CurveRecord(turns=0, points=(), gap_at_share_ms=none, cut_ins_at_gap=none, why_none=why)


def _curve_point(gap_ms: float, share: Proportion) -> CurvePoint:
    return CurvePoint(gap_ms=gap_ms, cut_ins=share.value or 0.0, low=share.low, high=share.high)


def _cornered(
    turns: Sequence[Turn], gaps: Sequence[Percentile], hits: NDArray[np.bool_]
) -> CurveRecord:
    """Draw a computed curve by the points at which the number of cut-ins changes, and both ends.

    `hits` has a row for each turn and a column for each gap.
    """
    clusters = Clusters.of([turn.take for turn in turns])
    shares = [proportion_of(column.tolist(), clusters) for column in hits.T]
    changes = np.flatnonzero(np.diff(hits.sum(axis=0))).tolist()
    chosen = sorted({0, len(gaps) - 1} | set(changes) | {i + 1 for i in changes})
    points = [_curve_point(gaps[i].value or 0.0, shares[i]) for i in chosen]
    return _curve(len(turns), points, _drawn(gaps, shares))


def _curve(turns: int, points: Sequence[CurvePoint], rows: Sequence[Row]) -> CurveRecord:
    return CurveRecord(
        turns=turns,
        points=tuple(points),
        gap_at_share_ms=_reading(_gap_at, rows, _why_no_gap(*rows[0])),
        cut_ins_at_gap=_reading(_share_at, rows, _why_no_share(*rows[0])),
    )


def _gap_at(gaps: Floats, shares: Floats) -> float:
    """Find the gap at which the share falls to `SHARE`: inf if never, -inf if it begins below."""
    low = np.flatnonzero(shares <= SHARE)
    if not len(low):
        return inf
    if low[0] == 0:
        return -inf
    (g0, g1), (s0, s1) = (v[low[0] - 1 : low[0] + 1] for v in (gaps, shares))
    return float(g0 + (g1 - g0) * (s0 - SHARE) / (s0 - s1))


def _why_no_gap(gaps: Floats, shares: Floats) -> str:
    if shares[0] <= SHARE:
        return f"already at its quickest, {gaps[0]:.0f} ms, it cuts in on {100 * shares[0]:.1f} %"
    return f"even at its most patient, {gaps[-1]:.0f} ms, it cuts in on {100 * shares[-1]:.1f} %"


def _share_at(gaps: Floats, shares: Floats) -> float:
    """Find the share at a gap of `GAP_MS`; infinite if the curve does not reach it."""
    if gaps[0] > GAP_MS:
        return inf
    return -inf if gaps[-1] < GAP_MS else float(np.interp(GAP_MS, gaps, shares))


def _why_no_share(gaps: Floats, _: Floats) -> str:
    if gaps[0] > GAP_MS:
        return f"its quickest is slower: {gaps[0]:.0f} ms"
    return f"its most patient is quicker: {gaps[-1]:.0f} ms"


def _reading(
    read: Callable[[Floats, Floats], float], rows: Sequence[Row], why_none: str
) -> Reading:
    """Read the measured curve, and the two curves that bound it."""
    value, low, high = (nan if np.isnan(row).any() else read(*row) for row in rows)
    if not isfinite(value):
        return Reading(value=None, why_none=why_none)
    low, high = (end if isfinite(end) else None for end in (low, high))
    return Reading(value=value, low=low, high=high)
