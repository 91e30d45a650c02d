"""Limits of what an agent sends, and the notes about the rest."""

import numpy as np
import pytest
from made_records import make_turn

from turngap.caller import intake
from turngap.caller.hearing import OTHER_NOTES, Listener
from turngap.caller.said import AudioChunk, Flush, Incoming, ReplyText
from turngap.core.errors import AgentError
from turngap.core.events import MOST_NAMES, Marks, ToolCall, TurnBroken, UserSpeech
from turngap.core.run_record import OffsetRecord
from turngap.core.stored import MarkRecord
from turngap.store.documents import MAX_EVENTS_BYTES, encode
from turngap.testing import ManualClock

# A minute at 48 kHz, and all of it one and the same array.
MINUTE = AudioChunk(np.full(60 * 48_000, 9_000, dtype=np.int16), 48_000)


@pytest.fixture
def listener() -> Listener:
    nothing = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
    listener = Listener(ManualClock(), offset=nothing, speech_gap_ms=300)
    listener.feed(UserSpeech(1, 0, 10**9))
    return listener


def take(listener: Listener, incoming: Incoming, times: int) -> list[TurnBroken]:
    for _ in range(times):
        listener.on_message(10**9, incoming)
    return [event for event in listener.events if isinstance(event, TurnBroken)]


def test_a_gigabyte_of_audio_is_not_kept_and_ends_the_conversation(listener: Listener) -> None:
    broken: list[TurnBroken] = []
    with pytest.raises(AgentError, match=r"sent more than 512 MiB of audio in a conversation"):
        broken = take(listener, MINUTE, 2**30 // MINUTE.pcm.nbytes)
    assert listener.ear.waiting_bytes <= intake.MOST_WAITING_BYTES
    assert sum(len(h.pcm) for h in listener.ear.heard) == 0
    assert not broken


def test_what_was_played_makes_room_and_what_was_stored_is_forgotten(listener: Listener) -> None:
    assert take(listener, MINUTE, 12)
    waiting = listener.ear.waiting_bytes
    listener.tick(10**9 + 2 * 60 * 10**9)
    assert listener.ear.waiting_bytes < waiting - MINUTE.pcm.nbytes
    listener.ear.forget_until(10**9 + 60 * 10**9)
    assert sum(len(h.pcm) for h in listener.ear.heard) <= 2 * len(MINUTE.pcm)
    listener.ear.flush(10**9 + 3 * 60 * 10**9)
    assert listener.ear.waiting_bytes == 0


def test_a_turn_begins_with_new_counts_and_a_conversation_does_not(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "MOST_MESSAGES", 10)
    monkeypatch.setattr(intake, "MOST_CONVERSATION_MESSAGES", 30)
    assert take(listener, ReplyText("word "), 10) == []
    (broken,) = take(listener, ReplyText("word "), 1)
    assert broken.why == "it sent more than 10 messages in one turn"
    listener.feed(UserSpeech(2, 2 * 10**9, 3 * 10**9))
    assert len(take(listener, ReplyText("word "), 10)) == 1
    with pytest.raises(AgentError, match="more than 30 messages"):
        take(listener, ReplyText("word "), 10)


def test_a_turn_is_broken_once_for_each_reason(listener: Listener) -> None:
    assert len(take(listener, Flush(), intake.MOST_OF[Flush] + 500)) == 1
    assert listener.take_notes() == {"it sent more than 200 messages of Flush in one turn": 500}


def test_long_reports_and_many_small_texts_have_limits_of_their_own(listener: Listener) -> None:
    large = Marks(1, {}, calls=(ToolCall("look", {str(n): "x" * 900 for n in range(300)}),))
    assert [b.why for b in take(listener, large, 500)] == [
        "it sent more than 524,288 characters of reports in one turn"
    ]
    take(listener, ReplyText("w"), 50_000)
    assert len(ascii(listener.events)) < 2**21


def test_marks_of_any_number_of_reports_leave_a_turn_that_can_be_stored(
    listener: Listener,
) -> None:
    for turn in range(500):
        listener.on_message(10**9, Marks(turn, {str(n): n for n in range(MOST_NAMES)}))
    told = [
        tuple(
            MarkRecord(name=n, at_ns=at, vantage="agent", raw_ns=at) for n, at in event.raw.items()
        )
        for event in listener.events
        if isinstance(event, Marks)
    ]
    assert 20 < len(told) < 500
    assert len(encode(make_turn(agent_turns=tuple(told)))) < MAX_EVENTS_BYTES


@pytest.mark.parametrize("flood", [ReplyText("w"), Flush(), Marks(1, {"sent": 1})])
def test_a_flood_is_kept_and_worked_on_up_to_its_limit(
    listener: Listener, monkeypatch: pytest.MonkeyPatch, flood: Incoming
) -> None:
    fed: list[object] = []
    keep = listener.feed
    monkeypatch.setattr(listener, "feed", lambda event: fed.append(event) or keep(event))
    assert len(take(listener, flood, 60_000)) == 2  # of its kind, and of all
    assert len(fed) <= intake.MOST_OF[type(flood)] + 2
    assert len(listener.events) <= intake.MOST_OF[type(flood)] + 4


def test_remarks_are_counted_and_so_many_kinds_kept(listener: Listener) -> None:
    for n in range(100):
        listener.note(f"odd in way {n % 50}")
    notes = listener.take_notes()
    assert len(notes) == intake.MOST_NOTES + 1
    assert notes["odd in way 0"] == 2
    assert sum(notes.values()) == 100
    assert notes[OTHER_NOTES] == 100 - 2 * intake.MOST_NOTES
    assert listener.take_notes() == {}
