"""A level that is held over sockets, by a caller in a process of its own."""

from pathlib import Path

import pytest

import turngap
from turngap.core.budget import MAX_STARVED_MS
from turngap.load.export import read_load_turns
from turngap.testing.agent import Reply, ScriptedAgent

pytestmark = [pytest.mark.realtime, pytest.mark.unhurried]


async def test_a_level_is_held_over_sockets_and_stored(tmp_path: Path) -> None:
    async with ScriptedAgent([Reply(delay_ms=300, speech_ms=300)]) as agent:
        loaded = await turngap.load_async(
            agent.url,
            scenarios=["quick-questions"],
            sessions=2,
            duration_s=3.0,
            warm_up_s=0.0,
            greeting_ms=0.0,
            budget_ms=6_000.0,  # this machine may be busy
            starved_ms=MAX_STARVED_MS,
            calibration=0,
            out=tmp_path,
        )
    (step,) = loaded.record.steps
    assert step.turns >= 1
    assert step.outcomes["answered"] >= 1
    assert "error" not in step.outcomes
    assert sum(step.outcomes.values()) == step.turns
    turns = list(read_load_turns(loaded.path))
    assert loaded.turns == tuple(turns)
    assert {turn.node for turn in turns} == {"worker 1"}
    assert sum(turn.counted for turn in turns) == step.turns
    assert loaded.capacity is None
    # The agent waits for 300 ms from the person's end, however busy this machine is.
    answered = [turn for turn in turns if turn.counted and turn.outcome == "answered"]
    assert len(answered) == step.outcomes["answered"]
    assert all((turn.latency_ms or 0) >= 299 for turn in answered)
    assert (loaded.path / "load.json").exists()
    assert (loaded.path / "report.html").exists()
