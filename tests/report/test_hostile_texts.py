"""Texts of a hostile agent in every report: a terminal obeys none of them, and XML stays XML."""

import json
import re
from xml.etree import ElementTree

import pytest
from made_checks import make_check
from made_records import make_comparison, make_run, make_turn
from rich.text import Text

from turngap.check.report import check_report, junit
from turngap.cli.shared import print_json, print_text, say, show_failure
from turngap.compare.figures import Side
from turngap.compare.report import comparison_report
from turngap.core.errors import AgentError
from turngap.core.events import ToolCall
from turngap.core.results import Turn
from turngap.core.stages import Stage
from turngap.core.stored import AnswerRecord, BackchannelRecord, JudgeRecord
from turngap.core.untrusted import xml_text
from turngap.report import terminal
from turngap.report.ci import markdown
from turngap.report.console import run_svg, turn_block
from turngap.report.run import render, run_report, summary_block
from turngap.store.runs import Run

# Clears the screen, sets the window's title, C1, turns the line around, ends a script and a
# comment, half a surrogate pair, what XML forbids, and a new line that would be a command of CI.
EVIL = (
    "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\u2066</script><b>--&gt;]]>\ud83d\x00\x0b\uffff\ufffe"
    "\r\n::error::no\u2028next"
)
COMMAND = (
    f"::set-output name=evil::{'word ' * 14} ::add-mask::x ##[add-path]y ##vso[task.x] ##teamcity[z"
)


def evil_turn(turn: int, marks_ms: dict[str, float] | None) -> Turn:
    values = {
        "scenario": EVIL,
        "say": EVIL,
        "transcript": EVIL,
        "reply": EVIL,
        "error": EVIL,
        "faults": (EVIL,),
        "notes": {EVIL: 3},
        "counts": {EVIL: 1.0},
        "endpoint_why": EVIL,
        "llm": EVIL,
        "left_out": EVIL if turn == 3 else None,
        "calls": (
            ToolCall(EVIL, {EVIL: EVIL}, 5.0, EVIL),
            ToolCall(EVIL, {}, None, None, EVIL),
        ),
        "answer": AnswerRecord(verdict="wrong", heard=EVIL, failed=(EVIL,)),
        "transcribed": AnswerRecord(verdict="not_judged", heard=EVIL, why=EVIL),
        "judged": JudgeRecord(right=False, why=EVIL),
        "backchannels": (BackchannelRecord(say=EVIL, start_ms=1.0, reply_stopped=True),),
    }
    if marks_ms is None:
        values["why_no_gap"] = EVIL
    made = make_turn(turn=turn, marks_ms=marks_ms, **values)
    stages = tuple(Stage(EVIL, s.ns, s.ms) for s in made.stages)
    return made.model_copy(update={"stages": stages})


@pytest.fixture(scope="module")
def run() -> Run:
    turns = [evil_turn(1, {"agent_onset": 400.0}), evil_turn(2, None), evil_turn(3, None)]
    about = {"name": EVIL, "agent": {"stack": EVIL, "url": EVIL}, "settings": {EVIL: EVIL}}
    told = {"valid": False, "why_invalid": (EVIL,), "failure": EVIL, "stand_ins": (EVIL,)}
    return make_run(turns, **about, **told)


def shown(text: Text | str) -> None:
    """Check what is written to a terminal or into a file for people."""
    plain = text.plain if isinstance(text, Text) else text
    assert "evil" in plain
    for line in plain.split("\n"):
        assert line.isprintable(), line
        assert not (line.lstrip().startswith("::") or re.search(r"##\w*\[", line)), line


def test_the_terminal_gets_nothing_that_it_would_obey(run: Run) -> None:
    for turn in run.turns:
        shown(turn_block(turn, 100))
    shown(summary_block(run, 100))
    shown(markdown(run_report(run)))


def test_pictures_are_xml_and_pages_hold_no_markup_of_the_agent(run: Run) -> None:
    ElementTree.fromstring(run_svg(run))
    page = render(run)
    assert xml_text(page) == page
    assert "<b>--" not in page
    page.encode()


def test_an_error_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    evil = EVIL.replace("\n", "")  # errors may have several lines of their own
    show_failure(AgentError("agent.line_lost", f"the line was lost: {evil}", hint=evil))
    say(f"the agent reports: {evil}")
    shown(capsys.readouterr().err)


def test_a_text_begins_no_command_of_a_ci_server(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    turn = run.turns[0].model_copy(update={"scenario": COMMAND, "reply": COMMAND})
    for width in range(60, 100):
        shown(turn_block(turn, width))
    told = run_report(make_run([turn], name=COMMAND, failure=COMMAND), with_turns=True)
    shown(markdown(told))
    say(f"evil\n  {COMMAND}")
    print_text(COMMAND)
    print_json({COMMAND: f"{EVIL}\u200b\xe9\u4e16"})
    out, err = capsys.readouterr()
    shown(out + err)
    assert "\xe9\u4e16" in out
    assert json.loads(out[out.index("{") :]) == {COMMAND: f"{EVIL}\u200b\xe9\u4e16"}


def test_a_comparison_of_hostile_agents(run: Run) -> None:
    record = make_comparison([Side(EVIL, run.turns, None), Side("tame", run.turns, None)])
    record = record.model_copy(update={"failure": EVIL, "agent": EVIL})
    shown(terminal.block(comparison_report(record), 100))
    ElementTree.fromstring(
        terminal.svg(EVIL, [terminal.block(comparison_report(record), 100)], 100)
    )


def test_a_check_of_hostile_agents() -> None:
    record = make_check().model_copy(update={"why": (EVIL,), "verdict": "cannot_compare"})
    shown(terminal.block(check_report(record), 100))
    ElementTree.fromstring(terminal.svg(EVIL, [terminal.block(check_report(record), 100)], 100))
    ElementTree.fromstring(junit(record, EVIL))
