"""The agents of docs/agents.md, as turngap reads them in virtual time."""

from dataclasses import replace

import pytest
from agents_page import PAGE, lines_of
from commandline import turngap_here

from turngap.play import calibrate
from turngap.play.calibrate import DIALECTS, judge, play_zoo
from turngap.testing.zoo import ZOO, sound

NAMES = [agent.name for agent in ZOO]
# Read wrong in a dialect, and why; whoever mends one takes it out.
MISSED: dict[str, str] = {}


@pytest.mark.parametrize("agent", ZOO, ids=NAMES)
def test_an_agent_is_read_right_or_refused_and_the_page_says_so(agent) -> None:
    readings = list(play_zoo([agent]))
    assert [r.dialect for r in readings] == list(DIALECTS)
    off = [f"{r.dialect}: {why}" for r in readings for why in r.off]
    assert any(r.verdict == "wrong" for r in readings) == (agent.name in MISSED), off
    doubtful = any("refuses" in right or right["outcome"] == "error" for right in agent.right)
    assert doubtful or all(r.valid for r in readings), "false alarm"
    page = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines_of(readings) if line not in page] == [], "tools/agents_page.py"


def test_hardly_an_agent_is_refused() -> None:
    assert len(set(NAMES)) == len(NAMES) >= 40
    # The test above sees that the page's rows are what is read.
    rows = [line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    not_right = {
        row[0][2:].partition(" (")[0] for row in rows if row[-1] in ("refused |", "wrong |")
    }
    assert not_right <= {*NAMES}
    assert len(not_right - {*MISSED}) <= 2 / 40 * len(NAMES)


def test_calibrate_plays_the_agents_and_fails_where_one_is_read_wrong(capsys, monkeypatch) -> None:
    plain, wrong = ZOO[0], replace(ZOO[1], right=[{"outcome": "answered", "gap": 140}])

    def played(*agents, options=()):
        monkeypatch.setattr(
            calibrate, "play_zoo", lambda on_agent: play_zoo(agents, on_agent=on_agent)
        )
        return turngap_here(capsys, "calibrate", "--agents", *options)

    shown = played(plain)
    assert (shown.code, "answers after 500 ms" in shown.out) == (0, True)
    failed = played(plain, wrong, options=["--json"])
    verdicts = [(each["agent"], each["verdict"]) for each in failed.document()["agents"]]
    assert verdicts == [("plain", "right")] * 2 + [("prompt", "wrong")] * 2
    assert failed.code == 1


def test_an_agent_that_answers_in_beeps_is_measured_on_demand() -> None:
    (beeps,) = (agent for agent in ZOO if agent.name == "beeps only")
    unheard, heard = play_zoo([beeps], ["twilio", "twilio,first_word=sound"])
    for turn in unheard.turns:
        assert turn is not None
        assert "no speech" in (turn.why_no_gap or "")
        assert "first_word=sound" in (turn.why_no_gap or "")
    assert [turn and turn.gap_ms for turn in heard.turns] == [pytest.approx(300, abs=5)] * 3


@pytest.mark.parametrize(("answer_ms", "noted", "valid"), [(8500, 2, True), (7200, 2, False)])
def test_an_answer_in_the_next_turn_is_noted_in_both_before_a_run_is_judged(
    answer_ms: int, noted: int, valid: bool
) -> None:
    def says(turn):
        held = [(400, sound("hold")), (answer_ms, sound("answer"))]
        return held if turn.number == 1 else [(500, sound("answer"))]

    (reading,) = play_zoo([replace(ZOO[0], says=says)], ["twilio"])
    turns = [turn for turn in reading.turns if turn is not None]
    assert [bool(turn.notes) for turn in turns] == [i < noted for i in range(3)]
    assert reading.valid is valid is not (sum(turn.ambiguous for turn in turns) == 2)


def test_a_turn_is_right_in_all_its_figures_refused_in_the_declared_words_or_wrong() -> None:
    (read,) = play_zoo([ZOO[0]], ["pipecat"])
    turn = read.turns[0]
    assert turn is not None

    def verdict(gap, changes, **more):
        right = {"outcome": "answered", "gap": gap, **more}
        played = turn.model_copy(update=changes)
        return judge(replace(ZOO[0], right=[right]), [played])[0]

    assert verdict(505, {}) == "right"
    assert verdict(520, {}) == "wrong"
    assert verdict(500, {"first_answer_ms": 520.0}, answer=500) == "wrong"
    assert verdict(500, {"false_starts": 1}, false_starts=0) == "wrong"
    assert verdict(500, {}, **{"yield": 200}) == "wrong"
    assert verdict(500, {"left_out": "it may be the greeting"}) == "wrong"
    noted = {"notes": {"ambiguous: speech was taken for the answer to the turn before": 1}}
    assert verdict(520, noted) == "wrong"
    assert verdict(520, noted, refuses="the turn before") == "refused"
    silent = {"gap_ms": None, "outcome": "no_reply", "why_no_gap": "a bed at -12 dBFS"}
    assert verdict(500, silent) == "wrong"
    assert verdict(500, silent, refuses="dBFS") == "refused"
    assert verdict(500, silent, refuses="tone") == "wrong"
