"""Marks of an agent's turns from the instants of what passes through its pipeline."""

import copy
from collections.abc import Callable

import numpy as np
import pytest

from turngap.backends import Decision
from turngap.core.audio import Pcm
from turngap.core.budget import LLM_WINDOW_MS
from turngap.core.clock import ms_to_ns
from turngap.core.events import ToolCall
from turngap.marks.recorder import SAME_STEP_MS, MarksRecorder
from turngap.marks.turn import AgentTurn

RATE = 24_000

Reports = list[tuple[int, dict[str, float]]]


def ns(ms: float) -> int:
    return ms_to_ns(ms)


def loud(ms: float, rate: int = RATE) -> Pcm:
    return np.full(round(ms * rate / 1000), 8000, dtype=np.int16)


def quiet(ms: float, rate: int = RATE) -> Pcm:
    return np.zeros(round(ms * rate / 1000), dtype=np.int16)


def recorder(hold_ms: float = 0.0) -> tuple[MarksRecorder, Reports]:
    reports: Reports = []

    def report(turn: AgentTurn) -> None:
        reports.append((turn.number, {name: at / 1e6 for name, at in turn.marks.items()}))

    return MarksRecorder(hold_ms, report), reports


def marks_of(reports: Reports) -> dict[str, float]:
    ((_, marks),) = reports
    return marks


# --- the endpoint and the transcript ----------------------------------------------------------


def test_a_turn_begins_with_the_request_and_takes_what_came_before() -> None:
    marks, reports = recorder(hold_ms=100)
    marks.vad_stopped(ns(1000))
    marks.transcript(ns(1020))
    marks.turn_decided(ns(1100))
    marks.llm_requested(ns(1103))
    marks.mark("llm_first_token", ns(1200))
    marks.mark("tts_request", ns(1250))
    marks.finish()
    assert reports == [
        (
            1,
            {
                "transcript": 1020,
                "endpoint": 1100,
                "llm_request": 1103,
                "llm_first_token": 1200,
                "tts_request": 1250,
            },
        )
    ]


def test_a_decision_that_waited_for_the_transcript_was_due_before_it() -> None:
    marks, reports = recorder(hold_ms=100)
    marks.vad_stopped(ns(1000))
    marks.transcript(ns(1400))
    marks.turn_decided(ns(1402))
    marks.llm_requested(ns(1403))
    marks.finish()
    # The wait from 1100 to 1400 was the STT's.
    assert (marks_of(reports)["endpoint"], marks_of(reports)["transcript"]) == (1100, 1400)


@pytest.mark.parametrize("decided", [1010.0, 1100.0])
def test_a_decision_is_never_put_after_it_was_made(decided: float) -> None:
    marks, reports = recorder(hold_ms=500)
    marks.vad_stopped(ns(1000))
    marks.transcript(ns(decided - 2))
    marks.turn_decided(ns(decided))
    marks.llm_requested(ns(decided))
    marks.finish()
    assert marks_of(reports)["endpoint"] == decided


def test_a_transcript_from_before_the_vads_stop_is_waited_for_by_nobody() -> None:
    marks, reports = recorder()
    marks.transcript(ns(999))
    marks.vad_stopped(ns(1000))
    marks.turn_decided(ns(1005))
    marks.llm_requested(ns(1005))
    marks.finish()
    assert marks_of(reports)["endpoint"] == 1005


def test_a_decision_long_after_the_transcript_waited_for_something_else() -> None:
    marks, reports = recorder()
    marks.vad_stopped(ns(1000))
    marks.transcript(ns(1020))
    marks.turn_decided(ns(1020 + SAME_STEP_MS))
    marks.llm_requested(ns(1031))
    marks.finish()
    assert marks_of(reports)["endpoint"] == 1020 + SAME_STEP_MS


def test_a_decision_announced_after_the_request_is_that_turns() -> None:
    marks, reports = recorder()
    marks.vad_stopped(ns(1000))
    marks.transcript(ns(1100))
    marks.llm_requested(ns(1101))
    marks.turn_decided(ns(1101.5))
    marks.finish()
    assert marks_of(reports) == {"transcript": 1100, "llm_request": 1101, "endpoint": 1000}


