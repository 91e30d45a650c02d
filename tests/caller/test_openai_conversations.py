"""Conversations over openai-realtime and gpt-live in virtual time: barge-in and truncation."""

import math
from typing import Any

import pytest
import virtual_calls
from openai_servers import FRAME_MS, Answering, FullDuplex
from virtual_calls import Played, says

from turngap.caller.dialects.registry import find_dialect
from turngap.core.cue import Cue, When
from turngap.core.events import (
    AgentSilence,
    AgentSpeech,
    Flush,
    ReplyText,
    Transcript,
    TurnOver,
)
from turngap.testing.agent import voice
from turngap.testing.dialects.services import GptLiveHalf, OpenAIRealtimeHalf

BARGE_IN_MS = 437.0


def play(
    server: Answering | FullDuplex, dialect: str, settings: dict[str, Any], cues: list[Cue]
) -> Played:
    session = find_dialect(dialect).session(settings)
    played = virtual_calls.play(server.course, cues, session=session)
    assert played.offset.offset_ns is None  # neither protocol has a clock
    assert played.conversation.failure is None
    return played


def events_of(played: Played, kind: Any) -> list[Any]:
    return [e for turn in played.turns for e in turn.events if isinstance(e, kind)]


@pytest.mark.parametrize(("kind", "rate", "beta"), [("pcm", 24_000, True), ("pcma", 8_000, False)])
def test_a_reply_is_measured_to_the_sample(*, kind: str, rate: int, beta: bool) -> None:
    server = Answering(OpenAIRealtimeHalf(beta=beta), speech_ms=400)
    cues = [says(rate, When(after_reply_ms=0)), says(rate, When(after_reply_ms=0))]
    played = play(server, "openai-realtime", {"format": kind}, cues)
    assert [turn.turn.outcome for turn in played.turns] == ["answered", "answered"]
    for turn in played.turns:
        assert turn.turn.gap_ns is not None
        # The server's detector ends a turn with the packet in which the silence lasts long enough.
        assert 300 <= turn.turn.gap_ns / 1e6 <= 300 + 20 + 1
    assert server.heard_ms == []
    assert events_of(played, Flush) == []
    assert len(events_of(played, TurnOver)) == 2
    assert [e.text for e in events_of(played, Transcript)] == ["heard", "heard"]
    assert "a voice" in "".join(e.text for e in events_of(played, ReplyText))
    assert played.conversation.faults == []


@pytest.mark.parametrize(
    ("kind", "rate", "pace"),
    [("pcm", 24_000, 0.0), ("pcm", 24_000, 0.5), ("pcmu", 8_000, 1.0), ("pcma", 8_000, 0.5)],
)
def test_a_barge_in_is_told_to_the_millisecond_and_the_rest_is_not_heard(
    kind: str, rate: int, pace: float
) -> None:
    server = Answering(OpenAIRealtimeHalf(), pace=pace)
    cues = [says(rate, When(after_reply_ms=0)), says(rate, When(barge_in_ms=BARGE_IN_MS))]
    played = play(server, "openai-realtime", {"format": kind}, cues)
    first, second = (turn.turn for turn in played.turns)
    (flushed,) = events_of(played, Flush)
    onsets = [e.onset_ns for e in events_of(played, AgentSpeech)]
    assert len(onsets) == 2  # nothing of the dead reply is heard after its flush
    assert onsets[0] == first.onset_ns
    heard = sum(len(h.pcm) for h in played.heard if h.start_ns < flushed.at_ns)
    assert server.heard_ms == [math.floor(heard * 1000 / rate)]
    assert abs(heard / rate - (flushed.at_ns - onsets[0]) / 1e9) <= 1 / rate
    # A packet and a window of the server's detector.
    assert 0 < (flushed.at_ns - second.user_start_ns) / 1e6 <= 40
    assert all(h.start_ns > flushed.at_ns for h in played.heard[-1:])
    assert second.outcome == "answered"
    assert played.conversation.faults == []  # the server refuses what lies beyond its item's audio


@pytest.mark.parametrize(("kind", "rate"), [("pcm", 16_000), ("pcmu", 8_000)])
def test_a_stream_without_turns_is_measured_by_ear_alone(kind: str, rate: int) -> None:
    server = FullDuplex(GptLiveHalf())
    # Long enough for what follows on the silence not to be the old reply after a pause.
    interrupts = says(rate, When(barge_in_ms=BARGE_IN_MS), voice(1_500, rate))
    cues = [says(rate, When(after_reply_ms=0)), interrupts]
    settings = {"format": kind, "rate": rate} if kind == "pcm" else {"format": kind}
    played = play(server, "gpt-live", settings, cues)
    first, second = (turn.turn for turn in played.turns)
    assert [first.outcome, second.outcome] == ["answered", "answered"]
    # Each reply is heard when it was sent, to the sample, and as long as it was.
    onsets = [e.onset_ns for e in events_of(played, AgentSpeech)]
    assert onsets == [begun_ns for begun_ns, _ in server.spoke_ns]
    assert [first.onset_ns, second.onset_ns] == onsets
    # The interrupted one breaks off with the frame that was being sent.
    silences = [e.at_ns for e in events_of(played, AgentSilence)]
    spoken_ms = [(silences[n] - onsets[n]) / 1e6 for n in (0, 1)]
    assert server.spoke_ns[0][1] / 1e6 < 700  # of a second
    assert 0 <= spoken_ms[0] - server.spoke_ns[0][1] / 1e6 <= FRAME_MS
    assert abs(spoken_ms[1] - 1_000) <= 1_000 / rate
    assert events_of(played, Flush) == []  # there is no word for it
    assert events_of(played, TurnOver) == []
    assert played.conversation.faults == []
