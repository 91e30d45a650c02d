"""sherpa in a pipeline, with the canned zipformer hearing the library's recordings."""

import asyncio
import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from canned_zipformer import canned_model
from loguru import logger
from pipecat.frames.frames import (
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
from turngap.core.counts import BEHIND
from turngap.core.errors import AgentError
from turngap_services.stt.sherpa import SPEC, SherpaSettings
from turngap_services.stt.sherpa.model import Recogniser, recogniser_of
from turngap_services.stt.sherpa.service import SherpaSTTService

PARAMS = PipelineParams(audio_in_sample_rate=RATE)


class Held:
    """A recogniser whose readings wait where they are told to, or fail."""

    def __init__(self, recogniser: Recogniser) -> None:
        self._recogniser = recogniser
        self.name, self.takes_s = recogniser.name, recogniser.takes_s
        self.begun: list[Any] = []
        self.may_read = threading.Event()
        self.may_read.set()
        self.fails = False
        self.rests = self.ends = 0

    def begin(self, known: Pcm) -> Any:
        self.begun.append(self._recogniser.begin(known))
        return self

    def hear(self, pcm: Pcm) -> str:
        assert self.may_read.wait(20)
        if self.fails:
            raise AgentError("model.failed", "it failed, as the test wants it", hint="go on")
        return self.begun[-1].hear(pcm)

    def rest(self) -> str:
        self.rests += 1
        return self.begun[-1].rest()

    def conclude(self) -> str:
        self.ends += 1
        return self.begun[-1].conclude()

    def cancel(self) -> None:
        self.begun[-1].cancel()


def given(**values: object) -> SherpaSettings:
    return SherpaSettings(model=str(canned_model()), **values)  # type: ignore


def stt() -> tuple[SherpaSTTService, Held]:
    held = Held(recogniser_of(given()))
    return SherpaSTTService(settings=given(), recogniser=held), held  # type: ignore


def errors_of(service: SherpaSTTService) -> asyncio.Queue[str]:
    found: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(_: object, frame: ErrorFrame) -> None:
        found.put_nowait(frame.error)

    service.add_event_handler("on_error", on_error)
    return found


def alone(spoken: Spoken) -> str:
    """What the model hears of a turn if it is given all of it at once."""
    said, rest = frames_of(spoken)
    frames = [*said, *rest]
    kinds = [type(frame) for frame in frames]
    start, stop = (
        kinds.index(kind) for kind in (VADUserStartedSpeakingFrame, VADUserStoppedSpeakingFrame)
    )
    audio = [f.audio for f in frames[:stop] if isinstance(f, InputAudioRawFrame)]
    before = sum(isinstance(f, InputAudioRawFrame) for f in frames[:start])
    known = round(given().pre_roll_ms / 20)
    pcm = np.frombuffer(b"".join(audio[max(before - known, 0) :]), np.int16)
    hearing = recogniser_of(given()).begin(pcm[: round(given().pre_roll_ms * RATE / 1000)])
    hearing.hear(pcm)
    return hearing.conclude()


async def test_every_turn_is_one_final_transcript_of_all_its_words(library: list[Spoken]) -> None:
    service = SPEC.create(given(), InstantClock())
    async with running(service, params=PARAMS) as line:
        for number, spoken in enumerate(library, 1):
            said, rest = frames_of(spoken)
            await play(line, *said, *rest)
            await line.until(lambda n=number: len(texts(line)) == n)
    assert len(library) > 5
    assert texts(line) == [alone(spoken) for spoken in library]
    assert len(set(texts(line))) > 3  # turns of different lengths are heard as different texts
    assert all(frame.finalized for frame in line.of(TranscriptionFrame))


@pytest.mark.usefixtures("at_once")
async def test_after_a_pause_the_transcript_follows_the_vads_stop_at_once(
    library: list[Spoken],
) -> None:
    service, held = stt()
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await play(line, *said)
        assert held.rests > 0
        await play(line, *rest)
    assert held.ends == 0  # nothing was left to be read
    (transcript,) = line.of(TranscriptionFrame)
    assert transcript.text == line.of(InterimTranscriptionFrame)[-1].text == alone(library[0])
    kinds = [type(f) for f in line.frames]
    stop = kinds.index(VADUserStoppedSpeakingFrame)
    after = (f for f in line.frames[stop + 1 :] if not isinstance(f, InputAudioRawFrame))
    assert next(after) is transcript


@pytest.mark.usefixtures("at_once")
async def test_the_words_so_far_are_told_once_each_time_they_change(library: list[Spoken]) -> None:
    service, _ = stt()
    longest = max(library, key=lambda spoken: spoken.end_ms)
    said, rest = frames_of(longest)
    async with running(service, params=PARAMS) as line:
        await play(line, *said, *rest)
        await line.until(lambda: bool(texts(line)))
    interim = [f.text for f in line.of(InterimTranscriptionFrame)]
    assert len(interim) > 0
    assert all(later != sooner and later.startswith(sooner) for sooner, later in pairwise(interim))
    assert texts(line)[0].startswith(interim[-1])


async def test_readings_do_not_hold_up_the_audio_and_the_end_waits_for_them(
    library: list[Spoken],
) -> None:
    service, held = stt()
    held.may_read.clear()
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        # All of the audio comes through while the first reading is still under way.
        await play(line, *said, *rest)
        assert texts(line) == []
        held.may_read.set()
        await line.until(lambda: bool(texts(line)))
    assert texts(line) == [alone(library[0])]


async def test_two_turns_close_together_are_heard_in_order_and_apart(library: list[Spoken]) -> None:
    service, held = stt()
    held.may_read.clear()
    async with running(service, params=PARAMS) as line:
        for spoken in library[:2]:
            said, rest = frames_of(spoken)
            await play(line, *said, *rest)
        held.may_read.set()
        await line.until(lambda: len(texts(line)) == 2)
    assert len(held.begun) == 2
    assert texts(line) == [alone(spoken) for spoken in library[:2]]


async def test_two_sessions_share_a_model_and_do_not_mix(library: list[Spoken]) -> None:
    one, other = (SPEC.create(given(), InstantClock()) for _ in range(2))

    async def session(service: SherpaSTTService, spoken: Spoken) -> list[str]:
        said, rest = frames_of(spoken)
        async with running(service, params=PARAMS) as line:
            await play(line, *said, *rest)
            await line.until(lambda: bool(texts(line)))
        return texts(line)

    shortest, longest = sorted(library, key=lambda spoken: spoken.end_ms)[:: len(library) - 1]
    heard = await asyncio.gather(session(one, shortest), session(other, longest))
    assert heard == [[alone(shortest)], [alone(longest)]]
    assert heard[0] != heard[1]


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    told: list[str] = []
    sink = logger.add(
        lambda message: told.append(str(message)), level="WARNING", format="{message}"
    )
    yield told
    logger.remove(sink)


async def test_a_machine_that_is_too_slow_is_told_once_a_turn_and_nothing_is_lost(
    library: list[Spoken], warnings: list[str]
) -> None:
    service, held = stt()
    held.may_read.clear()
    one, other = library[:2]
    both = np.concatenate((one.pcm, other.pcm))
    longest = Spoken(both, one.start_ms, len(one.pcm) * 1000 / RATE + other.end_ms)
    assert longest.end_ms - longest.start_ms > 2500
    said, rest = frames_of(longest)
    async with running(service, params=PARAMS) as line:
        await play(line, *said, *rest)
        held.may_read.set()
        await line.until(lambda: bool(texts(line)))
    assert texts(line) == [alone(longest)]
    (told,) = [each for each in warnings if "sherpa" in each]
    assert "canned is 2.0 s behind what is said, this machine is too slow for it" in told
    (transcript,) = line.of(TranscriptionFrame)
    assert transcript.metadata[COUNTS][BEHIND] > 2500


async def test_what_waits_too_long_is_not_heard_and_that_is_an_error(
    library: list[Spoken],
) -> None:
    service, held = stt()
    errors = errors_of(service)
    held.may_read.clear()
    voice = max(library, key=lambda spoken: spoken.end_ms).pcm
    async with running(service, params=PARAMS) as line:
        await play(line, *packets(np.zeros(RATE, np.int16)))
        await line.send(VADUserStartedSpeakingFrame(start_secs=0.05))
        await play(line, *packets(np.tile(voice, 2)))
        await line.send(*packets(np.tile(voice, 1 + 25 * RATE // len(voice))))
        await line.send(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        await line.until(lambda: bool(line.of(VADUserStoppedSpeakingFrame)))
        held.may_read.set()
        await line.until(lambda: bool(texts(line)))
        assert "s of what was said were not heard" in await errors.get()
    assert errors.empty()


async def test_what_was_said_before_the_end_of_the_session_is_still_heard(
    library: list[Spoken],
) -> None:
    service, _ = stt()
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await line.send(*said, *rest)
    assert texts(line) == [alone(library[0])]


async def test_ending_in_mid_utterance_is_clean(library: list[Spoken]) -> None:
    service, _ = stt()
    said, _rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await line.send(*said)
    assert texts(line) == []


async def test_silence_is_no_transcript_and_a_stop_without_a_start_is_nothing(
    library: list[Spoken],
) -> None:
    service, held = stt()
    stop = VADUserStoppedSpeakingFrame(stop_secs=0.2)
    nothing = list(packets(np.zeros(RATE, np.int16)))
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        await line.send(stop, VADUserStartedSpeakingFrame(start_secs=0.2), *nothing, stop)
        await line.send(*said, *rest)
        await line.until(lambda: bool(texts(line)))
    assert texts(line) == [alone(library[0])]
    assert len(held.begun) == 2


async def test_an_engine_that_fails_is_said_and_the_next_turn_is_heard(
    library: list[Spoken],
) -> None:
    service, held = stt()
    errors = errors_of(service)
    said, rest = frames_of(library[0])
    async with running(service, params=PARAMS) as line:
        held.fails = True
        await play(line, *said, *rest)
        held.fails = False
        await play(line, *said, *rest)
        await line.until(lambda: bool(texts(line)))
        assert "it failed, as the test wants it (go on)" in await errors.get()
    assert errors.empty()  # it is told once an utterance
    assert texts(line)[-1:] == [alone(library[0])]


async def test_turn_strategies_are_told_what_an_end_takes_here() -> None:
    service, held = stt()
    async with running(service, params=PARAMS) as line:
        pass
    (metadata,) = line.of(STTMetadataFrame)
    assert metadata.ttfs_p99_latency == pytest.approx(0.35 + 2 * held.takes_s)


async def test_a_rate_that_it_was_not_made_for_is_refused() -> None:
    service, _ = stt()
    with pytest.raises(RuntimeError, match="hears 16000 Hz, the pipeline has 8000 Hz"):
        async with running(service, params=PipelineParams(audio_in_sample_rate=8000)):
            pytest.fail("it has begun")
    assert not service.is_usable