def test_a_decision_announced_after_the_request_lies_no_later_than_it() -> None:
    marks, reports = recorder()
    marks.llm_requested(ns(1101))
    marks.turn_decided(ns(1103))
    marks.finish()
    assert marks_of(reports)["endpoint"] == 1101


def test_a_decision_that_the_turn_taking_dated_lies_where_it_says() -> None:
    # The recogniser concluded ahead of the hold's end, and the announcement took its time.
    marks, reports = recorder()
    marks.vad_stopped(ns(1230))
    marks.transcript(ns(1233))
    marks.turn_decided(ns(1252), Decision(ns(1250), 250.0, "complete"))
    marks.llm_requested(ns(1253))
    marks.finish()
    assert (marks_of(reports)["endpoint"], marks_of(reports)["transcript"]) == (1250, 1233)


def test_a_decision_long_after_the_request_is_of_the_next_turn() -> None:
    marks, reports = recorder()
    marks.llm_requested(ns(1000))
    marks.turn_decided(ns(3000))
    marks.llm_requested(ns(3001))
    marks.finish()
    assert [m.get("endpoint") for _, m in reports] == [None, 3000]


def test_an_endpoint_that_the_user_talked_over_is_forgotten() -> None:
    # A false endpoint whose request was never made.
    marks, reports = recorder()
    marks.vad_stopped(ns(500))
    marks.transcript(ns(520))
    marks.turn_decided(ns(530))
    marks.user_started(ns(600))
    marks.vad_stopped(ns(1000))
    marks.transcript(ns(1200))
    marks.turn_decided(ns(1300))
    marks.llm_requested(ns(1301))
    marks.finish()
    assert marks_of(reports) == {"transcript": 1200, "endpoint": 1300, "llm_request": 1301}


def test_a_stop_of_the_vad_that_the_user_talked_over_is_forgotten() -> None:
    # Decided by the transcript alone: the stop of seconds ago is no endpoint of this turn.
    marks, reports = recorder()
    marks.vad_stopped(ns(500))
    marks.user_started(ns(600))
    marks.transcript(ns(3000))
    marks.turn_decided(ns(3001))
    marks.llm_requested(ns(3001))
    marks.finish()
    assert marks_of(reports)["endpoint"] == 3001


def test_a_request_without_any_endpoint_has_none() -> None:
    marks, reports = recorder()
    marks.llm_requested(ns(1000))
    marks.finish()
    assert reports == [(1, {"llm_request": 1000})]


# --- the audio --------------------------------------------------------------------------------


