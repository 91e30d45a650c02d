"""Counts in a stored turn."""

from typing import get_args

from turngap.core.clock import ms_to_ns
from turngap.core.cue import Utterance
from turngap.core.events import (
    AgentSpeech,
    Event,
    EventKind,
    Flush,
    Marks,
    ToolCall,
    TrackedTurn,
    TurnEnded,
    UserSpeech,
    plain_event,
)
from turngap.core.results import Turn
from turngap.core.stored import AudioRecord, PacingRecord
from turngap.core.turns import TurnTracker


def played(*told: Marks) -> TrackedTurn:
    """A turn from 0 to 1000 ms that is answered at 1400, and what the agent told of it."""
    tracker = TurnTracker()
    tracker.feed(UserSpeech(1, 0, ms_to_ns(1000)))
    tracker.feed(AgentSpeech(ms_to_ns(1400), ms_to_ns(1390)))
    for marks in told:
        tracker.feed(marks)
    (turn,) = tracker.feed(TurnEnded(1, ms_to_ns(3000), "reply_done"))
    return turn


def stored(turn: TrackedTurn) -> Turn:
    pacing = PacingRecord(packets=0, late_ms_p50=None, late_ms_max=None, starved=False)
    audio = AudioRecord(file="", user_start_ms=0, user_end_ms=1000, onset_ms=None)
    return Turn.of(turn, Utterance(scenario="a", say="Hello."), pacing=pacing, audio=audio)


def marks(number: int, sent_ms: float, why: str, **counts: float) -> Marks:
    return Marks(number, {"sent": ms_to_ns(sent_ms)}, counts, why)


def test_what_was_counted_adds_up_and_the_hold_is_that_of_what_was_heard() -> None:
    early = marks(1, 700, "open", hold_ms=1200, speculations=2, speculations_wasted=1)
    heard = marks(2, 1388, "complete", hold_ms=250, speculations=3)
    turn = stored(played(early, heard))
    assert turn.counts == {"hold_ms": 250, "speculations": 5, "speculations_wasted": 1}
    assert turn.endpoint_why == "complete"


def test_how_fast_the_llm_was_is_of_what_was_heard() -> None:
    early = marks(1, 700, "open", llm_ttft_ms=90, llm_cold=1, llm_queue_ms=7, llm_prompt_tokens=50)
    heard = marks(2, 1388, "complete", llm_ttft_ms=150, llm_tokens_per_s=60, llm_prompt_tokens=70)
    assert stored(played(early, heard)).counts == {
        "llm_ttft_ms": 150,
        "llm_tokens_per_s": 60,
        "llm_prompt_tokens": 120,
    }


def test_what_is_told_in_two_pieces_is_counted_once() -> None:
    first = marks(1, 1388, "complete", hold_ms=250, speculations=1)
    whole = marks(1, 1388, "complete", hold_ms=250, speculations=1, lead_cut_ms=4)
    turn = stored(played(first, whole))
    assert turn.counts == {"hold_ms": 250, "speculations": 1, "lead_cut_ms": 4}


def test_an_agent_that_counts_nothing_has_no_counts() -> None:
    turn = stored(played())
    assert (turn.counts, turn.endpoint_why) == ({}, None)


def test_calls_are_stored_those_of_answers_never_heard_too_and_a_silent_agent_is_known() -> None:
    sent = {"sent": ms_to_ns(700)}
    early = Marks(1, sent, calls=(ToolCall("clock", {}, error="cancelled"),))
    heard = Marks(2, {"sent": ms_to_ns(1388)}, calls=(ToolCall("clock", {}, 5.0, "{}"),))
    assert stored(played(early, heard)).calls == (
        ToolCall(name="clock", error="cancelled"),
        ToolCall(name="clock", ms=5.0, result="{}"),
    )
    assert stored(played(Marks(1, sent, calls=()))).calls == ()
    assert stored(played(Marks(1, sent))).calls is None


def test_of_what_is_told_in_two_pieces_the_later_calls_count() -> None:
    sent = {"sent": ms_to_ns(1388)}
    first = Marks(1, sent, calls=(ToolCall("clock", {}),))
    then = Marks(1, sent, calls=(ToolCall("clock", {}, 5.0),))
    calls = stored(played(first, then)).calls
    assert calls is not None
    (call,) = calls
    assert call.ms == 5.0


def test_a_turn_knows_how_long_the_person_spoke_and_when_the_agent_took_it_to_be_over() -> None:
    early = Marks(1, {"endpoint": ms_to_ns(600), "llm_request": ms_to_ns(601)})
    heard = Marks(2, {"endpoint": ms_to_ns(1200), "sent": ms_to_ns(1388)})
    turn = stored(played(early, heard))
    assert (turn.speech_ms, turn.endpoints_ms) == (1000.0, (600.0, 1200.0))
    assert stored(played()).endpoints_ms is None


def test_each_event_is_stored_by_a_kind_of_its_own() -> None:
    kinds = [event.kind for event in get_args(Event)]
    assert sorted(kinds) == sorted(get_args(EventKind))
    assert plain_event(Flush(at_ns=5)) == {"event": "PlayoutFlushed", "at_ns": 5}
