"""Conversations in rounds, with one agent or several in turn, so a slow spell hits all of them."""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from turngap.caller.endpoint import Endpoint
from turngap.caller.identify import identify
from turngap.clocks import MonotonicClock, undisturbed
from turngap.core.errors import TurngapError
from turngap.core.run_record import CalibrationRecord
from turngap.play.calibrate import calibrate
from turngap.play.plan import SILENT, PlayPlan, Progress, ReplayPlan
from turngap.play.run import RunInProgress, all_kept
from turngap.play.target import Target
from turngap.store.runs import Run
from turngap.telemetry import OFF, Telemetry
from turngap.testing.dialects import HALVES


async def replay(plan: ReplayPlan, progress: Progress = SILENT) -> tuple[Run, TurngapError | None]:
    """Play the plan. The run is always stored; an error that ended it is returned too.

    Raises:
        InputError: the run's folder cannot be made.
    """
    target = plan.target
    run = RunInProgress(
        plan, target, target.choice.name, progress.on_turn, continues=plan.continues
    )
    progress.on_folder(run.folder)
    failure = None
    if any(run.lacks(*played) for played in plan.conversations()):
        failure = await play_in_turns([run], plan, progress)
    played = run.finish(str(failure) if failure else None)
    return played, failure or run.unwritten


async def play_in_turns(
    runs: Sequence[RunInProgress], plan: PlayPlan, progress: Progress
) -> TurngapError | None:
    """Play every scenario against each run's agent, each round in the opposite order of the last.

    Returns the error that ended it, if any: an agent does not start, cannot be reached, or the line
    was lost. Everything finished before is stored.
    """
    try:
        with all_kept(runs), undisturbed():
            await _play_rounds(runs, plan, progress)
    except TurngapError as e:
        return e
    return None


async def _play_rounds(runs: Sequence[RunInProgress], plan: PlayPlan, progress: Progress) -> None:
    async with AsyncExitStack() as stack:
        several = len(runs) > 1
        progress.on_step(f"starting {'the agents' if several else runs[0].target.choice.name}")
        served = [
            (
                run,
                await stack.enter_async_context(
                    run.target.serving(run.folder / "agent.log", run.on_chosen, progress.on_step)
                ),
            )
            for run in runs
        ]
        served = [
            (r, await identified(r.target, endpoint, plan.telemetry, progress.on_step))
            for r, endpoint in served
        ]
        await calibrate_each(served, plan, progress)
        for number in range(plan.rounds):
            phase = plan.phase_of(number)
            for scenario in plan.scenarios:
                progress.on_step(scenario.scenario.name)
                for run, endpoint in served if number % 2 == 0 else reversed(served):
                    if run.lacks(scenario, number + 1, phase):
                        await run.play(scenario, endpoint, repeat=number + 1, phase=phase)
        for run in runs:
            run.require_a_call()


async def identified(
    target: Target,
    endpoint: Endpoint,
    telemetry: Telemetry = OFF,
    on_step: Callable[[str], None] = lambda _: None,
) -> Endpoint:
    """Find out the dialect of an agent at a URL, and that it answers, before anything is played.

    An agent whose dialect is named gets no call, because a phone bot would start its pipeline for
    it. With telemetry, the agent must not trace the calls made here.

    Raises:
        AgentError: it does not answer, or speaks no known dialect.
    """
    if not target.choice.is_url:
        return endpoint
    clock = MonotonicClock()
    if not endpoint.dialect:
        called = endpoint.with_headers(telemetry.untraced)
        named = await identify(called, clock, lambda name: on_step(f"trying {name}"))
        return replace(endpoint, dialect=named.dialect)
    await endpoint.knock()
    return endpoint


async def calibrate_each(
    served: Sequence[tuple[RunInProgress, Endpoint]], plan: PlayPlan, progress: Progress
) -> None:
    """Measure the instrument once in each dialect that is spoken, as the plan asks.

    The figures are stored with the first run in that dialect. If no loopback agent speaks a run's
    dialect, the run is not calibrated and says so.
    """
    if not plan.calibration_turns:
        return
    first = {endpoint.dialect: (run, endpoint) for run, endpoint in reversed(served)}
    for dialect, (run, _) in first.items():
        progress.on_step("calibrating the instrument")
        run.calibration = await calibrated(dialect, plan.calibration_turns, run.folder)


async def calibrated(dialect: str, turns: int, folder: Path) -> CalibrationRecord | None:
    """Measure the instrument in a dialect; None if no loopback agent speaks it.

    Raises:
        InconclusiveError: as `calibrate`.
    """
    if not turns or Endpoint("", dialect).spec().name not in HALVES:
        return None
    found = await calibrate(turns, dialect=dialect, log=folder / "calibration.log")
    return found.record()
