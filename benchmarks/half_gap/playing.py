"""Pieces: a few agents over a few recordings, interleaved, each piece a folder of runs."""

from collections.abc import Sequence
from pathlib import Path

from half_gap.contenders import Contender
from turngap.caller.pipecat import PipecatDialect
from turngap.play.plan import PlayPlan, Progress
from turngap.play.run import RunInProgress, play_in_turns
from turngap.play.target import resolve
from turngap.scenario.library import LoadedScenario, library_dir
from turngap.store.runs import new_folder

AS = "half-the-gap"


async def play_piece(
    part: str,
    contenders: Sequence[Contender],
    scenarios: Sequence[LoadedScenario],
    out: Path,
    *,
    rounds: int = 1,
    phases: int = 1,
) -> Path:
    """Play one piece and keep it; returns its folder.

    Raises:
        TurngapError: an agent failed; what was played before is kept.
    """
    library = library_dir()
    folder = new_folder(out, part)
    plan = PlayPlan(scenarios=scenarios, dialect=PipecatDialect(), rounds=rounds, phases=phases)
    runs = [
        RunInProgress(
            plan,
            resolve(contender.choice(folder / "stacks"), library),
            f"{number:02d}",
            out=folder,
            settings={AS: contender.name, "part": part},
        )
        for number, contender in enumerate(contenders)
    ]
    progress = Progress(on_step=lambda step: print(f"  {part}: {step}", flush=True))
    failure = await play_in_turns(runs, plan, progress)
    for run in runs:
        run.finish(str(failure) if failure else None)
    if failure is not None:
        raise failure
    return folder
