"""The agents of docs/agents.md, as turngap reads them in virtual time."""

from collections import Counter
from dataclasses import replace

import pytest
from agents_page import PAGE, lines_of

from turngap.play.zoo import DIALECTS, judge, play_zoo
from turngap.testing.zoo import ZOO

NAMES = [agent.name for agent in ZOO]
# At 8 kHz its tune is once taken for the end of "one moment", so that no answer is told apart.
MISSED = {"hold music": "misleading"}


@pytest.mark.parametrize("agent", ZOO, ids=NAMES)
def test_an_agent_is_read_right_or_refused_and_the_page_says_so(agent) -> None:
    readings = list(play_zoo([agent]))
    assert [r.dialect for r in readings] == list(DIALECTS)
    off = [f"{r.dialect}: {why}" for r in readings for why in r.off]
    refused = ["refused"] if any("refuses" in right for right in agent.right) else []
    may_be = {"right", *refused, MISSED.get(agent.name, "right")}
    assert {r.verdict for r in readings} <= may_be, off
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines_of(readings) if line not in page] == [], "tools/agents_page.py"


def test_hardly_an_agent_is_refused() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 40
    page = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line.split(" | ") for line in page if line.startswith("| ")][2:]
    verdicts = Counter(row[-1].strip(" |") for row in rows)
    assert verdicts["right"] >= 38 / 40 * len(rows)
    assert verdicts["wrong"] == 0
    assert verdicts.total() >= len(NAMES)


def test_an_agent_that_answers_in_beeps_is_measured_on_demand() -> None:
    (beeps,) = (agent for agent in ZOO if agent.name == "beeps only")
    unheard, heard = play_zoo([beeps], ["twilio", "twilio,first_word=sound"])
    for turn in unheard.turns:
        assert turn is not None
        assert "no speech" in (turn.why_no_gap or "")
        assert "first_word=sound" in (turn.why_no_gap or "")
    assert [turn and turn.gap_ms for turn in heard.turns] == [pytest.approx(300, abs=5)] * 3


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
