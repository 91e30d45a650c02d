"""The recogniser, the turn strategies and pipecat's aggregator together, as in the agent."""

import numpy as np
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    LLMContextFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameProcessor
from running_line import InstantClock, running

from turngap.scenario.library import load_scenario
from turngap.scenario.model import library_dir
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import create
from turngap_services.turn import VadSettings, create_vad

RATE = 16_000
PARAMS = PipelineParams(audio_in_sample_rate=RATE)
# Longer than the tests' patience: who waits for it fails.
FOREVER_S = 60.0


def pipeline(context: LLMContext) -> list[FrameProcessor]:
    stt = create(PocketsphinxSettings(), InstantClock())
    stt._ttfs_p99_latency = FOREVER_S
    taking = create_vad(VadSettings(), InstantClock())
    user = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(user_turn_strategies=taking.strategies)
    ).user()
    return [stt, user]


def utterance(pcm: np.ndarray) -> list[Frame]:
    packets: list[Frame] = [
        InputAudioRawFrame(pcm[at : at + 320].tobytes(), RATE, 1) for at in range(0, len(pcm), 320)
    ]
    start, stop = VADUserStartedSpeakingFrame(start_secs=0.2), VADUserStoppedSpeakingFrame(0.2)
    return [*packets[:25], start, *packets[25:], stop]


def recording(turn: int) -> np.ndarray:
    loaded = load_scenario(library_dir() / "quick-questions.yaml")
    pcm = loaded.clips[loaded.scenario.turns[turn - 1].audio].at_rate(RATE)
    return np.concatenate((pcm, np.zeros(RATE // 4, np.int16)))


def said(frame: LLMContextFrame) -> list[object]:
    return [m["content"] for m in frame.context.get_messages()]  # type: ignore


async def test_the_turn_ends_with_the_transcript_and_waits_for_nothing_more() -> None:
    async with running(*pipeline(LLMContext()), params=PARAMS) as line:
        await line.send(*utterance(recording(1)))
        await line.until(lambda: bool(line.of(LLMContextFrame)))
    assert said(line.of(LLMContextFrame)[0]) == ["what time is it"]
    assert len(line.of(UserStoppedSpeakingFrame)) == 1


async def test_noise_without_words_is_not_answered_and_does_not_hang_what_follows() -> None:
    noise = np.random.default_rng(0).normal(0, 30, RATE).astype(np.int16)
    async with running(*pipeline(LLMContext()), params=PARAMS) as line:
        await line.send(*utterance(noise))
        await line.until(lambda: bool(line.of(UserStartedSpeakingFrame)))
        await line.send(*utterance(recording(3)))
        await line.until(lambda: bool(line.of(LLMContextFrame)))
    assert [said(f) for f in line.of(LLMContextFrame)] == [["will it rain tomorrow"]]
