"""Reports of turns that the agent itself could not answer."""

from made_records import make_run, make_turn

from turngap.cli.measuring import exit_code, failed_turns
from turngap.core.errors import ExitCode

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


def test_a_lost_line_counts_whether_the_run_was_played_in_one_go_or_continued() -> None:
    run = make_run([make_turn(turn=1), make_turn(turn=2, ended="line_lost")])
    assert run.record.valid
    failure = failed_turns(run)
    assert failure is not None
    assert failure.message.endswith(
        "in 1 of 2 turns, first in coffee-order, turn 2: the line was lost before the reply had "
        "ended"
    )
    assert exit_code(run, failure, None) == ExitCode.AGENT_FAILED


def test_a_run_without_any_is_none() -> None:
    assert failed_turns(make_run([make_turn()])) is None
    assert failed_turns(make_run([])) is None
