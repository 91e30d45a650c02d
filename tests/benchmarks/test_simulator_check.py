"""benchmarks/simulator_check.py: what is planted is found again, and both figures are shown."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import simulator_check
from call_cpu import Spent, Taken, Watch
from made_records import make_record, make_turn
from pages import END
from simulator_check import BEGIN, Predicted, fitted, fleet_file, llm_steps, page
from vllm_calibration import model_of

from turngap.core.errors import ExitCode, InconclusiveError
from turngap.fleet.files import build_fleet, read_fleet
from turngap.fleet.record import AgentCpu, Capacity
from turngap.inference.fit import Measured, predicted_ms
from turngap.load.record import Certificate
from turngap.store.runs import Run

ROOT = Path(__file__).parents[2]
SHAPE = model_of(ROOT / "models" / "teacher")
STEPS = [
    Measured(1.3, prefill=11),
    Measured(0.8, sequences=1, context=35),
    Measured(12.0, prefill=150),
    Measured(0.85, sequences=1, context=170),
]


def test_a_call_takes_what_was_spent_between_the_first_turn_and_the_last() -> None:
    watch = Watch()
    # What was spent before the first turn's end is the start of the engines.
    watch.read = [
        Spent(10.0, 5.0, 2.0, {1: 4.0, 2: 1.0}),
        Spent(15.0, 5.5, 2.1, {1: 4.3, 2: 1.0}),
        Spent(20.0, 7.0, 2.5, {1: 5.5, 2: 1.0, 3: 0.4}),
    ]
    assert watch.taken() == Taken(agent=0.2, thread=0.15, caller=0.05, turns=2)
    watch.read = watch.read[:1]
    with pytest.raises(InconclusiveError, match="fewer than two turns"):
        watch.taken()


def test_the_bound_is_the_machines_unless_one_thread_does_it_all() -> None:
    assert Taken(0.2, 0.1, 0.05, 9).bound(2) == AgentCpu(2, 0.25)
    assert Taken(0.2, 0.19, 0.05, 9).bound(2) == AgentCpu(1, 0.19)
    assert Taken(0.2, 0.19, 0.3, 9).bound(1) == AgentCpu(1, 0.5)


def test_the_fleet_is_the_server_that_was_fitted(tmp_path: Path) -> None:
    found = fitted(SHAPE, STEPS, 9.0)
    assert found.worst < 0.1
    file = tmp_path / "fleet.toml"
    file.write_text(fleet_file(found, AgentCpu(2, 0.25)))
    described = read_fleet(file)
    (pool,) = build_fleet(described, 512).pools
    assert (described.agent, described.prefix_cache) == (AgentCpu(2, 0.25), False)
    assert (pool.policy.name, pool.policy.max_batch) == ("immediate", 1)
    for step in STEPS:
        assert predicted_ms(pool.server, step) == pytest.approx(step.ms, rel=0.11)


def test_steps_are_of_prompts_without_a_system_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        def prompt(self, messages: list[dict[str, str]]) -> list[str]:
            assert [message["role"] for message in messages] == ["user"]
            return messages[0]["content"].split()

        def say(self, prompt: list[str], hear: Any, stop: Any, *, least_tokens: int) -> None:
            for _ in range(least_tokens):
                hear("x")

    model: Any = Model()
    steps = llm_steps(model, ["a b c"] * 40)
    assert [step.prefill for step in steps] == [3, 0, 18, 0, 60, 0]
    assert [step.sequences for step in steps] == [0, 1] * 3
    assert all(step.ms > 0 for step in steps)


def a_page(capacity: Capacity, certificate: Certificate) -> str:
    run = Run(make_record(), (make_turn(),), Path("run"))
    simulation: Any = SimpleNamespace(
        capacity=capacity, workload=SimpleNamespace(samples=61), budget_ms=800.0, target=0.95
    )
    found = Predicted(run, Taken(0.16, 0.15, 0.04, 70), 2.0, fitted(SHAPE, STEPS, 9.0), simulation)
    return page(found, certificate)


def certified(sessions: int | None, not_held: int | None, why: str | None = None) -> Certificate:
    return Certificate(sessions, 0.99, 240, 0.96, 0.95, not_held, 2.0, why)


def test_both_figures_stand_beside_each_other_with_their_n() -> None:
    lines = a_page(Capacity(6, 7, of_llm=422), certified(8, 9)).splitlines()
    assert "| predicted | 6 | drawn from 61 turns |" in lines
    assert "| measured by `turngap load` | 8 (not 9) | 240 turns |" in lines
    assert "| predicted / measured | 0.75 |  |" in lines
    assert "| the LLM alone would hold | 422 | drawn from 61 turns |" in lines
    assert "| 2 cores at 0.200 a call (agent and caller) | 10.0 | 70 turns |" in lines
    assert "| one core at 0.150 a call (the agent's busiest thread) | 6.7 | 70 turns |" in lines
    assert "One call at a time: 1 of 1 turns in time" in lines[-1]


def test_without_one_of_the_figures_there_is_no_ratio() -> None:
    lines = a_page(Capacity(None, 1), certified(None, 1, "the caller was late")).splitlines()
    assert "| predicted | not one | drawn from 61 turns |" in lines
    measured = "none certified (the caller was late)"
    assert f"| measured by `turngap load` | {measured} | 240 turns |" in lines
    assert "| predicted / measured | none: one of them is none |  |" in lines


@pytest.mark.parametrize("flags", [("--repeat", "0"), ("--max-sessions", "0")])
def test_bad_input_is_said_before_anything_is_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: tuple[str, str]
) -> None:
    monkeypatch.setattr("sys.argv", ["simulator_check.py", *flags])
    with pytest.raises(SystemExit) as ended:
        simulator_check.main()
    assert ended.value.code == ExitCode.BAD_INPUT
    assert "1 or more" in capsys.readouterr().err


def test_the_page_has_a_place_for_the_figures() -> None:
    text = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    assert END in text.partition(BEGIN)[2]