def test_a_lead_in_is_a_stage_of_its_own_however_fast_it_was_made() -> None:
    # 150 ms of silence and the speech behind it, all made at 2000 and sent two chunks ahead.
    marks, reports = recorder()
    marks.llm_requested(ns(1000))
    audio = np.concatenate((quiet(150), loud(100)))
    marks.tts_audio(ns(2000), audio, RATE)
    size = RATE * 40 // 1000
    for index in range(0, len(audio), size):
        written = 2000 + max(0, index // size - 1) * 40
        marks.sent(ns(written), audio[index : index + size], RATE)
    marks.finish()
    found = marks_of(reports)
    assert found["tts_first_audio"] == 2000
    assert found["tts_first_audible"] == 2150
    assert found["sent"] == 2080  # the fourth chunk, 120 to 160 ms, holds the first audible sample


def test_slow_audio_is_audible_when_it_was_made() -> None:
    marks, reports = recorder()
    marks.llm_requested(ns(1000))
    marks.tts_audio(ns(2000), quiet(20), RATE)
    marks.tts_audio(ns(2300), loud(20), RATE)
    marks.sent(ns(2001), quiet(20), RATE)
    marks.sent(ns(2301), loud(20), RATE)
    marks.finish()
    found = marks_of(reports)
    assert (found["tts_first_audio"], found["tts_first_audible"], found["sent"]) == (
        2000,
        2300,
        2301,
    )


def test_an_onset_at_a_chunks_end_is_that_chunks_though_it_is_known_with_the_next() -> None:
    marks, reports = recorder()
    marks.llm_requested(ns(1000))
    first = np.concatenate((quiet(37), loud(3)))
    for at, chunk in ((2000, first), (2040, loud(40))):
        marks.tts_audio(ns(at), chunk, RATE)
        marks.sent(ns(at + 1), chunk, RATE)
    marks.finish()
    assert marks_of(reports)["tts_first_audible"] == 2037
    assert marks_of(reports)["sent"] == 2001


def test_only_the_first_of_each_counts() -> None:
    marks, reports = recorder()
    marks.llm_requested(ns(1000))
    for at in (1100, 1200):
        marks.mark("llm_first_token", ns(at))
        marks.tts_audio(ns(at), loud(20), RATE)
        marks.sent(ns(at + 5), loud(20), RATE)
    marks.finish()
    assert marks_of(reports) == {
        "llm_request": 1000,
        "llm_first_token": 1100,
        "tts_first_audio": 1100,
        "tts_first_audible": 1100,
        "sent": 1105,
    }


def test_audio_that_is_never_audible_was_not_sent() -> None:
    marks, reports = recorder()
    marks.llm_requested(ns(1000))
    marks.tts_audio(ns(1100), quiet(200), RATE)
    marks.sent(ns(1101), quiet(200), RATE)
    marks.finish()
    assert marks_of(reports) == {"llm_request": 1000, "tts_first_audio": 1100}


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 48_000])
def test_any_rate(rate: int) -> None:
    marks, reports = recorder()
    marks.llm_requested(ns(1000))
    marks.tts_audio(ns(2000), np.concatenate((quiet(100, rate), loud(50, rate))), rate)
    marks.finish()
    assert marks_of(reports)["tts_first_audible"] == pytest.approx(2100, abs=0.1)


def test_audio_outside_any_turn_is_of_no_turn() -> None:
    marks, reports = recorder()
    marks.tts_audio(ns(500), loud(20), RATE)  # a greeting, which no request asked for
    marks.sent(ns(501), loud(20), RATE)
    marks.mark("llm_first_token", ns(502))
    marks.finish()
    assert reports == []
    marks.llm_requested(ns(1000))
    marks.finish()
    assert marks_of(reports) == {"llm_request": 1000}


# --- when a turn is over ----------------------------------------------------------------------


def test_nothing_is_reported_before_the_turn_is_over_and_nothing_twice() -> None:
    marks, reports = recorder()
    marks.turn_decided(ns(900))
    marks.llm_requested(ns(1000))
    marks.tts_audio(ns(1100), loud(20), RATE)
    marks.sent(ns(1101), loud(20), RATE)
    assert reports == []
    marks.finish()
    marks.finish()
    assert len(reports) == 1


def test_a_turn_interrupted_before_anything_was_sent_is_reported_as_far_as_it_got() -> None:
    marks, reports = recorder()
    marks.turn_decided(ns(900))
    marks.llm_requested(ns(1000))
    marks.mark("llm_first_token", ns(1100))
    marks.user_started(ns(600))
    marks.finish()  # the interruption
    marks.tts_audio(ns(1200), loud(20), RATE)
    marks.sent(ns(1201), loud(20), RATE)
    assert marks_of(reports) == {"endpoint": 900, "llm_request": 1000, "llm_first_token": 1100}


def test_a_second_request_ends_the_first_turn_and_shares_nothing_with_it() -> None:
    marks, reports = recorder()
    marks.transcript(ns(890))
    marks.turn_decided(ns(900))
    marks.llm_requested(ns(1000))
    marks.tts_audio(ns(1100), loud(20), RATE)
    marks.llm_requested(ns(2000))
    marks.tts_audio(ns(2100), quiet(100), RATE)
    marks.tts_audio(ns(2101), loud(20), RATE)
    marks.finish()
    assert [turn for turn, _ in reports] == [1, 2]
    assert reports[0][1] == {
        "transcript": 890,
        "endpoint": 900,
        "llm_request": 1000,
        "tts_first_audio": 1100,
        "tts_first_audible": 1100,
    }
    assert reports[1][1] == {
        "llm_request": 2000,
        "tts_first_audio": 2100,
        "tts_first_audible": 2200,
    }


