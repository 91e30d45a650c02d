from dataclasses import replace
from typing import Any

import pytest

from turngap.core.results import Turn
from turngap.core.stages import stages_of
from turngap.fleet.workload import measured_turns

USER_END_NS = 5_000_000_000
MARKS_MS = {
    "endpoint": 231.0,
    "transcript": 233.0,
    "llm_request": 234.0,
    "llm_first_token": 354.0,
    "tts_request": 414.0,
    "tts_first_audio": 415.0,
    "tts_first_audible": 425.0,
    "sent": 426.0,
    "received": 427.0,
    "agent_onset": 452.0,
}
CALLED_MS = {"tool_call": 300.0, "tool_result": 340.0}


def turn(marks_ms: dict[str, float] = MARKS_MS, **changes: Any) -> Turn:
    """A turn of 452 ms whose ten tokens came 20 ms apart, four of them before the TTS was asked."""
    marks = {"user_end": USER_END_NS} | {
        name: USER_END_NS + round(ms * 1e6) for name, ms in marks_ms.items()
    }
    first_ns = USER_END_NS + 354_000_000
    events: list[dict[str, Any]] = [
        {"event": "AgentText", "at_ns": first_ns + n * 20_000_000 + 1_000_000, "text": f" w{n}"}
        for n in range(10)
    ]
    events.append({"event": "AgentText", "at_ns": first_ns + 200_000_000, "text": " "})
    events.append({"event": "AgentSilence", "at_ns": USER_END_NS - 1})
    events.append({"event": "AgentSilence", "at_ns": marks["agent_onset"] + 1_500_000_000})
    values: dict[str, Any] = {
        "scenario": "coffee-order",
        "turn": 1,
        "repeat": 1,
        "say": "one two three four",
        "outcome": "answered",
        "ended": "reply_done",
        "budget_ms": 800.0,
        "gap_ns": 452_000_000,
        "gap_ms": 452.0,
        "why_no_gap": None,
        "stages": [{"name": s.name, "ns": s.ns, "ms": s.ns / 1e6} for s in stages_of(marks)],
        "transcript": "one two three",
        "reply": "w0 w1 w2 w3 w4",
        "lead_ms": 1.0,
        "yield_ms": None,
        "marks": [{"name": n, "at_ns": at, "vantage": "caller"} for n, at in marks.items()],
        "pacing": {"packets": 9, "late_ms_p50": 0.1, "late_ms_max": 0.1, "starved": False},
        "audio": {"file": "a.wav", "user_start_ms": 100.0, "user_end_ms": 1700.0, "onset_ms": 1},
        "events": events,
    }
    return Turn.model_validate(values | changes)


def test_a_turn_is_taken_apart_into_what_is_the_llms_and_what_is_not() -> None:
    found = measured_turns([turn()])
    (sample,) = found.samples
    assert sample.before_ms == pytest.approx(234)
    assert sample.after_ms == pytest.approx(38)
    assert sample.speech_ms == 1600
    assert sample.reply_ms == pytest.approx(1500)
    assert (sample.reply_tokens, sample.opening_tokens) == (10, 4)
    # Ten tokens of five words; three words were heard.
    assert found.tokens_per_word == 2
    assert sample.user_tokens == 6
    assert found.left_out == {}


def test_what_was_not_transcribed_is_counted_by_what_was_said() -> None:
    (sample,) = measured_turns([turn(transcript="")]).samples
    assert sample.user_tokens == 8


def test_work_done_ahead_of_time_takes_no_time() -> None:
    early = MARKS_MS | {"transcript": 100.0, "llm_request": 150.0}
    (sample,) = measured_turns([turn(early)]).samples
    assert sample.before_ms == pytest.approx(231)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (turn(outcome="no_reply", gap_ns=None, gap_ms=None), "outcome no_reply"),
        (turn(outcome="cut_in"), "outcome cut_in"),
        (turn(left_out="typed"), "typed"),
        (turn(ended="interrupted"), "the reply was not heard out"),
        (turn(audio=None), "no bounds of the person's speech"),
        (
            turn({"agent_onset": 452.0}),
            "silence that no mark explains",
        ),
        (
            turn(pacing={"packets": 9, "late_ms_p50": 0, "late_ms_max": 99, "starved": True}),
            "the caller was starved",
        ),
        (turn(MARKS_MS | CALLED_MS), "the LLM called a tool"),
        (turn(events=()), "the agent did not report its reply's text token by token"),
    ],
)
def test_turns_that_tell_nothing_are_counted_by_reason(bad: Turn, why: str) -> None:
    found = measured_turns([turn(), bad, bad])
    assert len(found.samples) == 1
    assert found.left_out == {why: 2}


def test_no_turn_is_no_sample() -> None:
    found = measured_turns([])
    assert (found.samples, found.left_out, found.tokens_per_word) == ((), {}, None)
    assert replace(found, left_out={}) == found
