"""Replay: scenarios against one agent, and the run judged at its end."""

from turngap.core.errors import TurngapError
from turngap.play.plan import SILENT, Progress, ReplayPlan
from turngap.play.run import RunInProgress, play_in_turns
from turngap.store.runs import Run


async def replay(plan: ReplayPlan, progress: Progress = SILENT) -> tuple[Run, TurngapError | None]:
    """Play the plan. The run is stored whatever happens; an error that ended it comes back too.

    Raises:
        InputError: the run's folder cannot be made.
    """
    run = RunInProgress(plan, plan.target, plan.target.choice.name, progress.on_turn)
    progress.on_folder(run.folder)
    failure = await play_in_turns([run], plan, progress)
    return run.finish(str(failure) if failure else None), failure
