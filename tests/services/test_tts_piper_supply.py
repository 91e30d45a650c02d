"""Speech that has begun never runs dry, however slow the voice; on a manual clock."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipecat.frames.frames import (
    AggregatedTextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    TTSAudioRawFrame,
)
from speech_line import SpeechLine, running
from speech_simulation import tokens_of

from turngap.agent.feed import SpeechFeed
from turngap.agent.speech_output import speaking
from turngap.agent.stack import Stack
from turngap.core.clock import ms_to_ns
from turngap.core.voice import Request, VoiceSpeed
from turngap.testing import ManualClock
from turngap_services.tts import PiperSettings
from turngap_services.tts.piper import PiperTTSService, Voice, lasts

CHAR_MS = 50.0
REPLY = "The kitchen lights are off, and the door to the garden is closed. Good night, sleep well."


class ClockedVoice(Voice):
    """A tone of 50 ms a character that takes the time it is told, after some silence."""

    def __init__(self, clock: ManualClock, factor: float, *, known: bool = True) -> None:
        self.name, self.speed = "clocked", VoiceSpeed()
        self._clock, self._factor = clock, factor
        self.made: list[str] = []
        for chars in (8, 60, 20, 33) * 4 if known else ():
            ms = CHAR_MS * chars
            self.speed.add(Request(chars, ms, factor * ms, factor * ms, ms))

    def manner(self, settings: PiperSettings) -> Any:
        return None

    async def speak(self, text: str, manner: Any, rate: int) -> np.ndarray:
        ms = CHAR_MS * len(text)
        await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(self._factor * ms))
        self.made.append(text)
        return (np.cos(np.arange(round(rate * ms / 1000)) / 12) * 8000).astype(np.int16)


def stack(aggregation: str) -> Stack:
    engine = {"backend": "fake"}
    values = {"name": "fake", "audio": {"cut_lead_in": True}, "text": {"aggregation": aggregation}}
    return Stack.model_validate(values | dict.fromkeys(("turn", "stt", "llm", "tts"), engine))


def service_of(voice: ClockedVoice, clock: ManualClock) -> PiperTTSService:
    return PiperTTSService(settings=PiperSettings(), clock=clock, voice=voice)


async def whole_text_spoken(factor: float, *, known: bool = True) -> SpeechLine:
    """REPLY in one request, as an agent hands it over that gathers sentences or replies."""
    clock = ManualClock(settle_rounds=200)
    voice = ClockedVoice(clock, factor, known=known)
    async with running(clock, service_of(voice, clock)) as line:
        text = AggregatedTextFrame(text=REPLY, text_type="reply", raw_text=REPLY)
        await line.send(LLMFullResponseStartFrame(), text, LLMFullResponseEndFrame())
        await line.passes((1 + factor) * CHAR_MS * len(REPLY))
    assert " ".join(voice.made) == REPLY
    return line


async def test_a_quick_voice_begins_with_the_first_clause_of_a_text() -> None:
    line = await whole_text_spoken(0.1)
    (first_ms, first), *rest = line.of(TTSAudioRawFrame)
    clause = REPLY.split(",", maxsplit=1)[0] + ","
    assert first_ms == pytest.approx(0.1 * CHAR_MS * len(clause), abs=1)
    audio_ms = first.num_frames * 1000 / first.sample_rate
    assert audio_ms == pytest.approx(CHAR_MS * len(clause), abs=1)
    assert len(rest) == 3
    assert line.breaks_ms == []


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("factor", [0.02, 0.1, 0.5, 0.9, 1.5, 3.0])
async def test_a_text_never_runs_dry(factor: float, known: bool) -> None:
    line = await whole_text_spoken(factor, known=known)
    assert len(line.of(TTSAudioRawFrame)) == 4
    assert line.breaks_ms == []


async def test_a_voice_slower_than_speech_is_not_held_until_all_is_made() -> None:
    line = await whole_text_spoken(1.5)
    (first_ms, _), *_ = line.of(TTSAudioRawFrame)
    assert first_ms < 1.5 * CHAR_MS * len(REPLY)


@pytest.mark.parametrize("factor", [0.08, 0.6, 1.5])
async def test_with_the_adaptive_agent_a_reply_never_runs_dry(factor: float) -> None:
    clock = ManualClock(settle_rounds=200)
    counts: dict[str, float] = {}
    voice = ClockedVoice(clock, factor)
    speech = speaking(
        stack("adaptive"),
        service_of(voice, clock),
        clock,
        feed=SpeechFeed(voice.speed),
        gated=False,
        count=lambda name, n: counts.update({name: counts.get(name, 0) + n}),
    )
    async with running(clock, *speech.processors) as line:
        await line.say(tokens_of(REPLY))
        await line.passes((2 + 2 * factor) * CHAR_MS * len(REPLY))
    assert " ".join(voice.made) == REPLY
    assert line.breaks_ms == []
    assert "ran_dry" not in counts


# --- the arithmetic -------------------------------------------------------------------------------


@given(
    st.floats(0.01, 4),
    st.floats(0, 300),
    st.lists(st.text("a ", min_size=8, max_size=80), max_size=6),
    st.integers(0, 8000),
)
def test_what_lasts_is_made_in_time(
    factor: float, request_ms: float, pieces: list[str], made_ms: int
) -> None:
    speed = VoiceSpeed()
    for chars in (8, 60, 20, 33) * 4:
        ms = CHAR_MS * chars
        speed.add(Request(chars, ms, request_ms + factor * ms, request_ms + factor * ms, ms))
    if not lasts(speed, made_ms, pieces):
        return
    free_ms, dry_ms = 0.0, float(made_ms)
    for piece in pieces:
        audio_ms = CHAR_MS * len(piece)
        free_ms += request_ms + factor * audio_ms
        assert free_ms <= dry_ms + 1e-6
        dry_ms += audio_ms


def test_nothing_to_come_lasts() -> None:
    assert lasts(VoiceSpeed(), 0.0, [])


def test_settings_keep_voices_where_pipecat_does() -> None:
    assert PiperSettings().voices == Path("~/.cache/pipecat/piper")
