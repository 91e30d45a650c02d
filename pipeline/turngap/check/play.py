"""The regression gate: candidate against reference, interleaved, until there is a verdict."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from turngap.caller.endpoint import Endpoint
from turngap.check import baseline as baselines
from turngap.check import words
from turngap.check.baseline import lines_differ
from turngap.check.plan import CheckPlan, refuse
from turngap.check.verdict import Judgement, judge
from turngap.clocks import MonotonicClock, undisturbed
from turngap.core.clock import NS_PER_S
from turngap.core.clusters import Clusters
from turngap.core.cut_ins import CutIns
from turngap.core.errors import InputError, TurngapError
from turngap.core.paired import MAX_STARVED_PAIRS, Limits, Pair
from turngap.core.results import Turn
from turngap.core.stats import proportion_of
from turngap.core.summary import counted_turns
from turngap.play.plan import SILENT, Progress
from turngap.play.rounds import calibrate_each, identified
from turngap.play.run import RunInProgress, all_kept
from turngap.scenario.library import content_hashes
from turngap.store.checks import (
    CHECK_FILE,
    NOTHING_COMPARED,
    BaselineRecord,
    BaselineUse,
    BudgetRecord,
    CheckRecord,
    CheckVerdict,
    GapRecord,
    NoiseRecord,
    SaveRecord,
    SideRecord,
)
from turngap.store.documents import this_machine, write_document
from turngap.store.folders import new_folder, utc_now
from turngap.store.runs import Run

# So often at most `--until-decided` looks at what there is, each time after twice as many rounds.
LOOKS = 5


@dataclass(frozen=True, slots=True)
class Checked:
    """A finished check: its record as stored, its folder, and the runs behind it."""

    record: CheckRecord
    path: Path
    candidate: Run
    reference: Run | None
    failure: TurngapError | None

    @property
    def verdict(self) -> CheckVerdict:
        return self.record.verdict

    @property
    def turns(self) -> int:
        """Return how many turns were played, on both sides."""
        return sum(len(run.turns) for run in (self.candidate, self.reference) if run is not None)

    def __repr__(self) -> str:
        return f"<Checked {str(self.path)!r}: {self.verdict}>"


async def check(plan: CheckPlan, progress: Progress = SILENT) -> Checked:
    """Play, judge and store. An agent that fails ends the check; the turns played so far are kept.

    Nothing is played if the baseline cannot be compared.

    Raises:
        InputError: a setting is wrong, the baseline cannot be read, or the folder cannot be made.
    """
    started = utc_now()
    refuse(plan)
    stored = None if plan.baseline is None else baselines.load(plan.baseline)
    refused = refusals(plan, stored, content_hashes(plan.scenarios))
    folder = new_folder(plan.out, "check")
    progress.on_folder(folder)
    sides = _Sides(plan, folder, progress, stored)
    failure: TurngapError | None = None
    try:
        with undisturbed(), all_kept(sides.runs.values()):
            if not refused:
                await sides.play()
    except TurngapError as e:
        failure = e
    why = str(failure) if failure else None
    runs = {side: run.finish(why) for side, run in sides.runs.items()}
    candidate, reference = runs["candidate"], runs.get("reference")
    judgement = sides.judge()
    refused = refused or sides.refused or another_line(stored, candidate.record.agent)
    found = refused or obstacles(candidate, reference, failure, judgement, plan.starved_ms)
    played = Played(
        plan=plan,
        started_utc=started,
        rounds=sides.rounds,
        candidate=candidate,
        reference=reference,
        stored=stored,
        judgement=judgement,
        budgets=sides.budgets(),
        use=sides.use(),
        obstacles=found,
    )
    record, failed = _saved(plan, record_of(played), candidate, found)
    write_document(folder / CHECK_FILE, record)
    return Checked(record, folder, candidate, reference, failure or failed)


def _saved(
    plan: CheckPlan, record: CheckRecord, candidate: Run, found: Sequence[str]
) -> tuple[CheckRecord, TurngapError | None]:
    """Save the candidate as a baseline if that is allowed, and note the outcome."""
    if plan.save is None:
        return record, None
    failed: TurngapError | None = None
    why_not = why_not_saved(record, plan, found)
    if why_not is None:
        try:
            baselines.save(plan.save, candidate.record, candidate.turns)
        except InputError as e:
            failed, why_not = e, str(e)
    saved = SaveRecord(file=str(plan.save), done=why_not is None, why_not=why_not)
    return record.model_copy(update={"saved": saved}), failed


class _Sides:
    """Both runs while they are played."""

    def __init__(
        self,
        plan: CheckPlan,
        folder: Path,
        progress: Progress,
        stored: BaselineRecord | None,
    ) -> None:
        self.plan = plan
        self.stored = stored
        self._progress = progress
        self._share = 1.0
        self._open_metrics = True
        self._so_far = ""
        self.rounds = 0
        self.refused: list[str] = []
        settings = {"rounds": plan.rounds, "phases": plan.phases, **(plan.settings or {})}
        self.runs = {
            side: RunInProgress(plan, target, side, progress.on_turn, out=folder, settings=settings)
            for side, target in (("candidate", plan.candidate), ("reference", plan.reference))
            if target is not None
        }
        self.candidate = self.runs["candidate"]
        self.reference = self.runs.get("reference")

    async def play(self) -> None:
        """Play all planned rounds, and more while that is requested and may decide."""
        self._progress.on_step("starting the agents")
        async with AsyncExitStack() as stack:
            endpoints: dict[str, Endpoint] = {}
            for side, run in self.runs.items():
                serving = run.target.serving(
                    *(run.folder / "agent.log", run.on_chosen),
                    self._progress.on_step,
                )
                with hints_for(side):
                    endpoints[side] = await stack.enter_async_context(serving)
            for side, run in self.runs.items():
                with hints_for(side):
                    endpoints[side] = await identified(
                        run.target, endpoints[side], self.plan.telemetry, self._progress.on_step
                    )
            spoken = {"url": "", "dialect": endpoints["candidate"].spec().name}
            self.refused = another_line(self.stored, spoken)
            if self.refused:
                return
            served = [(run, endpoints[side]) for side, run in self.runs.items()]
            await calibrate_each(served, self.plan, self._progress)
            await self._rounds(endpoints)

    async def _rounds(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Play rounds and judge after each; each look may use half of the remaining error rate."""
        clock = MonotonicClock()
        deadline_ns = clock.now_ns() + int(self.plan.max_minutes * 60 * NS_PER_S)
        for look in range(LOOKS if self.plan.until_decided else 1):
            due = self.plan.rounds * 2**look
            # The first look is played to its end, whatever that takes.
            while self.rounds < due and (
                look == 0 or self._may_go_on(clock.now_ns() < deadline_ns)
            ):
                await self._round(self.rounds, endpoints)
                self.rounds += 1
                self._so_far = so_far(self.judge())
            self._share = 0.5 ** (look + 1) if self.plan.until_decided else 1.0
            judgement, budgets = self.judge(), self.budgets()
            # More turns may show as well that the caller was late by chance, and seldom.
            starved = too_starved(self.candidate.turns, judgement) is not None
            self._open_metrics = judgement is not None and (
                starved or judgement.verdict == "undecided"
            )
            undecided = starved or verdict_of(judgement, budgets)[0] == "undecided"
            if not undecided or not self._may_go_on(clock.now_ns() < deadline_ns):
                return

    def _may_go_on(self, in_time: bool) -> bool:
        """Return whether another round may decide; a stored baseline has only a few rounds."""
        used_up = self.stored is not None and not self._more_pairs()
        return in_time and not (self._open_metrics and used_up)

    async def _round(self, number: int, endpoints: Mapping[str, Endpoint]) -> None:
        """Play every scenario once if no reference is played, else twice on each side, A B B A."""
        phase = self.plan.phase_of(number)
        plays = [("candidate", number + 1)]
        if self.reference is not None:
            first, second = 2 * number + 1, 2 * number + 2
            plays = [("reference", first), ("candidate", first)]
            plays += [("candidate", second), ("reference", second)]
        for scenario in self.plan.scenarios:
            self._progress.on_step(scenario.scenario.name + self._so_far)
            for side, repeat in plays:
                with hints_for(side):
                    await self.runs[side].play(
                        scenario, endpoints[side], repeat=repeat, phase=phase
                    )

    def judge(self) -> Judgement | None:
        """Judge candidate and reference from the turns so far; None without a reference."""
        if self.reference is not None:
            pairs = baselines.pairs_of(
                baselines.readings(self.reference.turns), baselines.readings(self.candidate.turns)
            )
        elif self.stored is not None:
            pairs = baselines.matched(self.stored, self.candidate.turns).pairs
        else:
            return None
        return judge(pairs, self.plan.limits, share=self._share)

    def use(self) -> BaselineUse | None:
        """Return how well a stored baseline matches the turns so far; None without one.

        The counts are of candidate turns that the baseline cannot match, of pairs that more rounds
        could make, and of turns that were judged again.
        """
        if self.stored is None:
            return None
        matched = baselines.matched(self.stored, self.candidate.turns)
        return BaselineUse(
            unmatched=matched.unmatched, more_pairs=self._more_pairs(), rejudged=matched.rejudged
        )

    def _more_pairs(self) -> int:
        """Count the pairs that the stored baseline still has for further rounds."""
        if self.stored is None:
            return 0
        names = {s.scenario.name for s in self.plan.scenarios}
        return baselines.more_pairs(self.stored, names, self.rounds, self.plan.phase_ms_of)

    def budgets(self) -> tuple[BudgetRecord, ...]:
        return budgets_of(self.candidate.turns, self.plan.budgets, self.plan.target)


