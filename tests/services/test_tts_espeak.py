import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest
import soxr
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.worker import PipelineParams
from running_line import PATIENCE_S, InstantClock, Line, running

from turngap.core.audio import audible_onset
from turngap.core.clock import Clock
from turngap.core.errors import InputError
from turngap.testing import ManualClock
from turngap_services.sound import RATE
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import Recogniser
from turngap_services.stt.sentences import Saying, build_model
from turngap_services.tts import EspeakSettings
from turngap_services.tts.espeak import Espeak, EspeakTTSService, EspeakVoice, create, engine

NATIVE = PipelineParams(audio_out_sample_rate=22_050)
SENTENCE = "Please deliver two large pizzas to forty two Baker Street."
EDWARD = EspeakVoice("en-us+edward", 175, 50)
# The one variant without breath and flutter: the same text is the same samples each time.
EXACT = "en-us+michel"


async def spoken(settings: EspeakSettings, *replies: str, clock: Clock | None = None) -> Line:
    """Have each reply spoken as a turn of its own."""
    async with running(create(settings, clock or InstantClock()), params=NATIVE) as line:
        for n, reply in enumerate(replies, 1):
            await line.send(*turn(reply))
            await line.until(lambda n=n: len(line.of(TTSStoppedFrame)) == n)
    return line


def turn(text: str) -> tuple[LLMFullResponseStartFrame, LLMTextFrame, LLMFullResponseEndFrame]:
    return LLMFullResponseStartFrame(), LLMTextFrame(text), LLMFullResponseEndFrame()


def pcm(line: Line, context: str | None = None) -> np.ndarray:
    frames = [f for f in line.of(TTSAudioRawFrame) if context in (None, f.context_id)]
    return np.frombuffer(b"".join(f.audio for f in frames), np.int16)


async def chunks(speech: AsyncGenerator[bytes, None]) -> list[bytes]:
    return [chunk async for chunk in speech]


async def test_it_says_the_words() -> None:
    line = await spoken(EspeakSettings(), SENTENCE)
    model = build_model(
        [Saying("a", SENTENCE), Saying("b", "turn off the kitchen lights"), Saying("c", "no")], {}
    )
    hearing = Recogniser(model, PocketsphinxSettings())
    hearing.start()
    heard_at = soxr.resample(pcm(line).astype(np.float32), 22_050, RATE).astype(np.int16)
    hearing.audio(heard_at.tobytes())
    assert hearing.stop() == "please deliver two large pizzas to forty two baker street"


async def test_audio_is_at_the_engines_own_rate_and_framed_by_one_start_and_stop() -> None:
    line = await spoken(EspeakSettings(), SENTENCE)
    assert {f.sample_rate for f in line.of(TTSAudioRawFrame)} == {22_050}
    kinds = [type(f) for f in line.frames]
    first, stop = kinds.index(TTSAudioRawFrame), kinds.index(TTSStoppedFrame)
    assert kinds.count(TTSStartedFrame) == kinds.count(TTSStoppedFrame) == 1
    assert kinds.index(TTSStartedFrame) < first < stop
    assert TTSAudioRawFrame not in kinds[stop:]


async def test_leading_silence_of_the_engine_is_trimmed() -> None:
    text = "Here you are, sir."
    raw = np.frombuffer(
        b"".join(await chunks(engine().speak(text, EspeakVoice(EXACT, 175, 50)))), np.int16
    )
    assert np.all(raw[: round(0.010 * 22_050)] == 0)
    sound = np.flatnonzero(raw)[0]
    assert np.array_equal(pcm(await spoken(EspeakSettings(voice=EXACT), text)), raw[sound:])


async def test_lead_in_is_exact_and_before_each_reply_once() -> None:
    replies = "One moment.", "Here you are, sir. It is done."
    plain = await spoken(EspeakSettings(voice=EXACT), *replies)
    led = await spoken(EspeakSettings(voice=EXACT, lead_in_ms=150), *replies)
    silence = round(0.150 * 22_050)
    for without, with_it in zip(plain.of(TTSStartedFrame), led.of(TTSStartedFrame), strict=True):
        expected = np.concatenate((np.zeros(silence, np.int16), pcm(plain, without.context_id)))
        assert np.array_equal(pcm(led, with_it.context_id), expected)


