"""`adaptive` in a pipeline with the recogniser and pipecat's aggregator, on recordings, in no time.

The clock stands still but for the packets: each advances it by the 20 ms that it sounds.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMContextFrame,
    UserBackchannelFrame,
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
from running_line import Line, running

from turngap.backends import Whole
from turngap.core.audio import LINE_FLOOR_DBFS, Pcm
from turngap.scenario.library import load_scenario
from turngap.scenario.model import Recorded, library_dir
from turngap.testing import ManualClock
from turngap_services.frames import SpeechPausedFrame
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import create as create_stt
from turngap_services.turn import AdaptiveSettings
from turngap_services.turn.taker import create, prepare

RATE = 16_000
PACKET = RATE // 50
PACKET_NS = 20_000_000
RNG = np.random.default_rng(0)


def noise(ms: float, dbfs: float = LINE_FLOOR_DBFS) -> Pcm:
    return RNG.normal(0, 32768 * 10 ** (dbfs / 20), round(ms * 16)).astype(np.int16)


def recording(scenario: str, turn: int, *, backchannel: bool = False) -> tuple[Recorded, Pcm]:
    loaded = load_scenario(library_dir() / f"{scenario}.yaml")
    said: Recorded = loaded.scenario.turns[turn - 1]
    if backchannel:
        said = loaded.scenario.turns[turn - 1].backchannels[0]
    return said, loaded.clips[said.audio].at_rate(RATE)


class Talk:
    """A caller's packets and what came of them at the end of the pipeline."""

    def __init__(self, line: Line, clock: ManualClock, taking: Any, context: LLMContext) -> None:
        self.line, self.clock, self.floor, self.context = line, clock, taking.floor, context
        self.heard_ms = 0.0
        self.at_ms: dict[int, float] = {}  # when each frame came, by its id
        self.withheld_ms: list[float] = []

    async def hears(self, *pieces: Pcm) -> None:
        """Play audio to the agent, at the speed of the clock."""
        pcm = np.concatenate(pieces)
        for at in range(0, len(pcm) - PACKET + 1, PACKET):
            await self.clock.advance(PACKET_NS)
            packet = pcm[at : at + PACKET].tobytes()
            await self.line.send(InputAudioRawFrame(packet, RATE, 1))
            await self.line.until(lambda: self._packets() * 20 > self.heard_ms)
            await self.clock.advance(0)
            self.heard_ms += 20
            for frame in self.line.frames:
                self.at_ms.setdefault(frame.id, self.heard_ms)
            if self.floor.withheld:
                self.withheld_ms.append(self.heard_ms)

    def _packets(self) -> int:
        return len(self.line.of(InputAudioRawFrame))

    def when(self, kind: type[Frame]) -> list[float]:
        """Return when each frame of a kind came, in ms of audio: the packet's end, so up to 20
        late."""
        return [self.at_ms[frame.id] for frame in self.line.of(kind)]

    @property
    def asked(self) -> list[tuple[str, bool]]:
        """The last words of each request, and whether it was a guess."""
        requests = self.line.of(LLMContextFrame)
        return [(str(_last(f.context)), f.speculation) for f in requests]

    @property
    def memory(self) -> list[str]:
        messages: Any = self.context.get_messages()
        return [m["content"] for m in messages if m["role"] == "user"]


def _last(context: LLMContext) -> object:
    messages: Any = context.get_messages()
    return messages[-1]["content"]


@asynccontextmanager
async def talking(whole: Whole | None = None, **settings: Any) -> AsyncIterator[Talk]:
    clock = ManualClock(settle_rounds=60)
    # Smart turn answers from a thread, when the clock of these tests knows nothing of it.
    chosen = AdaptiveSettings.model_validate({"smart_turn": False, **settings})
    prepare(chosen)
    taking = create(chosen, clock)
    if whole is not None:
        assert taking.use_llm is not None
        taking.use_llm(whole)
    stt = create_stt(PocketsphinxSettings(partial_every_ms=20, pre_roll_ms=300), clock)
    context = LLMContext()
    user = LLMContextAggregatorPair(
        context, user_params=LLMUserAggregatorParams(user_turn_strategies=taking.strategies)
    ).user()
    assert taking.ears is not None
    params = PipelineParams(audio_in_sample_rate=RATE)
    async with running(taking.ears, stt, user, params=params) as line:
        talk = Talk(line, clock, taking, context)
        await talk.hears(noise(500))
        yield talk


async def test_a_turn_is_guessed_in_its_silence_and_ends_with_the_hold() -> None:
    said, pcm = recording("quick-questions", 1)
    assert said.speech is not None
    async with talking(hold_ms=250, certainty=0) as talk:
        await talk.hears(pcm, noise(800))
        end_ms = 500 + said.speech.end_ms
        assert talk.asked[-1] == ("what time is it", True)
        assert all(guess for _, guess in talk.asked)
        (stopped,) = talk.when(UserStoppedSpeakingFrame)
        # 250 ms from the last audible sample, found to a frame of 10, seen at a packet's end.
        assert 235 <= stopped - end_ms <= 290
        assert talk.when(VADUserStoppedSpeakingFrame)[0] <= stopped
        assert talk.memory == ["what time is it"]


