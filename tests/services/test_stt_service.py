from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.frames.frames import (
    EndFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.audio.vad_processor import VADProcessor
from rapidfuzz.distance import Levenshtein
from running_line import InstantClock, Line, running

from turngap.scenario.library import LoadedScenario, load_scenario
from turngap.scenario.model import library_dir, library_paths
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import PocketsphinxSTTService, create
from turngap_services.text import spoken_words

RATE = 16_000
PACKET = RATE // 50
PARAMS = PipelineParams(audio_in_sample_rate=RATE)
# When Silero finds the start and the end of speech (median over the library, stop_secs 0.2).
STARTS_LATE_MS, STOPS_LATE_MS = 216, 260


def stt(**settings: object) -> PocketsphinxSTTService:
    return create(PocketsphinxSettings(**settings), InstantClock())  # type: ignore


@pytest.fixture(scope="module")
def library() -> list[LoadedScenario]:
    return [load_scenario(path) for path in library_paths(library_dir())]


class Spoken(NamedTuple):
    """A text, its samples, and where in them speech begins and ends."""

    say: str
    pcm: np.ndarray
    start_ms: float
    end_ms: float


def turn(library: list[LoadedScenario], name: str, number: int) -> Spoken:
    (loaded,) = [x for x in library if x.scenario.name == name]
    said = loaded.scenario.turns[number - 1]
    assert said.speech is not None
    pcm = loaded.clips[said.audio].at_rate(RATE)
    return Spoken(said.say, pcm, said.speech.start_ms, said.speech.end_ms)


def packets(pcm: np.ndarray) -> Iterator[InputAudioRawFrame]:
    for at in range(0, len(pcm), PACKET):
        yield InputAudioRawFrame(pcm[at : at + PACKET].tobytes(), RATE, 1)


def with_vad(spoken: Spoken, lead: np.ndarray | None = None) -> list[Frame]:
    """A second of `lead`, the recording and a second of digital silence, with the VAD's frames."""
    lead = np.zeros(RATE, np.int16) if lead is None else lead
    silence = np.zeros(RATE, np.int16)
    frames: list[Frame] = list(packets(np.concatenate((lead, spoken.pcm, silence))))
    offset_ms = len(lead) * 1000 / RATE
    stop = round((offset_ms + spoken.end_ms + STOPS_LATE_MS) / 20)
    start = round((offset_ms + spoken.start_ms + STARTS_LATE_MS) / 20)
    frames.insert(stop, VADUserStoppedSpeakingFrame(stop_secs=0.2))
    frames.insert(start, VADUserStartedSpeakingFrame(start_secs=0.2))
    return frames


async def heard(service: PocketsphinxSTTService, *turns: list[Frame]) -> Line:
    async with running(service, params=PARAMS) as line:
        for frames in turns:
            await line.send(*frames)
    return line


def texts(line: Line) -> list[str]:
    return [frame.text for frame in line.of(TranscriptionFrame)]


async def test_a_turn_is_one_finalized_transcript_right_behind_the_vads_stop(
    library: list[LoadedScenario],
) -> None:
    clip = turn(library, "quick-questions", 2)
    line = await heard(stt(), with_vad(clip))
    (transcript,) = line.of(TranscriptionFrame)
    assert transcript.text == "what's the weather like today"
    assert transcript.finalized
    kinds = [type(f) for f in line.frames]
    stop = kinds.index(VADUserStoppedSpeakingFrame)
    first_after = next(
        f for f in line.frames[stop + 1 :] if not isinstance(f, InputAudioRawFrame | EndFrame)
    )
    assert first_after is transcript
    # No word of it is known before: it is not made from later audio either.
    assert TranscriptionFrame not in kinds[:stop]


async def test_decoded_after_the_end_it_is_the_same_transcript_and_there_is_no_other(
    library: list[LoadedScenario],
) -> None:
    clip = turn(library, "quick-questions", 2)
    line = await heard(stt(while_speaking=False, partial_every_ms=100), with_vad(clip))
    (transcript,) = line.of(TranscriptionFrame)
    assert transcript.text == "what's the weather like today"
    assert transcript.finalized
    assert line.of(InterimTranscriptionFrame) == []


async def test_the_library_is_read_with_at_most_one_word_in_twenty_wrong(
    library: list[LoadedScenario],
) -> None:
    wrong = words = 0
    for loaded in library[::3]:
        # One session a conversation, as it is played: the cepstral means adapt to its voice.
        service = stt()
        names = range(1, len(loaded.scenario.turns) + 1)
        turns = [turn(library, loaded.scenario.name, n) for n in names]
        line = await heard(service, *map(with_vad, turns))
        assert len(texts(line)) == len(turns)
        for spoken, text in zip(turns, texts(line), strict=True):
            wrong += Levenshtein.distance(spoken_words(spoken.say), text.split())
            words += len(spoken_words(spoken.say))
    assert words > 50
    assert wrong / words <= 0.05


async def test_the_real_vad_in_front_gives_the_same_words(library: list[LoadedScenario]) -> None:
    # In the agent's order: the VAD's frames reach the recogniser in step with the audio.
    clip = turn(library, "pizza-order", 1)
    silence = np.zeros(RATE, np.int16)
    vad = VADProcessor(vad_analyzer=SileroVADAnalyzer())
    async with running(vad, stt(), params=PARAMS) as line:
        await line.send(*packets(np.concatenate((silence, clip.pcm, silence))))
        await line.until(lambda: bool(line.of(TranscriptionFrame)))
    assert texts(line) == [" ".join(spoken_words(clip.say))]


async def test_a_pause_makes_two_utterances_with_a_transcript_each(
    library: list[LoadedScenario],
) -> None:
    first = turn(library, "quick-questions", 1)
    second = turn(library, "quick-questions", 3)
    line = await heard(stt(), with_vad(first), with_vad(second))
    assert texts(line) == ["what time is it", "will it rain tomorrow"]


@pytest.mark.parametrize("lead_s", [0.3, 3.0, 30.0])
async def test_digital_silence_before_and_between_turns_does_no_harm(
    library: list[LoadedScenario], lead_s: float
) -> None:
    clip = turn(library, "smart-home", 1)
    silence = np.zeros(round(lead_s * RATE), np.int16)
    frames = with_vad(clip, lead=silence)
    assert texts(await heard(stt(), frames, with_vad(clip, lead=silence))) == [
        "turn off the kitchen lights",
        "turn off the kitchen lights",
    ]


async def test_an_utterance_of_nothing_but_silence_gives_no_transcript(
    library: list[LoadedScenario],
) -> None:
    nothing = np.zeros(RATE, np.int16)
    clip = turn(library, "quick-questions", 1)
    line = await heard(stt(), with_vad(Spoken("", nothing, 0, 500)), with_vad(clip))
    assert texts(line) == ["what time is it"]


async def test_a_stop_without_a_start_is_nothing(library: list[LoadedScenario]) -> None:
    clip = turn(library, "quick-questions", 1)
    stop = VADUserStoppedSpeakingFrame(stop_secs=0.2)
    assert texts(await heard(stt(), [stop], with_vad(clip), [stop])) == ["what time is it"]


async def test_ending_in_mid_utterance_is_clean(library: list[LoadedScenario]) -> None:
    clip = turn(library, "quick-questions", 1)
    frames = with_vad(clip)
    cut = next(i for i, f in enumerate(frames) if isinstance(f, VADUserStoppedSpeakingFrame))
    assert texts(await heard(stt(), frames[:cut])) == []


async def test_the_start_that_the_vad_finds_late_is_not_lost(
    library: list[LoadedScenario],
) -> None:
    clip = turn(library, "quick-questions", 1)
    with_it = await heard(stt(pre_roll_ms=600), with_vad(clip))
    without = await heard(stt(pre_roll_ms=0), with_vad(clip))
    assert texts(with_it) == ["what time is it"]
    assert texts(without) != texts(with_it)


async def test_a_backchannel_is_heard_as_one(library: list[LoadedScenario]) -> None:
    (loaded,) = [x for x in library if x.scenario.name == "museum-visit"]
    said = loaded.scenario.turns[0].backchannels[0]
    assert said.speech is not None
    pcm = loaded.clips[said.audio].at_rate(RATE)
    spoken = Spoken(said.say, pcm, said.speech.start_ms, said.speech.end_ms)
    assert texts(await heard(stt(), with_vad(spoken))) == ["mm hmm"]


async def test_two_sessions_in_one_process_do_not_disturb_each_other(
    library: list[LoadedScenario],
) -> None:
    one = turn(library, "quick-questions", 2)
    other = turn(library, "smart-home", 2)
    async with running(stt(), params=PARAMS) as a, running(stt(), params=PARAMS) as b:
        # Packet by packet, so that both utterances are open at once.
        for left, right in zip(with_vad(one), with_vad(other), strict=False):
            await a.send(left)
            await b.send(right)
    assert texts(a) == ["what's the weather like today"]
    assert texts(b) == ["set a timer for twelve minutes"]


async def test_a_fresh_session_does_not_remember_the_one_before(
    library: list[LoadedScenario],
) -> None:
    clip = turn(library, "smart-home", 3)
    loud = np.full(5 * RATE, 12_000, np.int16) * np.resize([1, -1], 5 * RATE).astype(np.int16)
    before = texts(await heard(stt(), with_vad(clip)))
    await heard(stt(), with_vad(Spoken("", loud, 0, 5000)))
    assert texts(await heard(stt(), with_vad(clip))) == before


async def test_interim_transcripts_are_off_unless_asked_for_and_grow(
    library: list[LoadedScenario],
) -> None:
    clip = turn(library, "quick-questions", 2)
    assert (await heard(stt(), with_vad(clip))).of(InterimTranscriptionFrame) == []
    line = await heard(stt(partial_every_ms=200), with_vad(clip))
    interim = [f.text for f in line.of(InterimTranscriptionFrame)]
    spoken_s = (clip.end_ms - clip.start_ms + STOPS_LATE_MS) / 1000
    assert 2 <= len(interim) <= spoken_s / 0.2
    assert len(set(interim)) == len(interim)
    assert texts(line) == ["what's the weather like today"]


async def test_turn_strategies_are_told_a_latency_between_the_vads_and_a_human_pause() -> None:
    line = await heard(stt(), [])
    (metadata,) = line.of(STTMetadataFrame)
    # Not above the VAD's 0.2 s, pipecat warns that its wait for a transcript collapses to nothing.
    assert 0.2 < metadata.ttfs_p99_latency < 0.5


async def test_a_rate_the_model_was_not_made_for_is_refused() -> None:
    service = stt()
    # pipecat reports what `setup` raises and gives the service no more work.
    with pytest.raises(RuntimeError, match="hears 16000 Hz, the pipeline has 8000 Hz"):
        async with running(service, params=PipelineParams(audio_in_sample_rate=8000)):
            pytest.fail("it has begun")
    assert not service.is_usable
