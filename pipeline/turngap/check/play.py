"""The regression gate: candidate against reference, interleaved, until there is a verdict."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from turngap.caller.endpoint import Endpoint
from turngap.check import baseline as baselines
from turngap.check.findings import (
    Played,
    another_line,
    budgets_of,
    obstacles,
    record_of,
    refusals,
    too_starved,
    verdict_of,
    why_not_saved,
)
from turngap.check.plan import CheckPlan, refuse
from turngap.check.record import (
    CHECK_FILE,
    BaselineRecord,
    BaselineUse,
    BudgetRecord,
    CheckRecord,
    CheckVerdict,
    SaveRecord,
)
from turngap.check.verdict import Judgement, judge
from turngap.clocks import MonotonicClock, undisturbed
from turngap.core.clock import NS_PER_S
from turngap.core.errors import InputError, TurngapError
from turngap.play.plan import SILENT, Progress
from turngap.play.rounds import calibrate_each, identified
from turngap.play.run import RunInProgress, all_kept
from turngap.scenario.library import content_hashes
from turngap.store.documents import write_document
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
    """Play, judge and store. An agent that fails ends the check; what was played is kept.

    Where the baseline does not compare, nothing is played.

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
    """Save the candidate as a baseline where it may be one, and note what came of it."""
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
        """All planned rounds, and more while that is asked for and would decide."""
        self._progress.on_step("starting the agents")
        async with AsyncExitStack() as stack:
            endpoints: dict[str, Endpoint] = {}
            for side, run in self.runs.items():
                serving = run.target.serving(
                    *(run.folder / "agent.log", run.on_chosen),
                    self._progress.on_step,
                )
                endpoints[side] = await stack.enter_async_context(serving)
            for side, run in self.runs.items():
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
        """Each look uses up half of the errors that are left: a hundred looks would find anything.

        See docs/methodology.md, "The gate".
        """
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
        """Return whether another round may decide: a stored baseline has turns for only so many."""
        used_up = self.stored is not None and not self._more_pairs()
        return in_time and not (self._open_metrics and used_up)

    async def _round(self, number: int, endpoints: Mapping[str, Endpoint]) -> None:
        """Every scenario once (no reference at hand) or twice on each side, A B B A."""
        phase = self.plan.phase_of(number)
        plays = [("candidate", number + 1)]
        if self.reference is not None:
            first, second = 2 * number + 1, 2 * number + 2
            plays = [("reference", first), ("candidate", first)]
            plays += [("candidate", second), ("reference", second)]
        for scenario in self.plan.scenarios:
            self._progress.on_step(scenario.scenario.name)
            for side, repeat in plays:
                await self.runs[side].play(scenario, endpoints[side], repeat=repeat, phase=phase)

    def judge(self) -> Judgement | None:
        """Judge the two by what is known so far; None without a reference."""
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
        """Return how many turns the stored baseline has left and lacks; None without one."""
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