@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_the_person_goes_on_and_only_the_whole_is_answered(turn: int) -> None:
    said, pcm = recording("second-thoughts", turn)
    async with talking(hold_ms=400, certainty=0) as talk:
        await talk.hears(pcm, noise(800))
        guesses = [text for text, guess in talk.asked if guess]
        assert len(guesses) >= 2, "the pause was no temptation"
        assert guesses[-1] == said.say
        assert talk.memory == [said.say]
        assert len(talk.when(UserStoppedSpeakingFrame)) == 1
        # To the recogniser it is one utterance, pause and all.
        assert len(talk.when(VADUserStoppedSpeakingFrame)) == 1


async def test_without_speculation_the_answer_is_asked_for_at_the_end_alone() -> None:
    _, pcm = recording("second-thoughts", 1)
    async with talking(speculate=False) as talk:
        await talk.hears(pcm, noise(1000))
        assert talk.asked == [("set an alarm for six thirty in the morning", False)]


async def test_a_pause_to_think_is_not_answered() -> None:
    said, pcm = recording("table-booking", 1)  # 700 ms after "a table for"
    async with talking() as talk:
        await talk.hears(pcm, noise(800))
        assert talk.memory == [said.say.lower()]


async def test_the_recogniser_is_told_of_each_pause() -> None:
    said, pcm = recording("second-thoughts", 1)
    assert said.speech is not None
    async with talking() as talk:
        await talk.hears(pcm, noise(800))
        pauses = talk.when(SpeechPausedFrame)
        assert len(pauses) >= 2
        assert 60 <= pauses[-1] - 500 - said.speech.end_ms <= 120


async def test_the_llm_is_asked_whether_the_words_are_whole() -> None:
    said, pcm = recording("second-thoughts", 1)
    weighed: list[str] = []

    async def whole(text: str) -> float:
        weighed.append(text)
        return 0.5 if text == said.say else 0.001

    async with talking(whole=whole) as talk:
        await talk.hears(pcm, noise(1200))
        assert talk.memory == [said.say]
    assert weighed[-1] == said.say
    assert len(weighed) == len(set(weighed))


async def test_smart_turn_is_asked_beside_the_hold_and_never_waited_for() -> None:
    said, pcm = recording("quick-questions", 1)
    async with talking(smart_turn=True, longest_ms=600) as talk:
        await talk.hears(pcm, noise(1200))
        (stopped,) = talk.when(UserStoppedSpeakingFrame)
        assert said.speech is not None
        assert stopped - 500 - said.speech.end_ms <= 600 + 60


async def test_a_question_over_the_agent_silences_it_at_once_and_then_interrupts_it() -> None:
    said, pcm = recording("soup-recipe", 2)  # "wait, how many onions"
    assert said.speech is not None
    async with talking() as talk:
        await talk.line.send(BotStartedSpeakingFrame())
        await talk.line.until(lambda: bool(talk.line.of(BotStartedSpeakingFrame)))
        await talk.hears(pcm, noise(800))
        start_ms = 500 + said.speech.start_ms
        assert talk.withheld_ms[0] - start_ms <= 130
        (interrupted,) = talk.when(InterruptionFrame)
        assert talk.withheld_ms[0] < interrupted < 500 + said.speech.end_ms
        assert talk.memory == ["wait how many onions"]


@pytest.mark.parametrize("scenario", ["museum-visit", "cough"])
async def test_what_asks_for_nothing_leaves_the_agent_the_floor(scenario: str) -> None:
    said, pcm = recording(scenario, 1, backchannel=True)
    async with talking() as talk:
        await talk.line.send(BotStartedSpeakingFrame())
        await talk.line.until(lambda: bool(talk.line.of(BotStartedSpeakingFrame)))
        await talk.hears(pcm, noise(1500))
        assert talk.withheld_ms, "it was not noticed at all"
        assert not talk.floor.withheld
        assert talk.when(VADUserStartedSpeakingFrame)
        assert talk.when(InterruptionFrame) == talk.when(UserStartedSpeakingFrame) == []
        assert (talk.asked, talk.memory) == ([], [])
        backchannels = [f.text for f in talk.line.of(UserBackchannelFrame)]
        assert backchannels == ["mm hmm"] or said.say == "[cough]"
        # Nor is it part of what the person says next.
        _, question = recording("quick-questions", 1)
        await talk.hears(question, noise(2200))
        assert talk.memory == ["what time is it"]


async def test_the_vads_way_is_stopped_by_anything() -> None:
    _, cough = recording("cough", 1, backchannel=True)
    async with talking(barge_in="vad") as talk:
        await talk.line.send(BotStartedSpeakingFrame())
        await talk.line.until(lambda: bool(talk.line.of(BotStartedSpeakingFrame)))
        await talk.hears(cough, noise(500))
        assert talk.when(InterruptionFrame)
        assert talk.withheld_ms == []
