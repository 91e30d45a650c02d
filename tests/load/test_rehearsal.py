"""Rehearsal in virtual time: a level then holds as many calls at once as it says."""

from dataclasses import replace
from typing import Any

import pytest
from made_calls import ANSWERS, opening, played, scenario_of

from turngap.caller.conversation import Patience
from turngap.core.errors import AgentError
from turngap.load.figures import at_once
from turngap.load.plan import REHEARSED_S, LoadPlan, Waits, shape_of
from turngap.load.schedule import SETUP_S, Step, Window, held
from turngap.load.steps import Rehearsed, rehearse
from turngap.play.plan import expected_turns_ms
from turngap.play.target import AgentChoice
from turngap.scenario.library import LoadedScenario
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

ONE, OTHER = scenario_of(3, "one"), scenario_of(4, "other")
# As `expected_turns_ms` has it: 500 ms, and 55 ms for each of six characters.
GAP_MS, REPLY_MS = 500.0, 330.0
WINDOW = Window(warm_up_s=12.0, measured_s=40.0, cool_down_s=5.0)


def plan_of(*scenarios: LoadedScenario, **asked: Any) -> LoadPlan:
    choice = AgentChoice(agent="ws://127.0.0.1:1")
    plan = LoadPlan.of(choice, ["quick-questions"], None, None, **{"sessions": "6", **asked})
    return replace(plan, scenarios=scenarios)


def rehearsed(script: Script, *scenarios: LoadedScenario, **asked: Any) -> Rehearsed:
    clock, plan = LoopClock(), plan_of(*scenarios, **asked)
    opens = lambda clock: line_to(script, clock=clock)  # noqa: E731
    return in_virtual_time(rehearse(plan, opens, clock=clock, watch=clock))


def calls_at_once(script: Script, found: Rehearsed) -> tuple[float, int]:
    """Hold four sessions of both scenarios after a rehearsal."""
    shapes = [shape_of(scenario, found.greeted_s, found.waits) for scenario in (ONE, OTHER)]
    step = Step(1, 4, WINDOW, held(shapes, 4, WINDOW, seed=1))

    patience = Patience(greeting_ms=found.greeting_ms)
    opens, greeted_s = opening(lambda _: script), found.greeted_s
    reported, _ = played(step, [ONE, OTHER], opens, patience=patience, greeted_s=greeted_s)
    return at_once(reported.marks, WINDOW)


@pytest.mark.parametrize(("times", "known"), [(0.5, True), (2.0, True), (0.5, False), (2.0, False)])
def test_a_level_runs_as_many_calls_whatever_the_replies_take(times: float, known: bool) -> None:
    script = Script(replies=(Reply(delay_ms=GAP_MS * times, speech_ms=REPLY_MS * times),))
    # Without having played the other scenario, its pace is that of the one that was.
    found = rehearsed(script, *((ONE, OTHER) if known else (ONE,)))
    mean, most = calls_at_once(script, found)
    assert mean == pytest.approx(4, rel=0.1)
    assert most <= 5
    assert set(found.waits.measured_s) == ({"one", "other"} if known else {"one"})


def test_without_a_rehearsal_long_replies_would_overlap() -> None:
    script = Script(replies=(Reply(delay_ms=2 * GAP_MS, speech_ms=2 * REPLY_MS),))
    found = rehearsed(script, ONE)
    assert calls_at_once(script, replace(found, waits=Waits()))[0] > 4 * 1.1


def test_what_was_rehearsed_is_what_a_call_will_take() -> None:
    found = rehearsed(ANSWERS, ONE)
    assert (found.dialect, found.rate, found.greeting_ms) == ("pipecat", 16_000, 0.0)
    assert found.greeted_s == 0
    waits_s = found.waits.measured_s["one"]
    # The gap of 300 ms, a reply of 200 ms, and the waits around it.
    assert all(0.5 < wait_s < 2.3 for wait_s in waits_s)
    assert found.waits.pace == pytest.approx(
        sum(waits_s) * 1000 / sum(wait_ms for _, wait_ms in expected_turns_ms(ONE))
    )


def test_the_first_reply_of_a_cold_agent_makes_no_call_longer() -> None:
    warm = Reply(delay_ms=300, speech_ms=200)
    cold = Script(replies=(replace(warm, delay_ms=4000), *(warm,) * 20))
    waits_s = rehearsed(cold, ONE).waits.measured_s["one"]
    assert waits_s == pytest.approx(rehearsed(ANSWERS, ONE).waits.measured_s["one"], abs=0.05)


def test_a_reply_that_did_not_come_is_expected_to_come() -> None:
    mute = Script(replies=(Reply(action="silence"), *(Reply(delay_ms=300, speech_ms=200),) * 20))
    usual = rehearsed(ANSWERS, ONE).waits.measured_s["one"]
    assert max(rehearsed(mute, ONE).waits.measured_s["one"]) < max(usual) + 0.2
    silent = rehearsed(Script(replies=(Reply(action="silence"),)), ONE)
    assert silent.waits.of(OTHER) == Waits().of(OTHER)


def test_one_call_without_a_greeting_does_not_show_that_none_will_come() -> None:
    answers = (Reply(delay_ms=300, speech_ms=200),)
    late = Script(replies=answers, welcome_ms=1600, welcome_after_ms=9000)
    scripts = iter([late, replace(late, welcome_after_ms=1000)])
    clock = LoopClock()
    opens = lambda clock: line_to(next(scripts), clock=clock)  # noqa: E731
    found = in_virtual_time(rehearse(plan_of(ONE), opens, clock=clock, watch=clock))
    assert found.greeting_ms == 5000
    assert found.greeted_s > 1


def test_a_rehearsal_does_not_go_on_for_ever() -> None:
    talks, clock = Script(replies=(Reply(delay_ms=300, speech_ms=15_000),)), LoopClock()

    async def main() -> tuple[Rehearsed, int]:
        opens = lambda clock: line_to(talks, clock=clock)  # noqa: E731
        found = await rehearse(plan_of(OTHER), opens, clock=clock, watch=clock)
        return found, clock.now_ns()

    found, over_ns = in_virtual_time(main())
    assert over_ns <= (REHEARSED_S + 2) * 1e9
    # The turns that it saw say how long those are that it did not see.
    assert min(found.waits.of(OTHER)) > 15


def test_an_agent_that_hangs_up_in_its_first_turn_is_not_measured() -> None:
    dies = Script(replies=(Reply(action="die"),))
    with pytest.raises(AgentError):
        rehearsed(dies, ONE)


def test_an_agent_that_hangs_up_later_is_measured() -> None:
    answer = Reply(delay_ms=300, speech_ms=200)
    found = rehearsed(Script(replies=(answer, replace(answer, action="die"))), ONE)
    assert found.waits.measured_s["one"][0] == pytest.approx(
        rehearsed(ANSWERS, ONE).waits.measured_s["one"][0], abs=0.05
    )


def test_what_waits_for_no_reply_has_no_pace() -> None:
    assert Waits(pace=2.0).of(ONE) == [2 * wait_s for wait_s in Waits().of(ONE)]
    shape = shape_of(ONE, 1.0, Waits({"one": (1.0, 2.0, 3.0)}))
    spoken_s = [end_ms / 1000 for end_ms, _ in expected_turns_ms(ONE)]
    assert shape.ends_s[0] == pytest.approx(SETUP_S + 1.0 + spoken_s[0])
    assert shape.length_s == pytest.approx(SETUP_S + 1.0 + sum(spoken_s) + 6.0)
