"""Agents as they are in production, as turngap reads them in virtual time."""

from dataclasses import replace

import pytest

from turngap.play.zoo import DIALECTS, judge, play_zoo
from turngap.testing.zoo import ZOO

NAMES = [agent.name for agent in ZOO]
# Those that are read right today.
READ_RIGHT = {
    "plain",
    "prompt",
    "short",
    "long",
    "at once",
    "soft 10",
    "soft 14",
    "soft 18",
    "slow 2",
    "slow 4",
    "slow 5.5",
    "greets",
    "drops a call",
    "cut-in 250",
    "cut-in 450",
    "yields",
    "white 60",
    "white 50",
    "asks whether you are there",
    "deaf",
    *(
        "hold 2.2",
        "hold 4.9",
        "hold once",
        "hold twice",
        "filler 1.2",
        "filler 3.5",
        "too slow",
        "goodbye",
        "hangs up early",
    ),
    *("false start", "false start 2", "mm-hm", "mm-hm, slow", "overlap 40", "stale frames"),
    *("not interruptible", "stops by itself", "hole", "stutters", "answers twice"),
}


def test_there_are_enough_agents_with_names_of_their_own() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 40


@pytest.mark.parametrize("agent", [a for a in ZOO if a.name in READ_RIGHT], ids=lambda a: a.name)
def test_an_agent_is_read_right_or_refused(agent) -> None:
    readings = list(play_zoo([agent]))
    assert [r.dialect for r in readings] == list(DIALECTS)
    off = [f"{r.dialect}: {why}" for r in readings for why in r.off]
    may_refuse = any("refuses" in right for right in agent.right)
    assert {r.verdict for r in readings} <= {"right", *(["refused"] if may_refuse else [])}, off


def test_a_figure_is_right_wrong_refused_or_beside_what_was_missed() -> None:
    (read,) = play_zoo([ZOO[0]], ["pipecat"])
    turn = read.turns[0]
    assert turn is not None

    def verdict(gap, changes, **more):
        right = {"outcome": "answered", "gap": gap, **more}
        played = turn.model_copy(update=changes)
        return judge(replace(ZOO[0], right=[right]), [played], valid=True)[0]

    assert verdict(505, {}) == "right"
    assert verdict(520, {}) == "wrong"
    assert verdict(520, {"notes": {"the agent is never silent": 1}}) == "misleading"
    assert verdict(500, {}, **{"yield": 200}) == "misleading"
    silent = {"gap_ms": None, "outcome": "no_reply", "why_no_gap": "a bed at -12 dBFS"}
    assert verdict(500, silent) == "wrong"
    assert verdict(500, silent, refuses="dBFS") == "refused"
    assert verdict(500, silent, refuses="tone") == "wrong"
