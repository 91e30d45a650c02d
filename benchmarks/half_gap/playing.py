"""Pieces: a few agents over a few recordings, each piece a folder of runs."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from loguru import logger

from half_gap.contenders import Contender
from turngap.core.budget import STARVED_MS
from turngap.core.errors import AgentError
from turngap.play.plan import PlayPlan, Progress
from turngap.play.rounds import play_in_turns
from turngap.play.run import RunInProgress
from turngap.play.target import resolve
from turngap.play.virtual import play_in_virtual_time
from turngap.scenario.library import LoadedScenario
from turngap.store.folders import new_folder

AS = "half-the-gap"
# More would not help on two cores, and a process takes 300 MB.
PROCESSES = 2


@dataclass(frozen=True)
class Piece:
    """Assignment of agents to recordings.

    Attributes:
        condition: of the line, where people are played; "" otherwise.
        library: whose sentences the agents' engines know.
        phases: how many positions on the agents' 32 ms grid the rounds go through.
    """

    part: str
    contenders: Sequence[Contender]
    scenarios: Sequence[LoadedScenario]
    library: Path
    condition: str = ""
    rounds: int = 1
    phases: int = 1
    starved_ms: float = STARVED_MS

    @property
    def plan(self) -> PlayPlan:
        return PlayPlan(
            scenarios=self.scenarios,
            rounds=self.rounds,
            phases=self.phases,
            starved_ms=self.starved_ms,
        )

    def run(self, number: int, folder: Path, *, virtual: bool) -> RunInProgress:
        """Begin the run of the contender of that number."""
        contender = self.contenders[number]
        return RunInProgress(
            self.plan,
            resolve(contender.choice(folder / "stacks"), self.library),
            f"{number:02d}",
            out=folder,
            settings={
                AS: contender.name,
                "part": self.part,
                "condition": self.condition,
                "virtual": virtual,
            },
        )


async def play_in_real_time(piece: Piece, out: Path) -> None:
    """Play one piece, its agents interleaved (A B C, C B A), and keep it.

    Raises:
        TurngapError: an agent failed; what was played before is kept.
    """
    folder = new_folder(out, piece.part)
    runs = [piece.run(n, folder, virtual=False) for n in range(len(piece.contenders))]
    progress = Progress(on_step=lambda step: print(f"  {piece.part}: {step}", flush=True))
    failure = await play_in_turns(runs, piece.plan, progress)
    for run in runs:
        run.finish(str(failure) if failure else None)
    if failure is not None:
        raise failure


def play_at_once(piece: Piece, out: Path) -> None:
    """Play one piece in virtual time, in which no agent can disturb another, and keep it.

    Raises:
        TurngapError: an agent failed; what was played before is kept.
    """
    folder = new_folder(out, piece.part)
    play = partial(_play_alone, piece, folder)
    with ProcessPoolExecutor(PROCESSES, get_context("spawn")) as pool:
        failures = list(pool.map(play, range(len(piece.contenders))))
    for failed in failures:
        if failed is not None:
            kind, message, hint = failed
            raise AgentError(kind, message, hint=hint)


def _play_alone(piece: Piece, folder: Path, number: int) -> tuple[str, str, str] | None:
    logger.remove()
    run = piece.run(number, folder, virtual=True)
    failure = play_in_virtual_time([run], piece.plan)
    run.finish(str(failure) if failure else None)
    what = " ".join(filter(None, (piece.part, piece.condition)))
    print(f"  {what}: {piece.contenders[number].name}, {len(run.turns)} turns", flush=True)
    return failure and (failure.kind, failure.message, failure.hint)