# --- answers to guesses -----------------------------------------------------------------------


def told(hold_ms: float = 0.0) -> tuple[MarksRecorder, list[AgentTurn]]:
    turns: list[AgentTurn] = []
    return MarksRecorder(hold_ms, turns.append), turns


def test_a_guess_becomes_a_turn_with_the_marks_that_it_has_by_then() -> None:
    marks, turns = told()
    marks.guessed(ns(1000))
    marks.mark("llm_first_token", ns(1150))
    marks.mark("tts_request", ns(1160))
    marks.tts_audio(ns(1170), loud(40), RATE)
    assert turns == []
    marks.vad_stopped(ns(1190))
    marks.transcript(ns(1192))
    marks.turn_decided(ns(1193), Decision(ns(1190), 250.0, "complete"))
    marks.sent(ns(1195), loud(40), RATE)
    marks.finish()
    (turn,) = turns
    assert (turn.number, turn.why, turn.counts) == (1, "complete", {"hold_ms": 250.0})
    assert {name: at / 1e6 for name, at in turn.marks.items()} == {
        "llm_request": 1000,
        "llm_first_token": 1150,
        "tts_request": 1160,
        "tts_first_audio": 1170,
        "tts_first_audible": 1193,  # not before the turn was over
        "transcript": 1192,
        "endpoint": 1190,  # due before the transcript that the decision waited for
        "sent": 1195,
    }


def test_a_withdrawn_guess_is_no_turn_and_leaves_no_marks() -> None:
    marks, turns = told()
    marks.guessed(ns(1000))
    marks.mark("llm_first_token", ns(1150))
    marks.withdrawn()
    marks.guessed(ns(2000))
    marks.mark("llm_first_token", ns(2150))
    marks.turn_decided(ns(2250))
    marks.finish()
    (turn,) = turns
    assert (turn.number, turn.marks["llm_first_token"]) == (1, ns(2150))


def test_what_a_withdrawn_guess_has_cost_is_the_next_turns() -> None:
    marks, turns = told()
    marks.guessed(ns(1000))
    marks.used(100, 10)
    marks.count("combined_usd", 0.5)
    marks.count("opener_ms", 700)  # of an opening that nobody heard
    marks.withdrawn()
    marks.guessed(ns(2000))
    marks.used(120, 12)
    marks.count("combined_usd", 0.25)
    marks.turn_decided(ns(2250))
    marks.finish()
    counts = {"llm_prompt_tokens": 220, "llm_completion_tokens": 22, "combined_usd": 0.75}
    assert [turn.counts for turn in turns] == [counts]


def test_what_the_voice_still_does_about_an_earlier_guess_is_not_this_ones() -> None:
    marks, turns = told()
    marks.guessed(ns(1000))
    marks.mark("tts_request", ns(1001))
    marks.tts_audio(ns(1002), loud(40), RATE)
    marks.mark("llm_first_token", ns(1150))
    marks.mark("tts_request", ns(1160))
    marks.tts_audio(ns(1170), loud(40), RATE)
    marks.turn_decided(ns(1200))
    marks.finish()
    assert turns[0].marks["tts_request"] == ns(1160)
    assert turns[0].marks["tts_first_audio"] == ns(1170)


def test_a_reply_that_is_still_heard_keeps_its_turn_while_the_next_is_guessed() -> None:
    marks, turns = told()
    marks.llm_requested(ns(1000))
    marks.guessed(ns(2000))
    marks.sent(ns(2001), loud(40), RATE)
    marks.mark("llm_first_token", ns(2100))
    marks.finish()
    marks.turn_decided(ns(2250))
    marks.finish()
    assert turns[0].marks == {"llm_request": ns(1000), "sent": ns(2001)}
    assert set(turns[1].marks) == {"llm_request", "llm_first_token", "endpoint"}


