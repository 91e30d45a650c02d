"""Events from what an agent reports of itself."""

import numpy as np
import pytest

from turngap.caller import intake
from turngap.caller.hearing import MARKS_AHEAD, Listener
from turngap.caller.said import AudioChunk, Packet
from turngap.core.clock import ms_to_ns
from turngap.core.events import (
    AgentSilence,
    AgentSpeech,
    Event,
    Fault,
    Flush,
    Marks,
    NoReply,
    ToolCall,
)
from turngap.core.run_record import OffsetRecord
from turngap.testing import ManualClock
from turngap.testing.agent import voice


def heard(*messages: Fault | Marks | NoReply, offset_ns: int | None = 0) -> list[Event]:
    offset = OffsetRecord(offset_ns=offset_ns, bound_ns=None, n=0)
    listener = Listener(ManualClock(), offset=offset, speech_gap_ms=500)
    for message in messages:
        listener.on_message(7, message)
    return listener.events


def test_an_error_of_the_agents_is_an_event_and_a_refusal_of_a_message_is_none() -> None:
    told = Fault("no voice", fatal=False), Fault("unsupported", fatal=False, refuses=True)
    assert heard(*told) == [Fault("no voice", at_ns=7)]


def told(at_ns: int) -> Marks:
    """A report with one mark and everything else that there may be."""
    return Marks(1, {"sent": at_ns}, {"n": 2}, "a pause", "no server", (ToolCall("look"),))


def test_with_marks_that_cannot_be_placed_the_rest_is_not_lost() -> None:
    late = told(7 + 10**9)
    for events in (heard(told(5), offset_ns=None), heard(late), heard(late, told(5))[:1]):
        (event,) = events
        assert isinstance(event, Marks)
        assert (event.marks, event.counts, event.why) == ({}, {"n": 2.0}, "a pause")
        assert (event.error, event.calls, event.told_ns) == ("no server", (ToolCall("look"),), 7)
    (placed,) = heard(told(5))
    assert isinstance(placed, Marks)
    assert placed.marks == {"sent": 5}


def test_an_error_is_taken_back_also_where_no_clocks_were_compared() -> None:
    late, in_time = (Marks(1, {"llm_request": 5}, error=e) for e in ("llm: no token for 3 s", ""))
    assert [e.error for e in heard(late, in_time, offset_ns=None) if isinstance(e, Marks)] == [
        "llm: no token for 3 s",
        "",
    ]


def test_marks_may_lie_ahead_by_what_clocks_drift_in_a_long_call() -> None:
    clock = ManualClock()
    offset = OffsetRecord(offset_ns=0, bound_ns=0, n=12)
    listener = Listener(clock, offset=offset, speech_gap_ms=500)
    for minutes, most_ms in ((0, 50), (20, 170)):
        now_ns = ms_to_ns(minutes * 60_000)
        for more_ms, ahead in ((-1, False), (1, True)):
            listener.on_message(now_ns, told(now_ns + ms_to_ns(most_ms + more_ms)))
            assert (MARKS_AHEAD in listener.take_notes()) == ahead


def test_why_an_agent_has_nothing_to_say_is_no_error() -> None:
    silent = NoReply("llm: the reply is empty")
    assert heard(silent) == [NoReply("llm: the reply is empty", at_ns=7)]


# --- audio that is never played -----------------------------------------------------------------

SECOND = AudioChunk(np.full(16_000, 9_000, dtype=np.int16), 16_000)


def listener() -> Listener:
    nothing = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
    return Listener(ManualClock(), offset=nothing, speech_gap_ms=300)


def test_audio_that_was_refused_is_dropped_after_what_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake, "MOST_WAITING_BYTES", 2 * SECOND.pcm.nbytes)
    hears = listener()
    for _ in range(5):
        hears.on_message(0, SECOND)
    hears.tick(10**9)
    assert (hears.ear.played, hears.ear.dropped) == (16_000, 0)
    hears.tick(3 * 10**9)
    assert (hears.ear.played, hears.ear.dropped) == (80_000, 48_000)


def test_a_flush_drops_what_was_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_WAITING_BYTES", 2 * SECOND.pcm.nbytes)
    hears = listener()
    for _ in range(5):
        hears.on_message(0, SECOND)
    hears.on_message(10**9, Flush())
    assert (hears.ear.played, hears.ear.dropped) == (80_000, 64_000)


def test_audio_that_was_lost_with_the_ear_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    hears = listener()
    hears.on_message(0, SECOND)
    hears.tick(5 * 10**8)
    assert (hears.ear.played, hears.ear.dropped) == (8_000, 0)

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(hears.ear, "receive", fail)
    hears.on_message(5 * 10**8, SECOND)
    assert (hears.ear.played, hears.ear.dropped) == (32_000, 24_000)
    hears.on_message(10**9, SECOND)
    hears.tick(3 * 10**9)
    assert (hears.ear.played, hears.ear.dropped) == (48_000, 24_000)


# --- a real-time stream -------------------------------------------------------------------------


def stream(hears: Listener, pcm: np.ndarray, interrupted_ms: int | None = None) -> list[Event]:
    """Let packets of 20 ms arrive in time, and the agent report that it was interrupted."""
    for n in range(len(pcm) // 960):
        at_ns = ms_to_ns(1000 + 20 * n)
        if interrupted_ms is not None and 20 * n == interrupted_ms:
            hears.on_message(at_ns, Flush())
        placed = Packet(at_ns, 0, ms_to_ns(60), goes_on=n > 0)
        hears.on_message(at_ns, AudioChunk(pcm[960 * n : 960 * n + 960], 48_000, packet=placed))
        hears.tick(at_ns)
    return hears.events


@pytest.mark.parametrize("more_ms", [60, 300, 500])
def test_a_stream_is_flushed_when_it_is_silent_and_not_when_the_agent_says_so(more_ms: int) -> None:
    spoken = voice(1000 + more_ms, 48_000)
    events = stream(listener(), np.concatenate((spoken, np.zeros(48_000, np.int16))), 1000)
    (flush,) = [e for e in events if isinstance(e, Flush)]
    (silence,) = [e for e in events if isinstance(e, AgentSilence)]
    assert flush.at_ns == silence.at_ns == pytest.approx(ms_to_ns(2000 + more_ms), abs=ms_to_ns(1))


def test_an_agent_that_speaks_on_was_not_interrupted() -> None:
    spoken = np.concatenate((voice(4000, 48_000), np.zeros(48_000, np.int16)))
    assert not [e for e in stream(listener(), spoken, 1000) if isinstance(e, Flush)]


def test_silence_that_a_stream_sends_is_no_audio_before_a_word() -> None:
    silence = np.zeros(48_000, np.int16)
    (speech,) = [
        e
        for e in stream(listener(), np.concatenate((silence, voice(600, 48_000), silence)))
        if isinstance(e, AgentSpeech)
    ]
    assert speech.lead_ns == 0
