"""Each hostile agent is replayed against, in virtual time: no run is lost to any of them."""

import json
from pathlib import Path

import pytest
from commandline import only_run, turngap_here, turns_on_disk
from hostile_agents import ALL, GAP_MS, Hostile
from virtual_agents import VirtualAgents

from turngap.core.stages import AGENT_MARKS
from turngap.report.run import render
from turngap.store.runs import read_run

Capsys = pytest.CaptureFixture[str]


@pytest.mark.parametrize("hostile", ALL, ids=lambda hostile: hostile.name)
def test_a_hostile_agent(
    hostile: Hostile, tmp_path: Path, capsys: Capsys, virtual_agents: VirtualAgents
) -> None:
    url = virtual_agents.url_of(hostile.course)
    arguments = ("replay", "quick-questions", "--calibration", "0", "--agent", url)
    done = turngap_here(capsys, *arguments, "--out", tmp_path)
    for text in (done.out, done.err):
        assert "Traceback" not in text
        assert "turngap itself failed" not in text
        assert all(line.isprintable() for line in text.split("\n"))
    expected = [hostile.before, hostile.outcome, hostile.after] if hostile.outcome else []
    expected = [outcome for outcome in expected if outcome]
    folder = only_run(tmp_path)
    turns = turns_on_disk(folder)
    outcomes = [turn["outcome"] for turn in turns]
    assert len(outcomes) == len(expected)
    for outcome, due in zip(outcomes, expected, strict=True):
        assert due in (outcome, "any")
    assert done.code == (4 if hostile.failure or "error" in outcomes else 0)
    record = json.loads((folder / "run.json").read_text())
    assert record["valid"] == (not hostile.failure)
    assert hostile.failure in (record["failure"] or "")
    if turns:
        the_run_can_be_read(folder, hostile)


def the_run_can_be_read(folder: Path, hostile: Hostile) -> None:
    run = read_run(folder)
    assert run.problems == ()
    render(run).encode()
    turn = run.turns[1]
    assert hostile.error in (turn.error or "")
    assert (turn.error is None) == (not hostile.error)
    assert any(hostile.note in note for note in turn.notes) or not hostile.note
    explained = any(stage.name in AGENT_MARKS for stage in turn.stages)
    if turn.outcome == "answered":
        # The first sample may be in the reply's second message, 5 ms later.
        assert turn.gap_ms == pytest.approx(GAP_MS, abs=6)
        assert explained == hostile.stages
