"""Agents as they are in production, as turngap reads them in virtual time."""

from dataclasses import replace

import pytest

from turngap.play.zoo import DIALECTS, judge, play_zoo
from turngap.testing.zoo import ZOO

NAMES = [agent.name for agent in ZOO]
# A tune is still taken for speech.
MUSIC = {"thinking music", "hold music", "tune only"}


def test_there_are_enough_agents_with_names_of_their_own() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 40


@pytest.mark.parametrize("agent", [a for a in ZOO if a.name not in MUSIC], ids=lambda a: a.name)
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
