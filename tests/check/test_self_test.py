"""`turngap check --self-test`: would this gate catch a fault? In virtual time, without an agent."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS, turngap_here
from made_records import make_record, make_turn

from turngap.check import baseline, self_test
from turngap.check import play as checking
from turngap.check.plan import CheckPlan
from turngap.check.self_test import SelfTest, lines_of
from turngap.play.target import AgentChoice, Target
from turngap.scenario.library import content_hashes, load_scenarios

NOWHERE = "ws://127.0.0.1:9/ws"


@pytest.fixture(autouse=True)
def _few_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "TRIALS", 5)


def plan_of(**asked: Any) -> CheckPlan:
    target = Target(AgentChoice(NOWHERE), SCENARIOS, None)
    scenarios = load_scenarios([SCENARIOS / "quick-questions.yaml"])
    return CheckPlan(candidate=target, scenarios=scenarios, **{"reference": target, **asked})


def caught(result: SelfTest) -> list[bool]:
    return [trial.ok for trial in result.trials]


def test_an_ordinary_plan_catches_all_and_passes_the_unchanged_agent() -> None:
    result = self_test.self_test(plan_of(rounds=24))
    assert (result.exit_code, caught(result)) == (0, [True] * 4)
    assert [trial.verdicts for trial in result.trials[1:]] == [{"regressed": 5}] * 3
    assert (result.conversations, result.slower_ms, result.rounds_needed) == (48, 80.0, 24)
    text = "\n".join(lines_of(result))
    assert "every reply 80 ms later      regressed 5                  caught" in text
    assert "gaps vary by 15 ms" in text


def test_a_plan_of_one_turn_and_one_round_is_said_to_catch_nothing() -> None:
    plan = plan_of(rounds=1)
    scenario = plan.scenarios[0]
    short = scenario.scenario.model_copy(update={"turns": scenario.scenario.turns[:1]})
    result = self_test.self_test(
        replace(plan, scenarios=[replace(scenario, scenario=short)], reference=None, save=Path("b"))
    )
    assert (result.exit_code, result.conversations) == (1, 1)
    assert [trial.verdicts for trial in result.trials] == [{"undecided": 5}] * 4
    text = "\n".join(lines_of(result))
    assert text.count("MISSED") == 3
    assert "DOES NOT PASS" in text
    assert "no slow-down up to 1280 ms is caught" in text
    assert result.rounds_needed is None


def test_too_few_rounds_name_those_that_would_do() -> None:
    result = self_test.self_test(plan_of(rounds=5))
    assert (result.exit_code, caught(result)) == (1, [False, True, False, False])
    assert result.rounds_needed is not None
    assert result.rounds_needed > 5
    assert f"--rounds {result.rounds_needed} would catch all" in "\n".join(lines_of(result))


def test_a_budget_with_room_misses_80_ms_and_says_what_it_catches() -> None:
    asked = {"reference": None, "rounds": 72, "budgets": {"gap": 800, "llm_first_token": 300}}
    result = self_test.self_test(plan_of(**asked))
    assert (result.exit_code, result.slower_ms) == (1, 320)
    assert result == self_test.self_test(plan_of(**asked))  # the same seeds
    assert any("not tried: the budgets of stages (llm_first_token)" in n for n in result.notes)


def saved(folder: Path, calls: int, spread_ms: float) -> Path:
    """A baseline of quick-questions, whose gaps vary evenly by as much as this."""
    rng = random.Random(1)
    scenarios = load_scenarios([SCENARIOS / "quick-questions.yaml"])
    turns = [
        make_turn(scenario="quick-questions", turn=turn, repeat=repeat).model_copy(
            update={"gap_ms": rng.uniform(300, 300 + spread_ms), "outcome": "answered"}
        )
        for repeat in range(1, calls + 1)
        for turn in (1, 2, 3)
    ]
    record = make_record().model_copy(update={"scenario_hashes": content_hashes(scenarios)})
    baseline.save(folder / "base.json", record, turns)
    return folder / "base.json"


def test_gaps_vary_as_in_the_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "this_machine", lambda: make_record().machine)
    monkeypatch.setattr(self_test, "MORE_ROUNDS", ())

    def tried(calls: int, spread_ms: float) -> SelfTest:
        file = saved(tmp_path, calls, spread_ms)
        return self_test.self_test(plan_of(reference=None, baseline=file, rounds=40))

    steady = tried(40, 8)
    assert (steady.exit_code, caught(steady)) == (0, [True] * 4)
    assert "half of them are within 2 ms" in steady.notes[0]
    rough = tried(40, 1500)  # 80 ms are not beyond chance here
    assert (rough.exit_code, rough.trials[1].ok) == (1, False)
    few = tried(6, 8)  # more rounds than are stored make no more pairs
    assert caught(few) == [False] * 4


def test_another_machines_baseline_is_refused(tmp_path: Path) -> None:
    file = saved(tmp_path, 9, 8)
    result = self_test.self_test(plan_of(reference=None, baseline=file))
    assert (result.exit_code, result.trials) == (3, ())
    assert "cannot be compared: it was saved on another machine" in result.notes[0]


def test_on_the_command_line_it_plays_no_agent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(self_test, "MORE_ROUNDS", ())
    both = ("--agent", NOWHERE, "--against", NOWHERE)
    gate = ("check", "quick-questions", *both, "--self-test")
    done = turngap_here(capsys, *gate, "--rounds", "24", "--json")
    assert done.code == 0
    document = done.document()
    assert document["exit_code"] == 0
    assert document["trials"][0]["planted"] == "nothing"
    done = turngap_here(capsys, *gate, "--rounds", "1")
    assert done.code == 1
    assert "one call of 3 lost" in done.out
    assert list(tmp_path.iterdir()) == []
