"""An agent that speaks first, in virtual time: who waits for a late greeting has waited."""

from contextlib import AbstractAsyncContextManager

import pytest
from made_calls import BUDGET_MS, scenario_of

from turngap.caller.conversation import Patience
from turngap.caller.line import Line
from turngap.load.calls import LinePlayer, Played, play_step
from turngap.load.figures import figures_of
from turngap.load.plan import shape_of
from turngap.load.record import LoadTurn
from turngap.load.schedule import Step, Window, held
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

TWO_TURNS = scenario_of(2)
WINDOW = Window(0.0, 30.0, 5.0)
GREETING_MS = 3000.0
# The pipecat half says that it is ready at once; then the agent takes a while to greet.
USUAL_MS, GROWS_MS = 500.0, 400.0


def greeting(after_ms: float) -> Script:
    answers = (Reply(delay_ms=300, speech_ms=200),)
    return Script(replies=answers, welcome_ms=1600.0, welcome_after_ms=after_ms)


def first_turns(step: Step, greeted_s: float, grows_ms: float) -> list[LoadTurn]:
    """Play a level; each call is greeted `grows_ms` later than the one before."""
    calls = 0

    async def main() -> Played:
        clock = LoopClock()

        def opens(_: object) -> AbstractAsyncContextManager[Line]:
            nonlocal calls
            calls += 1
            return line_to(greeting(USUAL_MS + (calls - 1) * grows_ms), clock=clock)

        player = LinePlayer(
            [TWO_TURNS],
            opens,
            clock,
            budget_ms=BUDGET_MS,
            patience=Patience(greeting_ms=GREETING_MS),
            greeted_s=greeted_s,
            watch=clock,
        )
        return await play_step(step, player, clock)

    turns = in_virtual_time(main()).turns
    assert all(turn.waited_ms == 0 for turn in turns if turn.turn > 1)
    return sorted((turn for turn in turns if turn.turn == 1), key=lambda turn: turn.call)


def step_of(greeted_s: float) -> Step:
    return Step(1, 1, WINDOW, held([shape_of(TWO_TURNS, greeted_s)], 1, WINDOW, seed=1))


@pytest.fixture(scope="module")
def usual_s() -> float:
    """How much later the person begins for a greeting, in calls alone."""
    (found,) = {round(turn.waited_ms) for turn in first_turns(step_of(0.0), 0.0, 0.0)}
    return found / 1000


def test_who_is_greeted_as_always_has_not_waited(usual_s: float) -> None:
    assert usual_s > 0.5
    turns = first_turns(step_of(usual_s), usual_s, 0.0)
    assert all(turn.waited_ms < 25 and turn.hit(BUDGET_MS) for turn in turns)


def test_a_greeting_that_comes_later_is_in_the_latency_of_the_first_turn(usual_s: float) -> None:
    step = step_of(usual_s)
    turns = first_turns(step, usual_s, GROWS_MS)
    assert len(turns) > 4
    for number, turn in enumerate(turns[:4]):
        # The stream's grid, on which recordings begin, is not the agent's affair: packets are.
        assert turn.waited_ms == pytest.approx(number * GROWS_MS, abs=25)
        assert turn.latency_ms == pytest.approx(300 + turn.waited_ms, abs=0.1)
    assert [turn.hit(BUDGET_MS) for turn in turns[:4]] == [True, True, False, False]
    found = figures_of(step, turns[:4], budget_ms=BUDGET_MS, target=0.95, at_once=(1.0, 1))
    assert found.late_started == 3