def so_far(judgement: Judgement | None) -> str:
    """Describe a verdict between two rounds, to follow a step's name; it ends no round."""
    if judgement is None:
        return ""
    typical = next((m for m in judgement.metrics if m.difference is not None), None)
    shift = f", {typical.name} {words.change(typical, typical.difference or 0)}" if typical else ""
    return f" (so far: {judgement.verdict}{shift})"


@contextmanager
def hints_for(side: str) -> Iterator[None]:
    """Name the reference's own flags in the hint of an error that the reference caused."""
    try:
        yield
    except TurngapError as e:
        hint = re.sub(r"--(dialect|header)(?= )", r"--against-\1", e.hint)
        hint = re.sub(r"--start\b(?!-)", "--start-against", hint).replace("--agent ", "--against ")
        if side == "candidate" or hint == e.hint:
            raise
        raise type(e)(e.kind, e.message, hint=hint) from e


@dataclass(frozen=True, slots=True)
class Played:
    """Both sides after they have been played, and the findings.

    Attributes:
        stored: the baseline that replaces the reference.
        obstacles: the reasons that forbid any verdict on these turns.
    """

    plan: CheckPlan
    started_utc: str
    rounds: int
    candidate: Run
    reference: Run | None
    stored: BaselineRecord | None
    judgement: Judgement | None
    budgets: tuple[BudgetRecord, ...]
    use: BaselineUse | None
    obstacles: Sequence[str]


