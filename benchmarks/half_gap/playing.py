"""Pieces: a few agents over a few recordings, interleaved, each piece a folder of runs."""

from collections.abc import Sequence
from pathlib import Path

from half_gap.contenders import Contender
from turngap.caller.pipecat import PipecatDialect
from turngap.play.run import RunInProgress, RunPlan, play_interleaved, undisturbed
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
    turns = rounds * sum(len(s.scenario.turns) for s in scenarios)
    sides = [
        (
            target := resolve(contender.choice(folder / "stacks"), library),
            RunInProgress(
                RunPlan(
                    target=target,
                    scenarios=scenarios,
                    dialect=PipecatDialect(),
                    planned_turns=turns,
                    name=f"{number:02d}",
                    out=folder,
                    settings={AS: contender.name, "part": part},
                )
            ),
        )
        for number, contender in enumerate(contenders)
    ]
    failure: str | None = None
    try:
        with undisturbed():
            await play_interleaved(
                sides,
                scenarios,
                rounds=rounds,
                phases=phases,
                on_step=lambda step: print(f"  {part}: {step}", flush=True),
            )
    except BaseException as e:
        failure = str(e) or type(e).__name__
        raise
    finally:
        for _, run in sides:
            run.finish(failure)
    return folder