def test_what_is_counted_before_a_turn_belongs_to_it() -> None:
    marks, turns = told()
    marks.count("lead_cut_ns", 5)
    marks.llm_requested(ns(1000))
    marks.count("lead_cut_ns", 2)
    marks.finish()
    marks.llm_requested(ns(2000))
    marks.finish()
    assert [turn.counts for turn in turns] == [{"lead_cut_ns": 7}, {}]


def test_why_a_turn_ended_is_told_whichever_came_first() -> None:
    why = Decision(ns(990), 500.0, "number")
    for decided_first in (True, False):
        marks, turns = told()
        if decided_first:
            marks.turn_decided(ns(1000), why)
        marks.llm_requested(ns(1001))
        if not decided_first:
            marks.turn_decided(ns(1002), why)
        marks.finish()
        assert (turns[0].why, turns[0].counts["hold_ms"]) == ("number", 500.0)


def test_a_typed_turn_has_no_silence_before_it_whatever_was_heard_and_not_answered() -> None:
    marks, turns = told()
    marks.vad_stopped(ns(1000))
    marks.transcript(ns(1100))
    marks.turn_decided(ns(1101))
    marks.typed()
    marks.llm_requested(ns(41_000))
    marks.finish()
    assert (turns[0].silent_ns, set(turns[0].marks)) == (None, {"llm_request"})


def test_the_silence_before_a_guess_is_heard_is_a_stage_too() -> None:
    marks, turns = told()
    marks.guessed(ns(1000))
    marks.mark("llm_first_token", ns(1010))
    marks.tts_audio(ns(1020), np.concatenate((quiet(150), loud(100))), RATE)
    marks.turn_decided(ns(1250))
    marks.finish()
    assert turns[0].marks["tts_first_audio"] == ns(1020)
    assert turns[0].marks["tts_first_audible"] == ns(1250 + 150)
    # The same where it is found only after the turn was over.
    marks, turns = told()
    marks.guessed(ns(1000))
    marks.mark("llm_first_token", ns(1010))
    marks.tts_audio(ns(1020), quiet(150), RATE)
    marks.turn_decided(ns(1250))
    marks.tts_audio(ns(1260), loud(100), RATE)
    marks.finish()
    assert turns[0].marks["tts_first_audible"] == ns(1250 + 150)


# --- answers that fail ------------------------------------------------------------------------


def errors_of(run: Callable[[MarksRecorder], None]) -> list[tuple[int, str | None, list[str]]]:
    """Each report's turn, error and marks."""
    reports: list[tuple[int, str | None, list[str]]] = []
    marks = MarksRecorder(
        0.0, lambda turn: reports.append((turn.number, turn.error, list(turn.marks)))
    )
    run(marks)
    return reports


def test_an_answer_that_fails_is_reported_at_once_and_again_when_it_is_over() -> None:
    def run(marks: MarksRecorder) -> None:
        marks.llm_requested(ns(1000))
        marks.failed("no server")
        marks.failed("and again")
        marks.mark("tts_request", ns(1100))
        marks.finish()

    assert errors_of(run) == [
        (1, "no server", ["llm_request"]),
        (1, "no server", ["llm_request"]),
        (1, "no server", ["llm_request", "tts_request"]),
    ]


def test_a_guess_that_failed_is_told_when_it_becomes_the_answer() -> None:
    def run(marks: MarksRecorder) -> None:
        marks.guessed(ns(1000))
        marks.failed("no server")
        marks.turn_decided(ns(1200))
        marks.finish()

    assert errors_of(run) == [
        (1, "no server", ["llm_request"]),
        (1, "no server", ["llm_request", "endpoint"]),
    ]


def test_a_guess_that_failed_and_was_withdrawn_never_was() -> None:
    def run(marks: MarksRecorder) -> None:
        marks.guessed(ns(1000))
        marks.failed("no server")
        marks.withdrawn()
        marks.llm_requested(ns(1300))
        marks.finish()

    assert errors_of(run) == [(1, None, ["llm_request"])]