def record_of(played: Played) -> CheckRecord:
    """Build the record for `check.json`, without the outcome of `--save`."""
    plan, judgement = played.plan, played.judgement
    verdict, why = verdict_of(judgement, played.budgets)
    if played.obstacles:
        verdict, why = "cannot_compare", tuple(played.obstacles)
    reference = played.reference
    return CheckRecord(
        verdict=verdict,
        why=why,
        started_utc=played.started_utc,
        finished_utc=utc_now(played.started_utc),
        machine=this_machine(),
        reference=_reference_side(reference, played.stored),
        candidate=side_of(played.candidate),
        scenarios=tuple(s.scenario.name for s in plan.scenarios),
        rounds=played.rounds,
        phases=plan.phases,
        starved_ms=plan.starved_ms,
        stand_ins=tuple(
            dict.fromkeys(
                name
                for target in (plan.candidate, plan.reference)
                if target is not None
                for name in target.stand_ins(s.scenario for s in plan.scenarios)
            )
        ),
        budgets=played.budgets,
        noise=noise_of(reference.turns, plan.limits) if reference is not None else None,
        baseline=played.use,
        command=plan.command,
        line=plan.line.text if plan.line else "",
        label=plan.label,
        **judged(judgement),
    )


def judged(judgement: Judgement | None) -> dict[str, Any]:
    """Return the fields of a `CheckRecord` that a judgement decides."""
    if judgement is None:
        return {"pairs": 0, "left_out": 0, "metrics": (), "stages": (), "moved_stage": None}
    return {
        "pairs": judgement.n,
        "left_out": judgement.left_out,
        "starvation": judgement.starvation,
        "metrics": judgement.metrics,
        "stages": judgement.stages,
        "moved_stage": judgement.moved_stage,
    }


