"""Replay: scenarios against one agent, and the run judged at its end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turngap.caller.dialect import Dialect
from turngap.caller.line import open_line
from turngap.clocks import MonotonicClock
from turngap.core.budget import STARVED_MS
from turngap.core.errors import TurngapError
from turngap.core.results import Turn
from turngap.play.calibrate import calibrate
from turngap.play.run import RunInProgress, RunPlan, undisturbed
from turngap.play.target import Target
from turngap.scenario.library import LoadedScenario
from turngap.store.runs import Run


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What to play, and where to keep it.

    Attributes:
        phase: shifts every turn by so many samples on the agent's 32 ms grid.
        calibration_turns: loopback turns before the run; 0 for none (the run says so).
        settings: what the user asked for, stored with the run.
        starved_ms: how late the caller may be before a turn counts as starved.
    """

    scenarios: Sequence[LoadedScenario]
    target: Target
    dialect: Dialect
    repeat: int = 1
    phase: int = 0
    budget_ms: float | None = None
    out: Path | None = None
    calibration_turns: int = 0
    settings: dict[str, Any] | None = None
    greeting_ms: float | None = None
    starved_ms: float = STARVED_MS

    @property
    def turns(self) -> int:
        """How many turns the plan has."""
        return self.repeat * sum(len(s.scenario.turns) for s in self.scenarios)


@dataclass(frozen=True, slots=True)
class Progress:
    """Told while a replay runs: what it is doing, and each turn as it is stored."""

    on_step: Callable[[str], None] = lambda _: None
    on_turn: Callable[[Turn], None] = lambda _: None


async def replay(plan: ReplayPlan, progress: Progress) -> tuple[Run, TurngapError | None]:
    """Play the plan. The run is stored whatever happens; an error that ended it comes back too.

    Raises:
        InputError: the run's folder cannot be made.
    """
    run = RunInProgress(_run_plan(plan), progress.on_turn)
    failure: TurngapError | None = None
    try:
        with run.kept(), undisturbed():
            await _play_all(plan, run, progress)
    except TurngapError as e:
        failure = e
    return run.finish(str(failure) if failure else None), failure


async def _play_all(plan: ReplayPlan, run: RunInProgress, progress: Progress) -> None:
    progress.on_step(f"starting {plan.target.choice.name}")
    async with plan.target.serving(run.folder / "agent.log") as url:
        if plan.calibration_turns:
            if plan.target.choice.is_url:
                # An agent that is not there should be told of before the calibration's ten seconds.
                async with open_line(url, plan.dialect, MonotonicClock()):
                    pass
            progress.on_step("calibrating the instrument")
            log = run.folder / "calibration.log"
            run.calibration = (await calibrate(plan.calibration_turns, log=log)).record()
        for repeat in range(1, plan.repeat + 1):
            for scenario in plan.scenarios:
                progress.on_step(scenario.scenario.name)
                await run.play(scenario, url, repeat=repeat, phase=plan.phase)


def _run_plan(plan: ReplayPlan) -> RunPlan:
    return RunPlan(
        target=plan.target,
        scenarios=plan.scenarios,
        dialect=plan.dialect,
        planned_turns=plan.turns,
        name=plan.target.choice.name,
        budget_ms=plan.budget_ms,
        out=plan.out,
        settings=plan.settings,
        greeting_ms=plan.greeting_ms,
        starved_ms=plan.starved_ms,
    )