def test_a_failure_without_an_answer_is_nobodys() -> None:
    assert errors_of(lambda marks: marks.failed("no server")) == []


def test_tokens_are_counted_and_those_within_the_llms_window_too() -> None:
    turns: list[AgentTurn] = []
    recorder = MarksRecorder(0.0, turns.append)
    recorder.llm_requested(ns(1000))
    for ms in (1200, 1450, 1451, 1600, 2000):
        recorder.said(ns(ms))
    recorder.used(prompt_tokens=90, completion_tokens=5)
    recorder.finish()
    (turn,) = turns
    assert turn.marks["llm_first_token"] == ns(1200)
    assert turn.counts == {
        "llm_window_tokens": 2,
        "llm_ttft_ms": 200,
        "llm_tokens_per_s": pytest.approx(4 / 0.8),
        "llm_prompt_tokens": 90,
        "llm_completion_tokens": 5,
    }


@pytest.mark.parametrize(
    ("at_ms", "tokens", "per_s", "window"),
    [
        ((100, 150, 200, 250, 300), 150, 600, 150),  # 30 tokens a piece
        ((100, 150, 200, 250), 120, None, 120),  # too few pieces for a rate
        ((100, 100, 100, 101, 101), 5, None, 5),  # a burst
        ((100, 150, 200, 250, 500), 50, 100, 40),
    ],
)
def test_tokens_are_what_the_llm_says_it_used_whatever_pieces_they_come_in(
    at_ms: tuple[int, ...], tokens: int, per_s: float | None, window: float
) -> None:
    turns: list[AgentTurn] = []
    recorder = MarksRecorder(0.0, turns.append)
    recorder.llm_requested(ns(0))
    for ms in at_ms:
        recorder.said(ns(ms))
    recorder.used(prompt_tokens=90, completion_tokens=tokens)
    recorder.finish()
    assert turns[0].counts.get("llm_tokens_per_s") == (per_s and pytest.approx(per_s))
    assert turns[0].counts["llm_window_tokens"] == pytest.approx(window)


def test_thoughts_and_calls_of_tools_have_tokens_of_their_own() -> None:
    turns: list[AgentTurn] = []
    recorder = MarksRecorder(0.0, turns.append)
    recorder.llm_requested(ns(0))
    recorder.used(prompt_tokens=90, completion_tokens=500)  # a call
    for ms in (10, 20, 30, 40, 50):
        recorder.thought(ns(ms))
    for ms in (100, 150, 200, 250, 300):
        recorder.said(ns(ms))
    recorder.used(prompt_tokens=90, completion_tokens=20)
    recorder.finish()
    assert turns[0].counts["llm_tokens_per_s"] == pytest.approx(4 * 2 / 0.2)


def test_what_a_model_thinks_is_counted_apart_and_is_not_its_first_token() -> None:
    turns: list[AgentTurn] = []
    recorder = MarksRecorder(0.0, turns.append)
    recorder.llm_requested(ns(1000))
    for ms in (1050, 1100, 1300):
        recorder.thought(ns(ms))
    recorder.said(ns(1400))
    recorder.thought(ns(1410))
    recorder.finish()
    (turn,) = turns
    assert turn.marks["llm_first_token"] == ns(1400)
    assert turn.counts == {
        "llm_thought_tokens": 4,
        "llm_thought_ms": 250 + 10,
        "llm_window_tokens": 1,
        "llm_ttft_ms": 400,
    }


def test_a_model_that_is_slower_than_its_window_has_no_token_in_it() -> None:
    turns: list[AgentTurn] = []
    recorder = MarksRecorder(0.0, turns.append)
    recorder.llm_requested(ns(0))
    recorder.said(ns(LLM_WINDOW_MS + 1))
    recorder.finish()
    # One token has no rate.
    assert turns[0].counts == {"llm_window_tokens": 0, "llm_ttft_ms": LLM_WINDOW_MS + 1}