async def test_first_chunk_is_there_before_the_last_is_synthesised() -> None:
    # So long that the engine is still at it when the loop has the first chunk.
    text = " ".join([SENTENCE] * 200)
    speech = engine().speak(text, EDWARD)
    first = await anext(speech)
    assert 0 < len(first) <= 2 * 22_050 // 5
    rest = await chunks(speech)
    assert len(rest) > 1000


async def test_interruption_stops_the_synthesis() -> None:
    text = "and two more large pizzas " * 600  # no mark in it: one request to the engine
    whole = len(await chunks(engine().speak(text, EDWARD)))
    counting = CountingEngine()
    # Paced by a clock that stands still: the reply is interrupted at its first chunk.
    clock = ManualClock()
    settings = EspeakSettings(realtime_factor=1.0)
    model = EspeakTTSService(settings=settings, clock=clock, engine=counting)
    async with running(model, params=NATIVE) as line:
        await line.send(LLMFullResponseStartFrame(), LLMTextFrame(text), LLMFullResponseEndFrame())
        async with asyncio.timeout(PATIENCE_S):
            await counting.begun.wait()
        await line.send(InterruptionFrame())
        async with asyncio.timeout(PATIENCE_S):
            await counting.ended.wait()
        assert clock.next_deadline_ns is None
        assert line.of(TTSAudioRawFrame) == []
        assert counting.made < whole / 2
        # And the engine is free for the next reply.
        counting.begun.clear()
        await line.send(*turn("Yes."))
        async with asyncio.timeout(PATIENCE_S):
            await counting.begun.wait()
        await clock.advance(10**10)
        await line.until(lambda: bool(line.of(TTSStoppedFrame)))
    assert audible_onset(pcm(line), 22_050) is not None


class CountingEngine(Espeak):
    """The process's engine, counting the chunks that it makes."""

    def __init__(self) -> None:
        self.__dict__.update(engine().__dict__)
        self.made = 0
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def _synthesise(self, text: str, voice: EspeakVoice, sink: object) -> None:
        def counting_sink(chunk: bytes) -> bool:
            self.made += 1
            self._loop.call_soon_threadsafe(self.begun.set)
            return sink(chunk)  # type: ignore

        engine()._synthesise(text, voice, counting_sink)
        self._loop.call_soon_threadsafe(self.ended.set)


async def test_pace_of_a_slower_engine_is_kept() -> None:
    clock = InstantClock()
    line = await spoken(EspeakSettings(realtime_factor=0.5), SENTENCE, clock=clock)
    made = await chunks(engine().speak(SENTENCE, EDWARD))
    samples = np.cumsum([len(c) // 2 for c in made])
    assert clock.deadlines == pytest.approx([0.5e9 * n / 22_050 for n in samples], abs=1)
    assert len(pcm(line)) > 0


async def test_two_voices_in_one_process_do_not_disturb_each_other() -> None:
    low = EspeakSettings(voice=EXACT, pitch=20)
    high = EspeakSettings(voice=EXACT, pitch=90, speed_wpm=250)
    alone = [pcm(await spoken(low, SENTENCE)), pcm(await spoken(high, SENTENCE))]
    together = await asyncio.gather(spoken(low, SENTENCE), spoken(high, SENTENCE))
    assert len(alone[0]) > 1.2 * len(alone[1])
    for a, b in zip(alone, together, strict=True):
        assert np.array_equal(a, pcm(b))


def test_unknown_voice_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match="no voice 'nobody'") as e:
        engine().check(EspeakVoice("nobody", 175, 50))
    assert "en-us" in e.value.hint
    with pytest.raises(InputError, match="no variant 'edwrd'") as e:
        engine().check(EspeakVoice("en-us+edwrd", 175, 50))
    assert "edward" in e.value.hint


async def test_failure_in_a_reply_is_an_error_frame_and_the_engine_lives() -> None:
    # The voice is checked when the agent is prepared; a service made without that finds out late.
    settings = EspeakSettings(voice="nobody")
    model = EspeakTTSService(settings=settings, clock=InstantClock(), engine=engine())
    (frame,) = [frame async for frame in model.run_tts("Hello.", "context")]
    assert isinstance(frame, ErrorFrame)
    assert "no voice 'nobody'" in frame.error
    assert await chunks(engine().speak("Hello.", EDWARD))
