"""Plans: how many turns are played, and about how long that takes."""

from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS

from turngap.play import plan as planning
from turngap.play.plan import PlayPlan, expected_ms
from turngap.scenario.library import Clip, LoadedScenario, load_scenarios
from turngap.scenario.model import Scenario, scenario_paths

RATE = 16_000


def loaded(*turns: dict[str, Any], seconds: float = 2.0) -> LoadedScenario:
    import numpy as np

    said = [{"say": "hello", "audio": f"{n}.wav", **turn} for n, turn in enumerate(turns)]
    scenario = Scenario.model_validate({"name": "made", "turns": said})
    silence = np.zeros(round(seconds * RATE), dtype=np.int16)
    clips = {turn.audio: Clip(silence, RATE, None) for turn in scenario.turns}
    return LoadedScenario(scenario, Path("made.yaml"), clips)


@pytest.mark.parametrize(
    ("turns", "ms"),
    [
        # Recording, gap, ten characters, the silence after them, and what the person leaves.
        ([{"reply": "ten digits"}], 2000 + 500 + 550 + 200 + 200),
        ([{}], 2000 + 500 + 40 * 55 + 200 + 200),
        # The second turn begins while the first reply is spoken, or whatever becomes of it.
        (
            [{"reply": "x" * 900}, {"reply": "", "when": {"barge_in_ms": 300}}],
            (2000 + 500 + 300) + (2000 + 500 + 0 + 200 + 200),
        ),
        (
            [{"reply": "x" * 900}, {"reply": "", "when": {"at_ms": 1500}}],
            (2000 + 1500) + (2000 + 500 + 0 + 200 + 200),
        ),
        (
            [{"reply": ""}, {"reply": "", "when": {"after_reply_ms": 1000}}],
            (2000 + 500 + 200 + 1000) + (2000 + 500 + 200 + 200),
        ),
    ],
)
def test_a_conversation_takes_its_recordings_its_replies_and_the_waits(
    turns: list[dict[str, Any]], ms: float
) -> None:
    assert expected_ms(loaded(*turns)) == pytest.approx(ms)


def test_minutes_are_all_conversations_the_calibration_and_the_start() -> None:
    scenarios = [loaded({"reply": ""}), loaded({"reply": ""}, {"reply": ""})]
    plan = PlayPlan(scenarios=scenarios, rounds=10, calibration_turns=8)
    assert plan.turns == 30
    before_s = 2 * planning.START_S + 8 * planning.CALIBRATION_TURN_S
    assert plan.minutes == pytest.approx((before_s + 30 * 2.9) / 60)


def test_the_estimate_of_a_shipped_scenario_is_that_of_a_real_run() -> None:
    (scenario,) = load_scenarios(scenario_paths(SCENARIOS, ["quick-questions"]))
    # `turngap replay quick-questions` against the stack `embedded` took 10.3 s from the first
    # recording to the end of the last turn.
    assert expected_ms(scenario) == pytest.approx(10_300, rel=0.15)
