"""The fixture in a repository with a `turngap.toml`: one file for commands and tests."""

import pytest
from inner_runs import URL, Inner, Play, made_turns, text_of

pytest_plugins = ["pytester"]

FILE = f"""
agent = "{URL}"
start = "env bot.py"
header = "X-Key: value"
scenarios = "quick-questions"
calibration = 2
starved-ms = 30
[replay]
repeat = 4
budget-ms = 650
"""


def test_the_file_says_what_nothing_else_does(
    inner: Inner, play: Play, pytester: pytest.Pytester
) -> None:
    (pytester.path / "turngap.toml").write_text(FILE)
    plans = play(*[made_turns(3)] * 4)
    code = """
def test_it(turngap):
    turngap.replay()
    turngap.replay(repeat=2, scenarios="coffee-order")
    turngap.replay("ws://127.0.0.1:10/ws")
"""
    result = inner(code, "-o", "turngap_starved_ms=40")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["turngap: defaults from turngap.toml; it starts: env bot.py"])
    first, second, third = plans
    choice = first.target.choice
    assert (choice.agent, choice.start, choice.headers) == (URL, "env bot.py", ("X-Key: value",))
    assert (first.rounds, first.budget_ms, first.calibration_turns) == (4, 650, 2)
    assert first.starved_ms == 40
    assert [s.scenario.name for s in first.scenarios] == ["quick-questions"]
    assert (second.rounds, second.scenarios[0].scenario.name) == (2, "coffee-order")
    choice = third.target.choice
    assert (choice.start, choice.headers) == (None, ())
    plans = play(made_turns(3))
    inner("def test_it(turngap):\n    turngap.replay()\n", "--turngap-agent=ws://127.0.0.1:10/ws")
    assert plans[0].target.choice.start is None


def test_a_broken_file_fails_what_measures_and_nothing_else(
    inner: Inner, pytester: pytest.Pytester
) -> None:
    (pytester.path / "turngap.toml").write_text('agent = "a"\nrepaet = 3\n')
    result = inner("def test_it(turngap):\n    turngap.replay()\ndef test_other():\n    pass\n")
    result.assert_outcomes(passed=1, failed=1)
    assert "turngap.toml:2: repaet: unknown key" in text_of(result)