def verdict_of(
    judgement: Judgement | None, budgets: Sequence[BudgetRecord]
) -> tuple[CheckVerdict, tuple[str, ...]]:
    """Decide the verdict over all metrics and budgets, and name what decided it."""
    parts = [(m.name, m.verdict) for m in judgement.metrics] if judgement else []
    parts += [(f"{b.name} within {b.budget_ms:g} ms", b.verdict) for b in budgets]
    if not parts:
        return "cannot_compare", (NOTHING_COMPARED,)
    verdicts: tuple[CheckVerdict, ...] = ("regressed", "undecided")
    for verdict in verdicts:
        names = [name for name, found in parts if found == verdict]
        if names:
            return verdict, (f"{verdict}: {', '.join(names)}",)
    return "pass", ()


def refusals(
    plan: CheckPlan, stored: BaselineRecord | None, hashes: Mapping[str, str]
) -> list[str]:
    """List why the baseline cannot be compared with any run made here and now."""
    if stored is None:
        return []
    line = plan.line.text if plan.line else ""
    reasons = baselines.why_not_comparable(stored, this_machine(), hashes, plan.starved_ms, line)
    return [f"the baseline cannot be compared: {reason}" for reason in reasons]


def another_line(stored: BaselineRecord | None, agent: Mapping[str, Any]) -> list[str]:
    """List why the baseline's line and this agent's line forbid a comparison."""
    why = stored and lines_differ(stored.agent, agent)
    return [f"the baseline cannot be compared: {why}"] if why else []


def obstacles(
    candidate: Run,
    reference: Run | None,
    failure: TurngapError | None,
    judgement: Judgement | None,
    starved_ms: float,
) -> list[str]:
    """List the reasons that forbid any verdict on the turns that were played."""
    if failure is not None:
        return [f"it ended early: {failure}"]
    for side, run in (("candidate", candidate), ("reference", reference)):
        if run is not None and not run.turns:
            return [f"the {side}'s run is invalid: no turn was finished"]
    starved = too_starved(candidate.turns, judgement)
    if starved is None:
        return []
    return [
        f"{starved}; its packets or its event loop were over {starved_ms:g} ms late: quiet the "
        "machine and run again, or accept that error with a larger starved-ms"
    ]


def too_starved(turns: Sequence[Turn], judgement: Judgement | None) -> str | None:
    """Return why the candidate cannot be judged because its caller was late; None if it can."""
    why = None if judgement is None else judgement.starvation.why_not_judged
    starved = sum(turn.pacing.starved for turn in turns)
    if why is None and starved > MAX_STARVED_PAIRS * len(turns):
        return f"the caller was starved in {starved} of {len(turns)} turns"
    return why


def why_not_saved(record: CheckRecord, plan: CheckPlan, obstacles: Sequence[str]) -> str | None:
    """Return why the candidate may not become the baseline; None if it may.

    A candidate that was slower than its own reference would set the standard for later ones.
    """
    if obstacles:
        return "; ".join(obstacles)
    if plan.only_saves or record.verdict == "pass":
        return None
    return f"the verdict is {record.verdict}"


def side_of(run: Run) -> SideRecord:
    """Describe a run as one side of a comparison."""
    return SideRecord(
        agent=run.record.agent,
        run=run.path.name,
        valid=run.record.valid,
        turns=len(run.turns),
        cut_ins=run.cut_ins,
        starved=run.summary.starved,
        caller_error_ms=run.summary.caller_error_ms,
        gap=_gap_of(run),
    )


