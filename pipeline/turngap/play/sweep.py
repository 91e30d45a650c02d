"""One setting of an agent over several values, interleaved: what patience costs and saves."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turngap.core.errors import InputError, TurngapError
from turngap.core.summary import TurnTakingFigures, turn_taking
from turngap.play.plan import SILENT, PlayPlan, Progress
from turngap.play.run import RunInProgress, play_in_turns
from turngap.play.target import AgentChoice, Target, resolve
from turngap.store.runs import Run, new_folder

# Each value is a process of its own, about 200 MB, for as long as the sweep lasts.
MAX_VALUES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan(PlayPlan):
    """What to vary, over which recordings.

    Attributes:
        setting: `table.key` of the stack, e.g. `turn.hold_ms`.
        values: as they would be written after `--set table.key=`.
    """

    choice: AgentChoice
    library: Path
    setting: str
    values: Sequence[str]

    @property
    def agents(self) -> int:
        return len(self.values)

    def targets(self) -> list[Target]:
        """One agent a value, checked before anything is started.

        Raises:
            InputError: a value that the stack refuses, too many of them, or somebody's server.
        """
        if not 2 <= len(self.values) <= MAX_VALUES:
            raise InputError(
                "sweep.values",
                f"{len(self.values)} values for {self.setting}; expected 2 to {MAX_VALUES}",
                hint="for example: turngap sweep turn.hold_ms=0,100,200,400",
            )
        if self.choice.is_url:
            raise InputError("sweep.url", f"{self.choice.agent} is a running agent; name a stack")
        return [resolve(self._with(value), self.library) for value in self.values]

    def _with(self, value: str) -> AgentChoice:
        sets = (*self.choice.sets, f"{self.setting}={value}")
        return dataclasses.replace(self.choice, sets=sets)


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One value and what came of it."""

    value: str
    figures: TurnTakingFigures
    run: Run


@dataclass(frozen=True, slots=True)
class Sweep:
    """All points, in the order of the values."""

    setting: str
    points: tuple[SweepPoint, ...]
    path: Path

    @property
    def valid(self) -> bool:
        return all(p.run.record.valid for p in self.points)

    def as_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "path": str(self.path),
            "stand_ins": list(self.points[0].run.record.stand_ins) if self.points else [],
            "points": [
                {
                    "value": p.value,
                    "turns": len(p.run.turns),
                    "valid": p.run.record.valid,
                    "why_invalid": list(p.run.record.why_invalid),
                    "gap_ms_p50": p.figures.gap_ms.value,
                    **p.figures.as_json(),
                    "cut_in_rate_ci95": [p.figures.cut_ins.low, p.figures.cut_ins.high],
                }
                for p in self.points
            ],
        }


async def sweep(plan: SweepPlan, progress: Progress = SILENT) -> tuple[Sweep, TurngapError | None]:
    """Play every scenario with each value in turn, so that a slow spell hits them all alike.

    The runs are stored whatever happens; an error that ended them comes back too.
    """
    targets = plan.targets()
    folder = new_folder(plan.out, f"sweep-{plan.setting.replace('.', '-')}")
    progress.on_folder(folder)
    runs = [
        RunInProgress(
            plan,
            target,
            f"{plan.setting}-{value}",
            progress.on_turn,
            out=folder,
            settings={"sweep": plan.setting, "value": value},
        )
        for target, value in zip(targets, plan.values, strict=True)
    ]
    failure = await play_in_turns(runs, plan, progress)
    stored = [run.finish(str(failure) if failure else None) for run in runs]
    points = tuple(
        SweepPoint(value, turn_taking(run.turns), run)
        for value, run in zip(plan.values, stored, strict=True)
    )
    return Sweep(plan.setting, points, folder), failure
