"""Parts of a measurement that are not real, as every report names them."""

import pytest
from commandline import SCENARIOS

from turngap.play.target import AgentChoice, resolve
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import scenario_paths

LOADED = [s.scenario for s in load_scenarios(scenario_paths(SCENARIOS, ["coffee-order"]))]
VOICES = "synthetic voices"


@pytest.mark.parametrize(
    ("agent", "llm", "found"),
    [
        ("embedded", None, ("closed-domain recogniser", VOICES)),
        ("stock", None, ("closed-domain recogniser", VOICES)),
        ("embedded", "sim", ("simulated LLM", "closed-domain recogniser", VOICES)),
        ("embedded", "openai", ("closed-domain recogniser", VOICES)),
        ("embedded", "race", ("simulated LLM", "closed-domain recogniser", VOICES)),
        ("embedded", "best-of", ("simulated LLM", "closed-domain recogniser", VOICES)),
        ("ws://127.0.0.1:1/ws", None, (VOICES,)),
    ],
)
def test_a_stack_knows_what_is_simulated_and_a_url_only_the_voices(agent, llm, found, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    target = resolve(AgentChoice(agent, backends={"llm": llm}), SCENARIOS)
    assert target.stand_ins(LOADED) == found


def test_a_scenario_of_recorded_people_says_so():
    target = resolve(AgentChoice("ws://127.0.0.1:1/ws"), SCENARIOS)
    people = [s.model_copy(update={"voices": "recorded"}) for s in LOADED]
    assert target.stand_ins(people) == ()