def test_a_guess_is_as_fast_as_it_was_from_its_own_request() -> None:
    turns: list[AgentTurn] = []
    recorder = MarksRecorder(0.0, turns.append)
    recorder.guessed(ns(0))
    recorder.said(ns(50))
    recorder.withdrawn()
    recorder.guessed(ns(1000))
    recorder.said(ns(1100))
    recorder.turn_decided(ns(1150))
    for ms in (1110, 1120, 1130, 1140):
        recorder.said(ns(ms))
    recorder.used(prompt_tokens=9, completion_tokens=5)
    recorder.finish()
    (turn,) = turns
    assert turn.counts["llm_ttft_ms"] == 100
    assert turn.counts["llm_tokens_per_s"] == pytest.approx(100)


# --- tools ------------------------------------------------------------------------------------


def called_recorder() -> tuple[MarksRecorder, list[AgentTurn]]:
    reports: list[AgentTurn] = []

    def report(turn: AgentTurn) -> None:
        reports.append(copy.deepcopy(turn))

    marks = MarksRecorder(0, report)
    marks.llm_requested(ns(1000))
    return marks, reports


def test_a_turn_waits_for_the_first_call_and_for_the_last_result() -> None:
    marks, reports = called_recorder()
    marks.tool_called("a", "clock", {}, ns(1200))
    marks.tool_called("b", "weather", {"day": "today"}, ns(1201))
    marks.tool_returned("b", ns(1230), result='{"sky": "sunny"}')
    marks.tool_returned("a", ns(1250), error="ValueError: broken")
    marks.said(ns(1400))
    marks.finish()
    (turn,) = reports
    assert turn.marks == {
        "llm_request": ns(1000),
        "tool_call": ns(1200),
        "tool_result": ns(1250),
        "llm_first_token": ns(1400),
    }
    assert list(turn.calls.values()) == [
        ToolCall("clock", {}, 50.0, error="ValueError: broken"),
        ToolCall("weather", {"day": "today"}, 29.0, '{"sky": "sunny"}'),
    ]
    # How fast the model is, is how fast it was when it answered.
    assert turn.counts["llm_ttft_ms"] == 150


def test_a_tool_that_is_called_after_the_first_words_is_told_and_is_no_stage() -> None:
    marks, reports = called_recorder()
    marks.said(ns(1100))
    marks.tool_called("a", "clock", {}, ns(1200))
    marks.tool_returned("a", ns(1250), result="{}")
    marks.finish()
    assert set(reports[0].marks) == {"llm_request", "llm_first_token"}
    assert [call.ms for call in reports[0].calls.values()] == [50.0]


def test_what_becomes_of_a_call_when_its_turn_is_over_is_told_then() -> None:
    marks, reports = called_recorder()
    marks.tool_called("a", "clock", {}, ns(1200))
    marks.finish()
    marks.tool_cancelled("a")
    marks.tool_cancelled("unheard of")
    marks.tool_returned("a", ns(1300), result="{}")  # of a call that nobody waits for
    assert [turn.number for turn in reports] == [1, 1]
    assert reports[0].calls["a"] == ToolCall("clock", {})
    assert reports[1].calls["a"] == ToolCall("clock", {}, error="cancelled")
    assert "tool_result" not in reports[1].marks


def test_a_call_before_any_turn_belongs_to_none() -> None:
    marks, reports = recorder()
    marks.tool_called("a", "greet", {}, ns(100))
    marks.tool_returned("a", ns(200), result="{}")
    assert reports == []


def test_what_the_recogniser_counts_is_of_the_turn_that_answers_what_was_heard() -> None:
    told: list[AgentTurn] = []
    marks = MarksRecorder(0.0, told.append)
    marks.llm_requested(ns(0))
    # The next words are heard while the first answer is still made, and a guess at them is begun.
    marks.heard({"stt_readings": 2, "stt_read_again": 0})
    marks.guessed(ns(100))
    marks.heard({"stt_readings": 3, "stt_read_again": 1})
    marks.turn_decided(ns(200))
    marks.finish()
    counts = {"stt_readings": 5, "stt_read_again": 1}
    assert [turn.counts for turn in told] == [{}, counts]
