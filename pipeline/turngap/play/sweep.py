"""One setting of an agent over several values, interleaved: what patience costs and saves."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turngap.caller.dialect import Dialect
from turngap.core.budget import STARVED_MS
from turngap.core.errors import InputError, TurngapError
from turngap.core.results import Turn
from turngap.core.summary import TurnTakingFigures, turn_taking
from turngap.play.run import RunInProgress, RunPlan, all_kept, play_interleaved, undisturbed
from turngap.play.target import AgentChoice, Target, resolve
from turngap.scenario.library import LoadedScenario
from turngap.store.runs import Run, new_folder

# Each value is a process of its own, about 200 MB, for as long as the sweep lasts.
MAX_VALUES = 8


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """What to vary, over which recordings.

    Attributes:
        setting: `table.key` of the stack, e.g. `turn.hold_ms`.
        values: as they would be written after `--set table.key=`.
        phases: so many positions on the agent's 32 ms grid, one after another over the rounds.
        starved_ms: how late the caller may be before a turn counts as starved.
    """

    choice: AgentChoice
    library: Path
    setting: str
    values: Sequence[str]
    scenarios: Sequence[LoadedScenario]
    dialect: Dialect
    rounds: int = 1
    phases: int = 1
    out: Path | None = None
    starved_ms: float = STARVED_MS

    @property
    def turns(self) -> int:
        """How many turns are played in all."""
        return self.rounds * len(self.values) * sum(len(s.scenario.turns) for s in self.scenarios)

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
        """Whether the figures of every point hold."""
        return all(p.run.record.valid for p in self.points)

    def as_json(self) -> dict[str, Any]:
        """The document of `sweep --json`."""
        return {
            "setting": self.setting,
            "path": str(self.path),
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


async def sweep(
    plan: SweepPlan,
    on_step: Callable[[str], None] = lambda _: None,
    on_turn: Callable[[Turn], None] = lambda _: None,
    on_folder: Callable[[Path], None] = lambda _: None,
) -> tuple[Sweep, TurngapError | None]:
    """Play every scenario with each value in turn, so that a slow spell hits them all alike.

    The runs are stored whatever happens; an error that ended them comes back too.
    """
    targets = plan.targets()
    folder = new_folder(plan.out, f"sweep-{plan.setting.replace('.', '-')}")
    on_folder(folder)
    runs = [
        RunInProgress(_run_plan(plan, target, value, folder), on_turn)
        for target, value in zip(targets, plan.values, strict=True)
    ]
    failure: TurngapError | None = None
    try:
        with all_kept(runs), undisturbed():
            await play_interleaved(
                list(zip(targets, runs, strict=True)),
                plan.scenarios,
                rounds=plan.rounds,
                phases=plan.phases,
                on_step=on_step,
            )
    except TurngapError as e:
        failure = e
    stored = [run.finish(str(failure) if failure else None) for run in runs]
    points = tuple(
        SweepPoint(value, turn_taking(run.turns), run)
        for value, run in zip(plan.values, stored, strict=True)
    )
    return Sweep(plan.setting, points, folder), failure


def _run_plan(plan: SweepPlan, target: Target, value: str, folder: Path) -> RunPlan:
    return RunPlan(
        target=target,
        scenarios=plan.scenarios,
        dialect=plan.dialect,
        planned_turns=plan.turns // len(plan.values),
        name=f"{plan.setting}-{value}",
        out=folder,
        settings={"sweep": plan.setting, "value": value},
        starved_ms=plan.starved_ms,
    )
