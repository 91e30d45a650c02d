"""The regression gate: candidate against reference, interleaved, until there is a verdict."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from turngap.caller.dialect import Dialect
from turngap.clocks import MonotonicClock
from turngap.core.checks import (
    CHECK_FILE,
    BaselineRecord,
    BudgetRecord,
    CheckRecord,
    CheckVerdict,
    MetricRecord,
    SideRecord,
    StageShiftRecord,
)
from turngap.core.clock import NS_PER_S
from turngap.core.errors import InputError, TurngapError
from turngap.core.lateness import STARVED_MS
from turngap.core.results import TurnRecord
from turngap.core.verdict import Judgement, Limits, Pair, judge
from turngap.files import is_dir, write_atomically
from turngap.harness import baseline as baselines
from turngap.harness.calibrate import calibrate
from turngap.harness.check_figures import budgets_of, noise_of
from turngap.harness.run import RunInProgress, RunPlan, content_hash, undisturbed
from turngap.harness.target import Target
from turngap.library import LoadedScenario
from turngap.provenance import this_machine, without_url_secrets
from turngap.runs import StoredRun, new_folder, utc_now

# A window of the agent's VAD, in samples: what phases are spread over.
VAD_WINDOW = 512
# So often at most `--until-decided` looks at what there is, each time after twice as many rounds.
LOOKS = 5


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """What to compare, and for how long.

    Attributes:
        reference: an agent at hand; None to compare with `baseline`, or with budgets alone.
        rounds: how often the scenarios are played; with a reference at hand each round plays them
            twice on both sides, in the order A B B A.
        phases: so many positions on the agent's 32 ms grid, one after another over the rounds.
        budgets: `gap` or a stage's name to its budget in ms.
        target: the share of turns that must be within each budget.
        until_decided: go on with more rounds while undecided, up to `max_minutes` or to 16 times
            the rounds.
        starved_ms: how late the caller may be before a turn counts as starved.
    """

    candidate: Target
    scenarios: Sequence[LoadedScenario]
    dialect: Dialect
    reference: Target | None = None
    baseline: Path | None = None
    save: Path | None = None
    rounds: int = 2
    phases: int = 1
    limits: Limits = field(default_factory=Limits)
    budgets: Mapping[str, float] = field(default_factory=dict)
    target: float = 0.95
    until_decided: bool = False
    max_minutes: float = 10.0
    calibration_turns: int = 8
    out: Path | None = None
    settings: dict[str, Any] | None = None
    starved_ms: float = STARVED_MS

    @property
    def turns(self) -> int:
        """How many turns the planned rounds play, on both sides together."""
        once = sum(len(s.scenario.turns) for s in self.scenarios)
        return self.rounds * once * (1 if self.reference is None else 4)


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """Told while a check runs."""

    on_step: Callable[[str], None] = lambda _: None
    on_turn: Callable[[str, TurnRecord], None] = lambda _side, _turn: None


@dataclass(frozen=True, slots=True)
class Checked:
    """A finished check: its record as stored, and the runs behind it."""

    record: CheckRecord
    path: Path
    candidate: StoredRun
    reference: StoredRun | None
    failure: TurngapError | None


async def check(plan: CheckPlan, progress: CheckProgress) -> Checked:
    """Play, judge and store. An agent that fails ends the check; what was played is kept.

    Where the baseline does not compare, nothing is played.

    Raises:
        InputError: the baseline cannot be read, or the folder cannot be made.
    """
    started = utc_now()
    if plan.save is not None and not is_dir(plan.save.parent):
        raise InputError(
            "baseline.unwritable",
            f"{plan.save}: there is no folder {plan.save.parent} to save it in",
            hint=f"mkdir -p {plan.save.parent}",
        )
    stored = None if plan.baseline is None else baselines.load(plan.baseline)
    refused = _refused(plan, stored)
    folder = new_folder(plan.out, "check")
    sides = _Sides(plan, folder, progress, stored)
    failure: TurngapError | None = None
    try:
        with undisturbed(), sides.kept():
            if not refused:
                await sides.play()
    except TurngapError as e:
        failure = e
    candidate, reference = sides.finish(failure)
    obstacles = refused or _obstacles(candidate, reference, failure)
    record = _record(sides, candidate, reference, started, obstacles)
    document = record.model_dump_json(indent=2).encode()
    write_atomically(folder / CHECK_FILE, document)
    if plan.save is not None and not obstacles:
        baselines.save(plan.save, candidate.record, candidate.turns)
    return Checked(record, folder, candidate, reference, failure)


class _Sides:
    """Both runs while they are played."""

    def __init__(
        self,
        plan: CheckPlan,
        folder: Path,
        progress: CheckProgress,
        stored: BaselineRecord | None,
    ) -> None:
        self.plan = plan
        self.stored = stored
        self._folder = folder
        self._progress = progress
        self._share = 1.0
        self.rounds = 0
        self.candidate = self._run(plan.candidate, "candidate")
        self.reference = self._run(plan.reference, "reference") if plan.reference else None

    def _run(self, target: Target, side: str) -> RunInProgress:
        plan = RunPlan(
            target=target,
            scenarios=self.plan.scenarios,
            dialect=self.plan.dialect,
            planned_turns=self.plan.turns // (1 if self.plan.reference is None else 2),
            name=side,
            out=self._folder,
            settings=self.plan.settings,
            starved_ms=self.plan.starved_ms,
        )
        return RunInProgress(plan, lambda turn: self._progress.on_turn(side, turn))

    async def play(self) -> None:
        """All planned rounds, and more while that is asked for and would decide."""
        if self.plan.calibration_turns:
            self._progress.on_step("calibrating the instrument")
            log = self._folder / "calibration.log"
            calibration = await calibrate(self.plan.calibration_turns, log=log)
            self.candidate.calibration = calibration.record()
        async with AsyncExitStack() as stack:
            await self._rounds(await self._serve(stack))

    async def _rounds(self, urls: Mapping[str, str]) -> None:
        """Each look uses up half of the errors that are left: a hundred looks would find anything.

        See docs/methodology.md, "The gate".
        """
        clock = MonotonicClock()
        deadline_ns = clock.now_ns() + int(self.plan.max_minutes * 60 * NS_PER_S)
        for look in range(LOOKS if self.plan.until_decided else 1):
            due = self.plan.rounds * 2**look
            while self.rounds < due and (look == 0 or clock.now_ns() < deadline_ns):
                await self._round(self.rounds, urls)
                self.rounds += 1
            self._share = 0.5 ** (look + 1) if self.plan.until_decided else 1.0
            verdict, _ = self.verdict()
            if verdict != "undecided" or clock.now_ns() >= deadline_ns:
                return

    async def _serve(self, stack: AsyncExitStack) -> dict[str, str]:
        self._progress.on_step("starting the agents")
        urls: dict[str, str] = {}
        for side, run, target in (
            ("candidate", self.candidate, self.plan.candidate),
            ("reference", self.reference, self.plan.reference),
        ):
            if run is not None and target is not None:
                log = run.folder / "agent.log"
                urls[side] = await stack.enter_async_context(target.serving(log))
        return urls

    async def _round(self, number: int, urls: Mapping[str, str]) -> None:
        """Every scenario once (no reference at hand) or twice on each side, A B B A."""
        phase = (number % self.plan.phases) * VAD_WINDOW // self.plan.phases
        first, second = 2 * number + 1, 2 * number + 2
        for scenario in self.plan.scenarios:
            self._progress.on_step(scenario.scenario.name)
            if self.reference is None:
                await self.candidate.play(
                    scenario, urls["candidate"], repeat=number + 1, phase=phase
                )
                continue
            for run, side, repeat in (
                (self.reference, "reference", first),
                (self.candidate, "candidate", first),
                (self.candidate, "candidate", second),
                (self.reference, "reference", second),
            ):
                await run.play(scenario, urls[side], repeat=repeat, phase=phase)

    def pairs(self) -> list[Pair]:
        """The turns that both sides have taken so far."""
        candidate = baselines.readings(self.candidate.turns)
        if self.reference is not None:
            return baselines.pairs_of(baselines.readings(self.reference.turns), candidate)
        if self.stored is not None:
            return baselines.pairs_of(baselines.baseline_readings(self.stored), candidate)
        return []

    def judge(self) -> Judgement | None:
        """What is known of the two so far; None without a reference."""
        if self.reference is None and self.stored is None:
            return None
        return judge(self.pairs(), self.plan.limits, share=self._share)

    def budgets(self) -> tuple[BudgetRecord, ...]:
        """What is known of the candidate's budgets so far."""
        return budgets_of(self.candidate.turns, self.plan.budgets, self.plan.target)

    def verdict(self) -> tuple[CheckVerdict, tuple[str, ...]]:
        """The verdict so far, and what decided."""
        return _verdict(self.judge(), self.budgets())

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Store both runs also where something else than an agent ends them."""
        with self.candidate.kept():
            if self.reference is None:
                yield
                return
            with self.reference.kept():
                yield

    def finish(self, failure: TurngapError | None) -> tuple[StoredRun, StoredRun | None]:
        """Close both runs."""
        why = str(failure) if failure else None
        reference = self.reference.finish(why) if self.reference else None
        return self.candidate.finish(why), reference


def _record(
    sides: _Sides,
    candidate: StoredRun,
    reference: StoredRun | None,
    started: str,
    obstacles: Sequence[str],
) -> CheckRecord:
    judgement = sides.judge()
    verdict, why = ("cannot_compare", tuple(obstacles)) if obstacles else sides.verdict()
    return CheckRecord(
        verdict=verdict,
        why=why,
        started_utc=started,
        finished_utc=utc_now(),
        machine=this_machine(),
        reference=_reference_side(reference, sides.stored),
        candidate=_side(candidate),
        rounds=sides.rounds,
        pairs=judgement.n if judgement else 0,
        left_out=judgement.left_out if judgement else 0,
        metrics=tuple(MetricRecord(**asdict(m)) for m in judgement.metrics) if judgement else (),
        stages=tuple(StageShiftRecord(**asdict(s)) for s in judgement.stages) if judgement else (),
        moved_stage=judgement.moved_stage if judgement else None,
        budgets=sides.budgets(),
        noise=noise_of(reference.turns) if reference is not None else None,
    )


def _side(run: StoredRun) -> SideRecord:
    return SideRecord(
        agent=run.record.agent, run=run.path.name, valid=run.record.valid, turns=len(run.turns)
    )


def _reference_side(run: StoredRun | None, stored: BaselineRecord | None) -> SideRecord | None:
    if run is not None:
        return _side(run)
    if stored is None:
        return None
    return SideRecord(agent=stored.agent, run=None, valid=None, turns=len(stored.turns))


def _refused(plan: CheckPlan, stored: BaselineRecord | None) -> list[str]:
    """Why the baseline says nothing about any run made here and now."""
    if stored is None:
        return []
    hashes = {s.scenario.name: content_hash(s) for s in plan.scenarios}
    reasons = baselines.why_not_comparable(stored, this_machine(), hashes)
    return [f"the baseline does not compare: {reason}" for reason in reasons]


def _obstacles(
    candidate: StoredRun, reference: StoredRun | None, failure: TurngapError | None
) -> list[str]:
    """What forbids any verdict on what was played."""
    if failure is not None:
        return [f"it ended early: {without_url_secrets(str(failure))}"]
    found: list[str] = []
    for side, run in (("candidate", candidate), ("reference", reference)):
        if run is not None and not run.record.valid:
            found += [f"the {side}'s run is invalid: {why}" for why in run.record.why_invalid]
    return found


def _verdict(
    judgement: Judgement | None, budgets: Sequence[BudgetRecord]
) -> tuple[CheckVerdict, tuple[str, ...]]:
    parts = [(m.name, m.verdict) for m in judgement.metrics] if judgement else []
    parts += [(f"{b.name} within {b.budget_ms:g} ms", b.verdict) for b in budgets]
    verdicts: tuple[CheckVerdict, ...] = ("regressed", "undecided")
    for verdict in verdicts:
        names = [name for name, found in parts if found == verdict]
        if names:
            return verdict, (f"{verdict}: {', '.join(names)}",)
    return "pass", ()
