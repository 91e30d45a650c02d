"""Work done ahead: the prompt read, a voice warmed up, without delaying a conversation."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from loguru import logger
from pipecat.frames.frames import ErrorFrame, Frame
from pipecat.processors.aggregators.llm_context import LLMContext
from speech_line import ClockedTTS

from turngap.agent.session import SETTLED_MS, VOICE_TEXTS, PrefixWarmer, warm_voice
from turngap.core.clock import ms_to_ns
from turngap.core.voice import VoiceSpeed
from turngap.testing import ManualClock

SYSTEM = {"role": "system", "content": "Be brief."}


class Asked:
    """An LLM that takes its time, and remembers what it was asked."""

    def __init__(self, clock: ManualClock, fault: Exception | None = None) -> None:
        self._clock = clock
        self._fault = fault
        self.asked: list[tuple[int, int | None]] = []
        self.answered = 0

    async def run_inference(self, context: LLMContext, max_tokens: int | None = None) -> str | None:
        self.asked.append((len(context.messages), max_tokens))
        await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(200))
        if self._fault is not None:
            raise self._fault
        self.answered += 1
        return "Yes"


class Warmed:
    """A warmer with all that it needs."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.clock = ManualClock()
        self.llm = Asked(self.clock, fault)
        self.context = LLMContext([dict(SYSTEM)])  # type: ignore[list-item]
        self.counts: dict[str, float] = {}
        self.warmer = PrefixWarmer(self.llm, self.context, self.clock, self._count)

    def _count(self, name: str, n: float) -> None:
        self.counts[name] = self.counts.get(name, 0) + n

    async def passes(self, ms: float) -> None:
        await self.clock.advance(ms_to_ns(ms))


async def test_the_conversation_is_read_for_one_token_and_that_is_counted() -> None:
    warmed = Warmed()
    warmed.warmer.begin()
    await warmed.passes(300)
    assert warmed.llm.asked == [(1, 1)]
    assert warmed.counts == {"warm_requests": 1, "warm_prompt_tokens": 3}


async def test_what_was_read_is_not_read_again_before_the_conversation_has_gone_on() -> None:
    warmed = Warmed()
    for _ in range(2):
        warmed.warmer.begin()
        await warmed.passes(300)
    assert len(warmed.llm.asked) == 1
    warmed.context.add_message({"role": "user", "content": "hello"})
    warmed.warmer.begin()
    await warmed.passes(300)
    assert warmed.llm.asked == [(1, 1), (2, 1)]


async def test_it_waits_until_the_memory_of_an_interruption_has_settled() -> None:
    warmed = Warmed()
    warmed.warmer.begin(SETTLED_MS)
    await warmed.passes(SETTLED_MS / 2)
    assert warmed.llm.asked == []
    warmed.context.add_message({"role": "assistant", "content": "half of it"})
    await warmed.passes(300)
    assert warmed.llm.asked == [(2, 1)]


async def test_it_never_stands_in_a_requests_way() -> None:
    warmed = Warmed()
    warmed.warmer.begin()
    await warmed.passes(100)
    warmed.warmer.give_up()
    await warmed.passes(300)
    assert (len(warmed.llm.asked), warmed.llm.answered) == (1, 0)
    assert warmed.counts["warm_requests"] == 1  # the server has read it all the same
    # What was given up was not read, so it is read when there is time again.
    warmed.warmer.begin()
    await warmed.passes(300)
    assert warmed.llm.answered == 1


async def test_an_llm_that_cannot_be_asked_so_is_left_alone_from_then_on() -> None:
    warmed = Warmed(ConnectionError("nobody there"))
    for _ in range(3):
        warmed.warmer.begin()
        await warmed.passes(300)
    assert len(warmed.llm.asked) == 1


async def test_an_llm_that_only_its_pipeline_can_ask_costs_nothing_and_is_no_fault() -> None:
    said: list[str] = []
    sink = logger.add(said.append, level="INFO")
    warmed = Warmed(NotImplementedError("run_inference() not supported"))
    for _ in range(3):
        warmed.warmer.begin()
        await warmed.passes(300)
    logger.remove(sink)
    assert len(warmed.llm.asked) == 1
    assert warmed.counts == {}
    assert said == []


async def test_the_conversation_itself_is_not_touched() -> None:
    warmed = Warmed()
    warmed.warmer.begin()
    await warmed.passes(300)
    assert warmed.context.messages == [SYSTEM]


async def test_a_voice_that_has_spoken_unheard_is_known() -> None:
    clock = ManualClock()
    speed = VoiceSpeed()
    tts = ClockedTTS(clock, request_ms=80, factor=0.2, chunk_ms=100)
    speaking = asyncio.create_task(warm_voice(tts, speed, clock))
    await clock.advance(ms_to_ns(5000))
    assert speaking.done()
    assert [text for _, text in tts.spoken] == list(VOICE_TEXTS)
    assert speed.known
    assert speed.make_ms(1000) >= 80 + 200
    assert speed.first_ms(1000) == pytest.approx(100, abs=20)


class BrokenTTS(ClockedTTS):
    """Says that it cannot."""

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        yield ErrorFrame(error="no such voice")


async def test_a_voice_that_fails_is_not_known_and_harms_nothing() -> None:
    clock = ManualClock()
    speed = VoiceSpeed()
    await warm_voice(BrokenTTS(clock), speed, clock)
    assert not speed.known
