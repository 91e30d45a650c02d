"""Features of single dialects, in virtual time: audio that comes too late, a guessed flush."""

import json
from dataclasses import replace

import numpy as np
import pytest
import virtual_calls

from turngap.caller.conversation import PlayedTurn
from turngap.caller.dialects.encoding import Encoding
from turngap.caller.dialects.rtvi import rtvi
from turngap.caller.said import Message
from turngap.core.cue import Cue, When
from turngap.core.wire import message_frame
from turngap.play.calibrate import PATIENCE, utterance
from turngap.testing.agent import Reply, Script
from turngap.testing.dialects import HALVES, FromCaller, Spoken
from turngap.testing.dialects.pipecat import PipecatHalf
from turngap.testing.dialects.services import ElevenLabsHalf

MU_LAW = Encoding("pcmu", 8_000)


class LateHalf(ElevenLabsHalf):
    """In µ-law both ways; a loud chunk of the dropped reply arrives after its interruption."""

    in_rate = 8_000
    out_rate = 8_000

    def receive_data(self, message: Message) -> tuple[list[FromCaller], list[Message]]:
        data = json.loads(message).get("user_audio_chunk")
        if data is None:
            return super().receive_data(message)
        return [Spoken(np.frombuffer(MU_LAW.decode(data), dtype="<i2"))], []

    def ready(self) -> list[Message]:
        return [str(m).replace("pcm_16000", "ulaw_8000") for m in super().ready()]

    def audio(self, pcm: bytes) -> list[Message]:
        self._number += 1
        chunk = {"audio_base_64": MU_LAW.encode(pcm), "event_id": self._number}
        return [json.dumps({"type": "audio", "audio_event": chunk})]

    def flush(self) -> list[Message]:
        late = self.audio(b"\x00\x40" * 4_000)
        return [*super().flush(), *late]  # the interruption's number is the late chunk's


class OldHalf(PipecatHalf):
    """A bot of pipecat 1.0: no message for an interruption, but it stops while the person
    speaks."""

    def ready(self) -> list[Message]:
        return [message_frame(rtvi("bot-ready", {"version": "1.2.0"}))]

    def flush(self) -> list[Message]:
        return [message_frame(rtvi("user-started-speaking"))]

    def turn_over(self, transcript: str) -> list[Message]:
        return [*super().turn_over(transcript), message_frame(rtvi("user-stopped-speaking"))]


def play(dialect: str, *, paced: bool) -> list[PlayedTurn]:
    """Two turns; the person speaks over the first reply, and the agent yields 200 ms later."""
    long = Reply(delay_ms=300, speech_ms=3000, paced=paced)
    replies = (long, replace(long, speech_ms=300))
    script = Script(replies=replies, hold_ms=100, yield_ms=200, dialect=dialect)

    def cues(rate: int) -> list[Cue]:
        first = utterance(rate)
        return [first, replace(first, when=When(barge_in_ms=400))]

    return virtual_calls.play(script, cues, PATIENCE).turns


@pytest.mark.parametrize("paced", [True, False])
@pytest.mark.parametrize(("dialect", "half"), [("elevenlabs", LateHalf), ("pipecat", OldHalf)])
def test_a_barge_in_is_heard_to_the_millisecond(
    dialect: str, half: type, paced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HALVES, dialect, f"{__name__}:{half.__name__}")
    first, second = play(dialect, paced=paced)
    assert [t.turn.outcome for t in (first, second)] == ["answered", "answered"]
    assert first.turn.ended == "interrupted"
    assert second.turn.yield_ns is not None
    assert second.turn.yield_ns / 1e6 == pytest.approx(200, abs=1)
    assert second.turn.gap_ns is not None
    assert second.turn.gap_ns / 1e6 == pytest.approx(300, abs=1)
    assert (first.turn.transcript, second.turn.transcript) == ("utterance 1", "utterance 2")
