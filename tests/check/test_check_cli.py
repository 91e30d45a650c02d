"""`turngap check` on the command line: exit codes, flags that cannot be, checkouts."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import SCENARIOS, Finished, turngap_here
from fake_agents import NEW, OLD, FakeAgents, spoil

from turngap.check.plan import CheckPlan, command_of
from turngap.check.play import hints_for
from turngap.core.errors import AgentError
from turngap.play.target import AgentChoice

Capsys = pytest.CaptureFixture[str]
NOBODY = "ws://127.0.0.1:9/ws"

# --- the command line -------------------------------------------------------------------------


def run(capsys: Capsys, tmp_path: Path, *arguments: str | Path) -> Finished:
    plain = ("check", "quick-questions", "--calibration", "0", "--out", tmp_path / "runs")
    return turngap_here(capsys, *plain, *arguments)


def test_exit_codes_follow_the_verdict(agents: FakeAgents, tmp_path: Path, capsys: Capsys) -> None:
    both = ("--agent", NEW, "--against", OLD)
    done = run(capsys, tmp_path, *both, "--rounds", "18", "--json")
    assert (done.code, done.document()["verdict"]) == (0, "pass")
    done = run(capsys, tmp_path, *both, "--rounds", "1", "--json")
    assert (done.code, done.document()["verdict"]) == (3, "undecided")
    agents.slower[NEW] = lambda _: 60.0
    done = run(capsys, tmp_path, *both, "--rounds", "5")
    assert done.code == 1
    assert "60 turns in 5 rounds, half of them 127.0.0.1:9's, in real time: about " in done.err
    assert "REGRESSED" in done.out
    assert "llm_first_token" in done.out
    agents.dies_after = len(agents.played) + 3
    done = run(capsys, tmp_path, *both, "--json")
    assert (done.code, done.document()["verdict"]) == (4, "cannot_compare")
    assert "the line was lost" in done.err


def test_the_hint_for_a_dead_reference_names_the_references_flags() -> None:
    error = AgentError("a", "b", hint='starts it with --start "python bot.py"; or --agent URL')
    with pytest.raises(AgentError) as raised, hints_for("candidate"):
        raise error
    assert raised.value is error
    with pytest.raises(AgentError) as raised, hints_for("reference"):
        raise error
    assert raised.value.hint == 'starts it with --start-against "python bot.py"; or --against URL'


def test_a_baseline_on_the_command_line(agents: FakeAgents, tmp_path: Path, capsys: Capsys) -> None:
    base = tmp_path / "base.json"
    agent = ("--agent", NEW, "--rounds", "36")
    only_saved = run(capsys, tmp_path, *agent, "--save", base)
    assert only_saved.code == 0
    assert "↓ SAVED" in only_saved.out
    assert "pass" not in only_saved.out.lower()
    budget = ("--budget", "gap=800", "--target", "0.9")
    done = run(capsys, tmp_path, *agent, "--baseline", base, *budget, "--json")
    assert (done.code, done.document()["verdict"]) == (0, "pass")
    spoil(base, metrics_version=99)
    done = run(capsys, tmp_path, *agent, "--baseline", base)
    assert done.code == 3
    assert "CANNOT COMPARE" in done.out
    base.write_bytes(base.read_bytes()[:-9])
    done = run(capsys, tmp_path, *agent, "--baseline", base)
    assert (done.code, done.out) == (2, "")
    assert "cut short" in done.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "nothing to compare with"),
        (["--against", OLD, "--baseline", "x"], "not both"),
        (["--budget", "gap"], "expected NAME=MS"),
        (["--budget", "nap=3"], "did you mean gap?\n  known: gap, line_up"),
        (["--budget", "gap=-1"], "expected a number of ms above 0"),
        (["--budget", "gap=nan"], "expected a number of ms above 0"),
        (["--baseline", "none.json"], "none.json: cannot be read"),
        (["--against", "nobody"], "known: embedded"),
        (["--against", "tests"], "is no checkout of turngap"),
        (["--against", "nowhere#stock"], "is no checkout of turngap"),
        (["--against", OLD, "--rounds", "0"], "--rounds"),
        (["--against", OLD, "--phases", "0"], "--phases"),
        (["--against", OLD, "--starved-ms", "0"], "--starved-ms"),
        (["--budget", "gap=1", "--target", "2"], "target=2.0: expected a share between 0 and 1"),
        (["--budget", "gap=1", "--target", "1"], "no number of turns shows"),
        (["--save", "nowhere/base.json"], "there is no folder nowhere"),
        (["--save", "."], ". is a folder"),
    ],
)
def test_bad_flags(
    agents: FakeAgents, tmp_path: Path, capsys: Capsys, arguments: list[str], says: str
) -> None:
    done = run(capsys, tmp_path, *arguments)
    assert done.code == 2
    assert says in done.err
    assert agents.played == []
    assert not (tmp_path / "runs").exists()


def test_a_checkout_that_was_not_set_up_says_how(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "old" / "pipeline" / "turngap").mkdir(parents=True)
    done = run(capsys, tmp_path, "--against", tmp_path / "old")
    assert done.code == 2
    assert "no environment of its own" in done.err
    assert "./run setup" in done.err


def test_a_stacks_name_is_the_stack_whatever_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "embedded").mkdir()
    (tmp_path / "main").mkdir()
    monkeypatch.chdir(tmp_path)
    assert AgentChoice("embedded").checkout is None
    for folder in ("./embedded", str(tmp_path / "embedded"), "embedded#stock", "main"):
        assert AgentChoice(folder).checkout is not None


def test_a_checkout_that_is_too_old_says_so(tmp_path: Path, capsys: Capsys) -> None:
    old = old_checkout(tmp_path, "echo No such option: --scenarios >&2")
    done = run(capsys, tmp_path, "--agent", NOBODY, "--against", f"{old}#stock")
    assert done.code == 4
    assert "does not serve its stack 'stock'" in done.err


def test_a_checkout_that_refuses_a_setting_may_be_too_old_for_it(
    tmp_path: Path, capsys: Capsys
) -> None:
    error = {"kind": "stack.set", "message": "--set 'seed=1': expected TABLE.KEY", "hint": "tables"}
    said = shlex.quote(json.dumps({"error": error}))
    old = old_checkout(tmp_path, f"echo $* >arguments; echo {said}")
    sets = ("--against-set", "llm=sim", "--against-set", "seed=1")
    done = run(capsys, tmp_path, "--agent", NOBODY, "--against", old, *sets)
    assert done.code == 2
    assert f"{old} may be too old for seed=N" in done.err
    assert "--llm sim --set seed=1" in (old / "arguments").read_text()


def test_a_checkout_gets_the_candidates_seed(tmp_path: Path) -> None:
    old = old_checkout(tmp_path, "true")
    plan = CheckPlan.of(
        AgentChoice(str(old), seed=0), ["quick-questions"], None, SCENARIOS, against=str(old),
        against_sets=(), baseline=None, save=None, budgets={},
    )  # fmt: skip
    assert plan.reference is not None
    assert plan.reference.choice.seed == 0


def old_checkout(tmp_path: Path, script: str) -> Path:
    """Make a checkout that does nothing but this, and fails."""
    python = tmp_path / "old" / ".venv" / "bin" / "python"
    (tmp_path / "old" / "pipeline" / "turngap").mkdir(parents=True)
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\nexit 2\n")
    python.chmod(0o755)
    return tmp_path / "old"


# --- asked again, and an agent that is not there ----------------------------------------------


def test_what_to_do_again_is_what_was_asked(
    agents: FakeAgents, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K", "k")
    asked = f"--agent {NEW}?key=${{K}} --dialect pipecat --header 'X-Key: ${{K}}' "
    asked += "--rounds 12 --until-decided --max-minutes 7 --calibration 0 --budget gap=800 "
    asked += f"--target 0.9 --save {tmp_path}/base.json"
    done = run(capsys, tmp_path, *shlex.split(asked), "--json")
    folder = Path(done.document()["path"])
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    again = next(line for line in summary.splitlines() if line.startswith("turngap check"))
    assert shlex.split(again) == ["turngap", "check", "quick-questions", *shlex.split(asked)]


def test_the_reference_and_the_commands_are_asked_for_again(plan: CheckPlan) -> None:
    new = AgentChoice(NEW, start="python bot.py --port 9", dialect="pipecat")
    old = AgentChoice(OLD, start="python old.py", headers=("X-Key: ${K}", "Authorization: abc123"))
    again = command_of(replace(plan, rounds=5), new, old, ["a"], Path("mine"))
    assert again == (
        f"turngap check mine/a.yaml --agent {NEW} --dialect pipecat "
        f"--start 'python bot.py --port 9' --against {OLD} --start-against 'python old.py' "
        "--against-header 'X-Key: ${K}' --against-header 'Authorization: (removed)' "
        "--rounds 5 --calibration 0"
    )


def test_an_agent_that_cannot_be_reached_gets_an_error_and_no_verdict(
    agents: FakeAgents, tmp_path: Path, capsys: Capsys
) -> None:
    agents.dies_after = 0
    done = run(capsys, tmp_path, "--agent", NEW, "--budget", "gap=800")
    assert (done.code, done.out) == (4, "")
    assert "the line was lost" in done.err
    assert "VERDICT" not in done.err.upper()
    done = run(capsys, tmp_path, "--agent", NEW, "--budget", "gap=800", "--json")
    assert (done.code, done.document()["verdict"]) == (4, "cannot_compare")
