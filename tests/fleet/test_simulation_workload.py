"""Calls to simulate: how they are drawn, and how turns of stored runs become their material."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from turngap.core.errors import InputError
from turngap.core.results import Turn
from turngap.core.stages import stages_of
from turngap.fleet.workload import BLOCK, TurnSample, Workload, draw_calls, measured_turns
from turngap.inference.server import PS_PER_MS

SHORT = TurnSample(200, 40, 1000, 1500, 10, 12, 4)
LONG = TurnSample(400, 60, 3000, 4000, 30, 80, 9)
WORK = Workload((SHORT, LONG), system_tokens=300, turns=6, think_ms=400, think_sigma=0.5)


def starts(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.int64) * 10**12


@pytest.mark.parametrize("under_way", [False, True])
def test_each_turn_is_one_of_the_samples_as_a_whole(under_way: bool) -> None:
    calls = draw_calls(WORK, 1, starts(600), under_way=under_way)
    rows = zip(calls.output, calls.opening, calls.tail_ps, calls.fixed_ps, strict=True)
    assert set(rows) == {
        (12, 4, 1540 * PS_PER_MS, 240 * PS_PER_MS),
        (80, 9, 4060 * PS_PER_MS, 460 * PS_PER_MS),
    }
    assert len(calls.first) == len(calls.last) == 600
    assert (calls.first <= calls.last).all()
    assert (calls.call[calls.first] == np.arange(600)).all()
    assert (calls.call[calls.last] == np.arange(600)).all()


def test_a_prompt_holds_all_that_was_said_in_its_call() -> None:
    calls = draw_calls(WORK, 1, starts(300), under_way=False)
    for call in range(300):
        said = 300
        for turn in range(calls.first[call], calls.last[call] + 1):
            user = 10 if calls.output[turn] == 12 else 30
            assert calls.prompt[turn] == said + user
            said += user + calls.output[turn]
            assert said <= WORK.longest_tokens


def test_turns_and_pauses_are_distributed_as_asked() -> None:
    calls = draw_calls(WORK, 1, starts(20_000), under_way=False)
    counts = calls.last - calls.first + 1
    # The cut at four times the mean takes 2 % off.
    assert counts.mean() == pytest.approx(6, rel=0.05)
    assert counts.max() == WORK.most_turns == 24
    assert np.mean(counts == 1) == pytest.approx(1 / 6, abs=0.01)
    think_ms = calls.lead_ps / PS_PER_MS - np.where(calls.output == 12, 1200, 3400)
    assert np.median(think_ms) == pytest.approx(400, rel=0.02)
    assert np.std(np.log(think_ms)) == pytest.approx(0.5, rel=0.02)
    mean_ms = (calls.lead_ps + calls.tail_ps).mean() / PS_PER_MS
    assert mean_ms == pytest.approx(WORK.mean_turn_ms, rel=0.01)
    assert (calls.lead_ps + calls.tail_ps).min() > WORK.least_turn_ps


def test_a_call_that_is_under_way_is_as_old_as_it_may_be() -> None:
    fresh = draw_calls(WORK, 1, starts(20_000), under_way=False)
    there = draw_calls(WORK, 1, starts(20_000), under_way=True)
    left = there.last - there.first + 1
    # Each turn may as well be the last, so what is left of a call is as long as a new one.
    assert left.mean() == pytest.approx((fresh.last - fresh.first + 1).mean(), rel=0.05)
    # Five turns lie behind it in the mean (a little less for the cut), of 66 tokens each.
    older = there.prompt[there.first].mean() - fresh.prompt[fresh.first].mean()
    assert older == pytest.approx(5 * 66, rel=0.1)
    assert (there.lead_ps[there.first] >= 0).all()


def test_a_call_is_the_same_whenever_it_comes_and_however_many_there_are() -> None:
    few = draw_calls(WORK, 1, starts(3), under_way=False)
    many = draw_calls(WORK, 1, starts(2 * BLOCK + 5) * 3, under_way=False)
    turns = len(few.lead_ps)
    for name in ("lead_ps", "tail_ps", "prompt", "output", "opening", "call"):
        assert (getattr(few, name) == getattr(many, name)[:turns]).all()
    other = draw_calls(WORK, 2, starts(3), under_way=False)
    assert not np.array_equal(few.lead_ps, other.lead_ps)


def test_calls_can_be_joined_and_there_may_be_none() -> None:
    none = draw_calls(WORK, 1, starts(0), under_way=True)
    some = draw_calls(WORK, 1, starts(5), under_way=False)
    both = some + some
    assert len(none.lead_ps) == 0
    assert ((none + some).first == some.first).all()
    assert (both.call == np.concatenate((some.call, some.call + 5))).all()
    assert (both.lead_ps[both.first[5:]] == some.lead_ps[some.first]).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"before_ms": -1}, "before_ms"),
        ({"after_ms": float("inf")}, "after_ms"),
        ({"speech_ms": 0}, "speech_ms"),
        ({"reply_ms": float("nan")}, "reply_ms"),
        ({"user_tokens": 0}, "user_tokens"),
        ({"opening_tokens": 0}, "opening_tokens"),
        ({"opening_tokens": 13}, "opening_tokens is 13, expected 1 to reply_tokens"),
    ],
)
def test_samples_that_cannot_be_are_refused(change: dict[str, float], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replace(SHORT, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"samples": ()}, "samples"),
        ({"system_tokens": 0}, "system_tokens"),
        ({"turns": 0.5}, "turns"),
        ({"think_ms": -1}, "think_ms"),
        ({"think_sigma": 4}, "think_sigma"),
    ],
)
def test_workloads_that_cannot_be_are_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replace(WORK, **change)  # type: ignore[arg-type]


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
