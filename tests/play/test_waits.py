"""Waits for a reply, and for the silence after it: options, and what is refused."""

from pathlib import Path

import pytest
from commandline import turngap_here
from virtual_agents import VirtualAgents

import turngap
from turngap.core.errors import InputError
from turngap.store.runs import read_run
from turngap.testing.agent import Reply, Script

QUICK = ("replay", "quick-questions", "--calibration", "0", "--greeting-ms", "0")
SLOW = Script(replies=(Reply(delay_ms=7600),), yield_ms=None)


def test_a_budget_over_the_wait_is_refused_with_what_to_do(capsys, tmp_path: Path) -> None:
    done = turngap_here(capsys, *QUICK, "--agent", "ws://x", "--budget-ms", "9000")
    assert done.code == 2
    assert "a budget of 9000 ms is longer than the 6000 ms" in done.err
    assert "--no-reply-ms 9000" in done.err
    with pytest.raises(InputError, match="longer than the 600 ms"):
        turngap.compare("a", "b", scenarios="quick-questions", no_reply_ms=600)
    with pytest.raises(InputError, match="quiet_ms=1: expected a number from 100"):
        turngap.replay("ws://x", scenarios="quick-questions", quiet_ms=1, out=tmp_path)


def test_a_slow_agent_is_measured_where_the_wait_is_long_enough(
    capsys, tmp_path: Path, virtual_agents: VirtualAgents
) -> None:
    url = virtual_agents.url_of(SLOW)
    for waits, outcome in ((), "no_reply"), (("--no-reply-ms", "9000"), "late"):
        out = tmp_path / outcome
        done = turngap_here(capsys, *QUICK, "--agent", url, "--out", out, *waits)
        assert done.code == 0, done.err
        run = read_run(next(out.iterdir()))
        assert [turn.outcome for turn in run.turns] == [outcome] * 3
        assert {round(turn.first_answer_ms or 0) for turn in run.turns} == {7600}
    assert run.record.plan is not None
    assert run.record.plan.no_reply_ms == 9000
