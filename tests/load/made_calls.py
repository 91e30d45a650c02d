"""Small scenarios and scripted agents that a load test plays against in virtual time."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
from made_records import make_turn

from turngap.caller.connection import Line
from turngap.core.budget import STARVED_MS
from turngap.core.clock import NS_PER_S, Clock
from turngap.core.cue import SpeechBounds
from turngap.core.results import Turn
from turngap.core.stored import MarkRecord, PacingRecord
from turngap.load.calls import LinePlayer, Played, play_calls
from turngap.load.plan import shape_of
from turngap.load.schedule import Call, Step, Window, held
from turngap.scenario.library import Clip, LoadedScenario
from turngap.scenario.model import Scenario, UserTurn
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import Course, line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

RATE = 16_000
BUDGET_MS = 800.0
ANSWERS = Script(replies=(Reply(delay_ms=300, speech_ms=200),))

# Opens the line of the call that is made as the n-th, counted from 1.
Opens = Callable[[int, Clock], AbstractAsyncContextManager[Line]]


def scenario_of(turns: int, name: str = "made") -> LoadedScenario:
    """A conversation of short turns, each with a reply of six characters."""
    speech = SpeechBounds(start_ms=60, end_ms=360)
    t = np.arange(round(0.3 * RATE)) / RATE
    tone = (np.cos(2 * np.pi * 250 * t) * 8000).astype(np.int16)
    room = np.zeros(round(0.06 * RATE), dtype=np.int16)
    clip = Clip(np.concatenate((room, tone, room)), RATE, speech)
    said = UserTurn(say="hello", audio="a.flac", speech=speech, pauses=(), reply="hello.")
    scenario = Scenario(name=name, turns=(said,) * turns)
    return LoadedScenario(scenario, Path(f"{name}.yaml"), {"a.flac": clip})


def turn_of(number: int, gap_ms: float = 300.0, late_ms: float = 0.0) -> Turn:
    """An answered turn as a caller tells it."""
    pacing = PacingRecord(
        packets=50,
        late_ms_p50=late_ms,
        late_ms_max=late_ms,
        loop_lag_ms_max=late_ms,
        starved=late_ms > STARVED_MS,
    )
    mark = MarkRecord(name="user_end", at_ns=0, vantage="caller")  # by which a trace places it
    return make_turn(
        scenario="made",
        turn=number,
        say="hello",
        marks_ms={"agent_onset": gap_ms},
        marks=(mark,),
        pacing=pacing,
        audio=None,
    )


def opening(script_of: Callable[[int], Script | Course]) -> Opens:
    """Lines to an agent that does in the n-th call what the script for it says."""

    @asynccontextmanager
    async def opens(number: int, clock: Clock) -> AsyncIterator[Line]:
        async with line_to(script_of(number), clock=clock) as line:
            yield line

    return opens


def step_of(scenario: LoadedScenario, sessions: int, window: Window, seed: int = 1) -> Step:
    """A step that holds a level with one scenario."""
    return Step(1, sessions, window, held([shape_of(scenario)], sessions, window, seed))


def played(
    step: Step,
    scenarios: LoadedScenario | Sequence[LoadedScenario],
    opens: Opens,
    calls: Sequence[Call] | None = None,
    **how: Any,
) -> tuple[Played, dict[int, float]]:
    """Play a step, or one caller's `calls` of it, with a `LinePlayer` made as `how` says.

    Return what was reported, and when each line was asked for, in seconds.
    """
    scenarios = [scenarios] if isinstance(scenarios, LoadedScenario) else scenarios
    asked: dict[int, float] = {}

    async def main() -> Played:
        clock, reported = LoopClock(), Played()

        def opens_next(_: object) -> AbstractAsyncContextManager[Line]:
            asked[len(asked) + 1] = clock.now_ns() / NS_PER_S
            return opens(len(asked), clock)

        player = LinePlayer(scenarios, opens_next, clock, budget_ms=BUDGET_MS, watch=clock, **how)
        share = step.calls if calls is None else calls
        await play_calls(1, share, player, clock, reported.take, until_s=step.until_s)
        return reported

    return in_virtual_time(main()), asked