def _gap_of(run: Run) -> GapRecord:
    counted = counted_turns(run.turns)
    gaps = [(t.gap_ms, t.key) for t in counted if t.replied and t.gap_ms is not None]
    slowest_ms, slowest = max(gaps, default=(None, None))
    gap = run.gap_ms
    return GapRecord(p50=gap.p50, p95=gap.p95, slowest_ms=slowest_ms, slowest=slowest)


def _reference_side(run: Run | None, stored: BaselineRecord | None) -> SideRecord | None:
    if run is not None:
        return side_of(run)
    if stored is None:
        return None
    return SideRecord(
        agent=stored.agent,
        run=None,
        valid=None,
        turns=len(stored.turns),
        cut_ins=CutIns.of([(turn.outcome, turn.take) for turn in stored.turns]),
        starved=sum(turn.caller_error_ms > 0 for turn in stored.turns),
        caller_error_ms=stored.caller_error_ms,
    )


# What a check reports besides its verdict on two agents: this machine's noise, and budgets.


def noise_of(turns: Sequence[Turn], limits: Limits | None = None) -> NoiseRecord | None:
    """Compare the reference with itself: its odd repeats with its even ones, the As of A B B A."""
    by_key = baselines.readings(turns)
    pairs = [
        Pair(key, reading, by_key[(*key[:3], key[3] + 1)])
        for key, reading in by_key.items()
        if key[3] % 2 == 1 and (*key[:3], key[3] + 1) in by_key
    ]
    shifts = [
        p.candidate.gap_ms - p.reference.gap_ms
        for p in pairs
        if p.candidate.gap_ms is not None and p.reference.gap_ms is not None
    ]
    if not shifts:
        return None
    return NoiseRecord(
        n=len(shifts),
        shift_p50_ms=median(shifts),
        spread_p95_ms=float(np.quantile(np.abs(shifts), 0.95)),
        verdict=judge(pairs, limits).verdict,
    )


def budgets_of(
    turns: Sequence[Turn], budgets: Mapping[str, float], target: float
) -> tuple[BudgetRecord, ...]:
    """Return each budget's verdict: `pass` and `regressed` only if the interval leaves no doubt.

    A starved caller must not decide either verdict. If it may have lengthened a turn's reading,
    that turn passes by the reading, but fails only if its shortest possible time is over the
    budget.
    """
    return tuple(_budget(turns, name, ms, target) for name, ms in budgets.items())


def _budget(turns: Sequence[Turn], name: str, budget_ms: float, target: float) -> BudgetRecord:
    replied = [turn for turn in turns if turn.replied]
    if name != "gap" and replied and not any(_spent(turn, name) for turn in replied):
        # An agent without marks: nothing was measured, so nothing is over.
        return BudgetRecord(
            name=name,
            budget_ms=budget_ms,
            target=target,
            verdict="undecided",
            n=0,
            share=None,
            low=None,
            high=None,
        )
    calls = Clusters.of_plays([turn.call for turn in turns])
    within = proportion_of([_within(turn, name, budget_ms) for turn in turns], calls)
    at_best = proportion_of(
        [_within(turn, name, budget_ms + _caller_error_ms(turn)) for turn in turns], calls
    )
    verdict = "undecided"
    if within.low is not None and within.low >= target:
        verdict = "pass"
    elif at_best.high is not None and at_best.high < target:
        verdict = "regressed"
    return BudgetRecord(
        name=name,
        budget_ms=budget_ms,
        target=target,
        verdict=verdict,
        n=within.n,
        share=within.value,
        low=within.low,
        high=at_best.high,
    )


def _caller_error_ms(turn: Turn) -> float:
    return turn.pacing.error_ms if turn.pacing.starved else 0.0


def _spent(turn: Turn, name: str) -> list[float]:
    """List the times in ms of the turn's stages of that name; empty if it has none."""
    return [stage.ms for stage in turn.stages if stage.name == name]


def _within(turn: Turn, name: str, budget_ms: float) -> bool:
    """Return whether the turn is within its budget; a turn without the figure is not."""
    if not turn.replied:
        return False
    if name == "gap":
        return turn.gap_ms is not None and turn.gap_ms <= budget_ms
    spent = _spent(turn, name)
    return bool(spent) and sum(spent) <= budget_ms
