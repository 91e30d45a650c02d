"""Whisper in a pipeline, with the canned model reading the library's recordings."""

import asyncio
import threading
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from canned_whisper import canned_model
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from running_line import InstantClock, running
from spoken_frames import RATE, Spoken, frames_of, packets, play, texts

from turngap.backends import COUNTS
from turngap.core.audio import Pcm
from turngap.core.errors import AgentError
from turngap_services.stt import WhisperSettings
from turngap_services.stt.whisper import Reader, Text, WhisperSTTService, reader_of

PARAMS = PipelineParams(audio_in_sample_rate=RATE)


class Watched:
    """A reader that counts what it is asked, and waits before it answers where it is told to."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.name, self.window_s, self.takes_s = reader.name, reader.window_s, reader.takes_s
        self.asked: list[Pcm] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.fails = self.doubts = False

    def read(self, pcm: Pcm) -> Text:
        self.asked.append(pcm)
        assert self.may_answer.wait(20)
        if self.fails:
            raise AgentError("model.failed", "it failed, as the test wants it", hint="go on")
        return replace(
            self._reader.read(pcm), again="as the test wants it" if self.doubts else None
        )


def stt(**values: object) -> tuple[WhisperSTTService, Watched]:
    settings = WhisperSettings(model=str(canned_model()), **values)  # type: ignore
    watched = Watched(reader_of(settings))
    return WhisperSTTService(settings=settings, reader=watched, clock=InstantClock()), watched  # type: ignore


@pytest.mark.usefixtures("at_once")
async def test_after_a_pause_the_transcript_follows_the_vads_stop_at_once(
    library: list[Spoken],
) -> None:
    service, watched = stt()
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await play(line, *said)
        asked = len(watched.asked)
        await play(line, *rest)
    assert len(watched.asked) == asked  # nothing was left to be read
    (transcript,) = line.of(TranscriptionFrame)
    assert transcript.finalized
    assert transcript.text == line.of(InterimTranscriptionFrame)[-1].text
    kinds = [type(f) for f in line.frames]
    stop = kinds.index(VADUserStoppedSpeakingFrame)
    first_after = next(
        f for f in line.frames[stop + 1 :] if not isinstance(f, InputAudioRawFrame | EndFrame)
    )
    assert first_after is transcript


@pytest.mark.usefixtures("at_once")
async def test_read_while_it_is_spoken_it_is_the_transcript_of_reading_it_at_once(
    library: list[Spoken],
) -> None:
    async def read(**values: object) -> tuple[list[str], int]:
        service, watched = stt(**values)
        async with running(service, params=PARAMS) as line:
            for number, spoken in enumerate(library, 1):
                said, rest = frames_of(spoken)
                await play(line, *said, *rest)
                await line.until(lambda n=number: len(texts(line)) == n)
        return texts(line), len(watched.asked)

    streamed, many = await read(partial_every_ms=300)
    at_once, few = await read(while_speaking=False)
    assert len(library) > 5
    assert streamed == at_once
    assert len(set(streamed)) > 3  # turns of different lengths are read as different texts
    assert few == len(library) < many


async def test_a_window_that_fits_reads_the_library_as_the_whole_one_does(
    library: list[Spoken],
) -> None:
    whole, fitted = (reader_of(stt_settings(window=window)) for window in ("full", "fit"))
    for spoken in library:
        assert fitted.read(spoken.pcm) == whole.read(spoken.pcm)


def stt_settings(**values: object) -> WhisperSettings:
    return WhisperSettings(model=str(canned_model()), **values)  # type: ignore


@pytest.mark.usefixtures("at_once")
async def test_the_words_so_far_are_read_and_grow(library: list[Spoken]) -> None:
    service, _ = stt(partial_every_ms=200)
    longest = max(library, key=lambda spoken: spoken.end_ms)
    said, rest = frames_of(longest)
    async with running(service, params=PARAMS) as line:
        await play(line, *said, *rest)
        await line.until(lambda: bool(texts(line)))
    interim = [f.text for f in line.of(InterimTranscriptionFrame)]
    assert len(interim) > 3
    assert len(set(interim)) == len(interim)
    assert all(later.startswith(sooner) for sooner, later in pairwise(interim))
    assert texts(line)[0].startswith(interim[-1])


async def test_decoding_does_not_hold_up_the_audio_and_the_end_waits_for_it(
    library: list[Spoken],
) -> None:
    service, watched = stt(partial_every_ms=300)
    watched.may_answer.clear()
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        # All of the audio comes through while the first reading is still under way.
        await play(line, *said, *rest)
        assert texts(line) == []
        assert len(watched.asked) == 1
        watched.may_answer.set()
        await line.until(lambda: bool(texts(line)))
    (transcript,) = line.of(TranscriptionFrame)
    assert transcript.finalized
    assert len(watched.asked) == 2  # the one that was under way, and the rest
    assert transcript.metadata[COUNTS] == {"stt_readings": 2, "stt_read_again": 0}


async def test_readings_made_again_are_counted_with_their_turn(library: list[Spoken]) -> None:
    service, watched = stt(while_speaking=False)
    watched.doubts = True
    async with running(service, params=PARAMS) as line:
        for number, spoken in enumerate(library[:2], 1):
            said, rest = frames_of(spoken)
            await play(line, *said, *rest)
            await line.until(lambda n=number: len(texts(line)) == n)
            watched.doubts = False
    counts = [frame.metadata[COUNTS] for frame in line.of(TranscriptionFrame)]
    assert [(count["stt_readings"], count["stt_read_again"]) for count in counts] == [
        (1, 1),
        (1, 0),
    ]


async def test_two_utterances_close_together_are_transcribed_in_order(
    library: list[Spoken],
) -> None:
    service, watched = stt()
    watched.may_answer.clear()
    async with running(service, params=PARAMS) as line:
        for spoken in library[:2]:
            said, rest = frames_of(spoken)
            await play(line, *said, *rest)
        watched.may_answer.set()
        await line.until(lambda: len(texts(line)) == 2)
    alone = [reader_of(stt_settings()).read(watched.asked[-1]).text]
    assert texts(line)[1:] == alone


async def test_what_was_said_before_the_end_of_the_session_is_still_transcribed(
    library: list[Spoken],
) -> None:
    service, watched = stt(while_speaking=False)
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await line.send(*said, *rest)
    assert len(texts(line)) == 1
    assert len(watched.asked) == 1


async def test_ending_in_mid_utterance_is_clean(library: list[Spoken]) -> None:
    service, _ = stt()
    said, _rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await line.send(*said)
    assert texts(line) == []


async def test_silence_is_no_transcript_and_a_stop_without_a_start_is_nothing(
    library: list[Spoken],
) -> None:
    service, watched = stt()
    stop = VADUserStoppedSpeakingFrame(stop_secs=0.2)
    nothing = list(packets(np.zeros(RATE, np.int16)))
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await line.send(stop, VADUserStartedSpeakingFrame(start_secs=0.2), *nothing, stop)
        await line.send(*said, *rest)
        await line.until(lambda: bool(texts(line)))
    assert len(texts(line)) == 1
    assert len(watched.asked) > 1


async def test_an_engine_that_fails_is_said_and_the_next_turn_is_heard(
    library: list[Spoken],
) -> None:
    service, watched = stt(while_speaking=False)
    watched.fails = True
    failed: asyncio.Queue[ErrorFrame] = asyncio.Queue()

    async def on_error(_: object, frame: ErrorFrame) -> None:
        failed.put_nowait(frame)

    service.add_event_handler("on_error", on_error)
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await line.send(*said, *rest)
        error = await failed.get()
        watched.fails = False
        await line.send(*said, *rest)
        await line.until(lambda: bool(texts(line)))
    assert len(texts(line)) == 1
    assert "it failed, as the test wants it (go on)" in error.error


async def test_what_is_lost_is_an_error(
    library: list[Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turngap_services.stt.readings.MOST_MS", 1000.0)
    service, _ = stt(while_speaking=False)
    failed: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(_: object, frame: ErrorFrame) -> None:
        failed.put_nowait(frame.error)

    service.add_event_handler("on_error", on_error)
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await line.send(*said, *rest)
        assert "s of what was said were not heard" in await failed.get()
    assert len(texts(line)) == 1


async def test_turn_strategies_are_told_what_a_reading_takes_here() -> None:
    service, watched = stt()
    async with running(service, params=PARAMS) as line:
        pass
    (metadata,) = line.of(STTMetadataFrame)
    assert metadata.ttfs_p99_latency == pytest.approx(0.35 + 2 * watched.takes_s)


async def test_a_rate_that_whisper_was_not_made_for_is_refused() -> None:
    service, _ = stt()
    with pytest.raises(RuntimeError, match="hears 16000 Hz, the pipeline has 8000 Hz"):
        async with running(service, params=PipelineParams(audio_in_sample_rate=8000)):
            pytest.fail("it has begun")
    assert not service.is_usable
