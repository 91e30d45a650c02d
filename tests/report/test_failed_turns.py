"""What is said of turns that the agent itself could not answer."""

from made_records import make_run, make_turn

from turngap.cli.measuring import exit_code, failed_turns
from turngap.core.errors import ExitCode
from turngap.report.console import turn_block

ERROR = "VllmLLMService: Error during completion: 500 (the server's log says why)"


def test_it_is_one_line_with_the_turn_the_reason_and_where_the_log_is() -> None:
    turns = [
        make_turn(turn=1),
        make_turn(turn=2, outcome="error", error="a\nb\x1b[31m"),
        make_turn(turn=3, outcome="error", error="later"),
    ]
    run = make_run(turns)
    failure = failed_turns(run)
    assert failure is not None
    assert failure.message == (
        "the agent failed in 2 of 3 turns, first in coffee-order, turn 2: a b [31m"
    )
    assert str(run.path) in failure.hint
    assert exit_code(run, failure, None) == ExitCode.AGENT_FAILED


def test_a_run_without_any_is_none() -> None:
    assert failed_turns(make_run([make_turn()])) is None
    assert failed_turns(make_run([])) is None


def test_the_console_says_why_once() -> None:
    said = "Error during completion: 500"
    half = make_turn(outcome="error", error=ERROR, faults=(said, "the line crackles"))
    text = " ".join(turn_block(half, 100).plain.split())
    assert "✗ coffee-order · turn 1 · error" in text
    assert f"the agent failed in mid-reply: {ERROR}" in text
    assert text.count(said) == 1
    assert "the agent reported: the line crackles" in text


def test_a_turn_without_any_reply_says_the_reason_where_others_say_that_none_came() -> None:
    none = make_turn(
        marks_ms=None, outcome="error", error=ERROR, why_no_gap=f"the agent failed: {ERROR}"
    )
    text = " ".join(turn_block(none, 100).plain.split())
    assert text.count(ERROR) == 1
