"""`--line`: read once, before anything starts; the same for both sides; stored and asked again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commandline import SCENARIOS, turngap_here
from fake_agents import NEW, OLD, FakeAgents, checked
from history_runs import stored
from made_records import make_record, make_turn

from turngap.caller.endpoint import Endpoint
from turngap.caller.line.spec import parse_line
from turngap.check.plan import CheckPlan, command_of
from turngap.core.errors import AgentError, InputError
from turngap.history.kinds import read_entry
from turngap.play.options import checked as options
from turngap.play.plan import ReplayPlan
from turngap.play.resume import continued
from turngap.play.run import RunInProgress
from turngap.play.target import AgentChoice

Capsys = pytest.CaptureFixture[str]
LTE = parse_line("lte")


def asked(command: str, **given: Any) -> Any:
    named = {"agent": NEW, "scenarios": ["quick-questions"], "library": SCENARIOS, "start": None}
    return options(command, named | given)


@pytest.mark.parametrize("command", ["replay", "check", "compare", "turns", "load"])
def test_a_line_that_is_none_is_refused_before_anything_starts(
    command: str, tmp_path: Path, capsys: Capsys
) -> None:
    done = turngap_here(capsys, command, "--line", "lt", "--out", tmp_path / "runs")
    assert (done.code, done.out) == (2, "")
    assert "unknown line 'lt'" in done.err
    assert not (tmp_path / "runs").exists()
    text = tmp_path / "turngap.toml"
    text.write_text('line = "loss=200%"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert "loss=200%" in turngap_here(capsys, command).err


def test_a_replay_over_a_line_plays_everything_twice_unless_it_is_unpaired() -> None:
    plain, paired, unpaired = (
        ReplayPlan.asked(asked("replay", calibration=0, **given))
        for given in ({}, {"line": "delay=500"}, {"line": "delay=500", "unpaired": True})
    )
    turns = len(plain.scenarios[0].scenario.turns)
    assert (plain.line, paired.line) == (None, parse_line("delay=500"))
    assert [plan.is_paired for plan in (plain, paired, unpaired)] == [False, True, False]
    assert unpaired.minutes == pytest.approx(plain.minutes + turns / 60)
    assert paired.minutes > 1.5 * plain.minutes
    assert ReplayPlan.asked(asked("replay", line="")).line is None


def test_a_run_is_continued_over_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    plan = ReplayPlan.asked(asked("replay", line="lte", unpaired=True, out=tmp_path))
    run = RunInProgress(plan, plan.target, "run").finish("broken off")
    assert run.record.settings["line"] == "lte"
    again = continued(run, scenarios=[str(SCENARIOS)])
    assert (again.line, again.unpaired) == (LTE, True)
    assert run.record.line is not None
    changed = run.record.line.model_copy(update={"settings": LTE.numbers() | {"rtt_ms": 1.0}})
    other = replace(run, record=run.record.model_copy(update={"line": changed}))
    with pytest.raises(InputError, match="other numbers"):
        continued(other, scenarios=[str(SCENARIOS)])
    done = turngap_here(capsys, "replay", "--resume", run.path, "--line", "lte")
    assert "--line cannot be given with --resume" in done.err


async def test_a_call_has_the_same_line_with_every_agent(
    plan: CheckPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, object, str]] = []

    def refused(endpoint: Endpoint, _: object, *, line: object, call: str) -> None:
        opened.append((endpoint.url, line, call))
        raise AgentError("agent.busy", "it takes no call")

    monkeypatch.setattr(Endpoint, "open", refused)
    assert plan.reference is not None
    for target in (plan.candidate, plan.reference):
        run = RunInProgress(replace(plan, line=LTE), target, "run", out=tmp_path)
        run._reached = True
        await run.play(plan.scenarios[0], Endpoint(target.choice.agent), repeat=2)
    assert opened == [(url, LTE, "quick-questions/2") for url in (NEW, OLD)]


async def test_both_sides_of_a_check_have_the_same_line(
    agents: FakeAgents, plan: CheckPlan, tmp_path: Path
) -> None:
    base = tmp_path / "base.json"
    lined = replace(plan, line=LTE, rounds=1, reference=None, save=base)
    done = await checked(lined)
    assert done.record.line == done.candidate.record.settings["line"] == "lte"
    for line, why in ((LTE, []), (None, ["over the line lte, this without a line"])):
        record = (await checked(replace(lined, save=None, baseline=base, line=line))).record
        assert (record.verdict == "cannot_compare") == bool(why)
        assert all(each in record.why[0] for each in why)
    again = command_of(lined, AgentChoice(NEW), AgentChoice(OLD), ["a"], None)
    assert "--line lte" in again


def test_runs_over_other_lines_are_no_twins(tmp_path: Path, capsys: Capsys) -> None:
    settings = make_record().settings
    turns = [make_turn(repeat=n, audio=None) for n in range(1, 41)]
    runs = [
        stored(tmp_path, turns, settings=settings | line)
        for line in ({"line": "lte"}, {}, {"line": "lte"})
    ]
    done = turngap_here(capsys, "history", "diff", runs[0], runs[1])
    assert done.code == 3
    assert "over the line lte, the candidate without a line" in " ".join(done.out.split())
    assert turngap_here(capsys, "history", "diff", runs[0], runs[2]).code != 2
    first, second = (read_entry(run, "replay").line for run in runs[:2])
    assert (first.endswith("lte"), second.endswith("lte")) == (True, False)


def test_a_line_of_a_stored_run_is_read_as_a_users() -> None:
    with pytest.raises(InputError, match="no fault"):
        parse_line("lte,$(reboot)=1")


def test_a_curve_in_virtual_time_crosses_the_line(tmp_path: Path, capsys: Capsys) -> None:
    def gap_ms(*line: str) -> float:
        run = ("turns", "quick-questions", "--virtual", "--out", tmp_path / "runs", *line)
        document = turngap_here(capsys, *run, "--json").document()
        (stored,) = tmp_path.glob(f"runs/{Path(document['path']).name}/*/turns.jsonl")
        return json.loads(stored.read_text(encoding="utf-8").splitlines()[0])["gap_ms"]

    assert gap_ms("--line", "delay=50") == pytest.approx(gap_ms() + 100, abs=1)
