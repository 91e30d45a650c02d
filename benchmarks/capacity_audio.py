"""A search with recordings, against the scripted agent in memory, in virtual time."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast, overload

from capacity_agent import COOL_DOWN_S, HIGHEST, WARM_UP_S, Trial

from turngap.caller.line import Line
from turngap.core.budget import DEFAULT_BUDGET_MS
from turngap.load.calls import play_step
from turngap.load.expected import shape_of
from turngap.load.figures import evidence_of, figures_of
from turngap.load.probe import Pace
from turngap.load.record import StepFigures
from turngap.load.schedule import Step, held_for, turn_s
from turngap.load.search import TARGET, Search
from turngap.load.share import LinePlayer
from turngap.load.steps import at_once
from turngap.scenario.library import LoadedScenario, chosen
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

SCENARIO = "quick-questions"
QUICK, SLOW = Reply(delay_ms=420, speech_ms=1500), Reply(delay_ms=1500, speech_ms=1500)


@dataclass
class _Replies(Sequence[Reply]):
    """The one reply of a script, which is slow while more calls run than the agent holds."""

    capacity: int
    running: int = 0

    def __len__(self) -> int:
        return 1

    @overload
    def __getitem__(self, index: int) -> Reply: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Reply]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return SLOW if self.running > self.capacity else QUICK


def searched_with_audio(capacity: int, seed: int, highest: int = HIGHEST) -> Trial:
    """Search for the most sessions that the scripted agent holds."""
    _, scenarios = chosen("embedded", [SCENARIO], None, None)
    shapes = [shape_of(scenario) for scenario in scenarios]
    search = Search(highest, Pace(turn_s(shapes), WARM_UP_S + 4.0))
    steps, seconds = list[StepFigures](), 0.0
    while (probe := search.next()) is not None:
        window, calls = held_for(
            shapes,
            probe.sessions,
            probe.turns,
            seed * 1000 + len(steps),
            warm_up_s=WARM_UP_S,
            cool_down_s=COOL_DOWN_S,
        )
        step = Step(len(steps) + 1, probe.sessions, window, calls)
        steps.append(_played(step, scenarios, capacity))
        seconds += search.pace.seconds(probe)
        search.observe(probe, evidence_of(steps[-1]))
    return Trial(search, steps, seconds)


def _played(step: Step, scenarios: Sequence[LoadedScenario], capacity: int) -> StepFigures:
    replies = _Replies(capacity)
    script = Script(replies=cast("tuple[Reply, ...]", replies))

    @asynccontextmanager
    async def opens(_: object) -> AsyncIterator[Line]:
        replies.running += 1
        try:
            async with line_to(script) as line:
                yield line
        finally:
            replies.running -= 1

    async def main() -> StepFigures:
        clock = LoopClock()
        player = LinePlayer(scenarios, opens, clock, budget_ms=DEFAULT_BUDGET_MS, watch=clock)
        played = await play_step(step, player, clock)
        return figures_of(
            step,
            [turn for turn in played.turns if turn.counted],
            budget_ms=DEFAULT_BUDGET_MS,
            target=TARGET,
            at_once=at_once(played.marks, step.window),
        )

    return in_virtual_time(main())
