"""An engine's silence: how it is reported, withdrawn and ended."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest
from failing_engines import ScriptedLLM
from fake_openai import FakeOpenAI, serving
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from running_line import PATIENCE_S, running

from turngap.agent.switching import LlmSwitch, Offers
from turngap.agent.watchdogs import Patience, ReplyWatch, guard_ears
from turngap.backends import BackendSettings, BackendSpec, ConfiguredBackend
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap.testing import ManualClock
from turngap_services.llm.vllm import SPEC, VllmSettings


class Told:
    """A watch whose words are kept, on a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.late: list[str] = []
        self.given_up: list[str] = []
        self.watch = ReplyWatch(self.clock, self._give_up, late=self.late.append)

    async def _give_up(self, why: str) -> None:
        self.given_up.append(why)

    async def token(self) -> None:
        await self.watch.saw(LLMTextFrame("word"))

    async def finishes(self) -> None:
        await self.watch.saw(LLMFullResponseStartFrame())
        await self.watch.saw(LLMFullResponseEndFrame())

    async def passes(self, ms: float) -> None:
        await self.clock.advance(ms_to_ns(ms))


async def test_a_first_result_that_does_not_come_is_told_and_then_given_up() -> None:
    told = Told()
    told.watch.begin()
    await told.passes(2999)
    assert told.late == []
    await told.passes(1)
    assert (told.late, told.given_up) == (["no token for 3 s"], [])
    await told.passes(7000)
    assert told.given_up == ["no token for 10 s"]


async def test_a_stall_in_the_middle_is_told_sooner() -> None:
    told = Told()
    told.watch.begin()
    for _ in range(2):
        await told.passes(100)
        await told.token()
    await told.passes(1000)
    assert told.late == ["no token for 1 s after 2 tokens"]
    await told.passes(5000)
    assert told.given_up == ["no token for 6 s after 2 tokens"]


async def test_what_was_said_is_taken_back_if_the_engine_goes_on() -> None:
    told = Told()
    told.watch.begin()
    await told.passes(3500)
    await told.token()
    assert told.late == ["no token for 3 s", ""]
    await told.passes(999)
    await told.finishes()
    await told.passes(60_000)
    assert (told.late, told.given_up) == (["no token for 3 s", ""], [])


async def test_an_engine_that_was_told_to_stop_is_not_waited_for_and_stays_late() -> None:
    told = Told()
    told.watch.begin()
    await told.passes(3000)
    told.watch.end()
    await told.finishes()  # what it says as it stops
    await told.passes(60_000)
    assert (told.late, told.given_up) == (["no token for 3 s"], [])


async def test_an_llm_that_was_left_is_not_waited_for() -> None:
    """Nor is the new one, which was not asked."""
    errors: list[str] = []
    late: list[str] = []
    clock = ManualClock()
    services = {name: ScriptedLLM({1: "stalls"}, clock) for name in ("old", "new")}

    def offer(name: str) -> ConfiguredBackend:
        spec = BackendSpec(name, "llm", BackendSettings, lambda *_: services[name])
        return ConfiguredBackend(name, spec, BackendSettings())

    async def on_error(_: object, frame: ErrorFrame) -> None:
        errors.append(frame.error)

    for service in services.values():
        service.add_event_handler("on_error", on_error)
    switch = LlmSwitch(Offers([offer("old"), offer("new")]), clock, late=late.append)
    async with running(switch, params=PipelineParams()) as line:
        asked = LLMContextFrame(LLMContext([{"role": "user", "content": "question 1"}]))
        await line.send(asked)
        await line.until(lambda: bool(line.of(LLMFullResponseStartFrame)))
        assert await switch.use("new")
        await clock.advance(ms_to_ns(60_000))
    assert (late, errors) == ([], [])


async def until(ready: Callable[[], bool]) -> None:
    clock = MonotonicClock()
    async with asyncio.timeout(PATIENCE_S):
        while not ready():
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(10))


@pytest.mark.parametrize(
    ("stalls_at", "said"), [(-1, "no token for"), (1, "after 1 token"), (2, "after 2 tokens")]
)
async def test_a_server_that_stalls_is_hung_up_on_and_asked_again(
    stalls_at: int, said: str
) -> None:
    """Over loopback: without response headers, or in the middle of the stream.

    Time passes only once the server has stalled, so that a busy machine is no silent engine.
    """
    errors: list[str] = []
    clock = ManualClock()
    with serving(FakeOpenAI(words=("One ", "two ", "three."), stalls_at=stalls_at)) as fake:
        settings = VllmSettings(base_url=fake.base_url)
        offers = Offers([ConfiguredBackend("vllm", SPEC, settings)])
        offers.prepare()
        patience = Patience(first_ms=200, next_ms=200, late_first_ms=50, late_next_ms=50)
        switch = LlmSwitch(offers, clock, patience=patience)

        async def on_error(_: object, frame: ErrorFrame) -> None:
            errors.append(frame.error)

        switch.service.add_event_handler("on_error", on_error)
        async with running(switch, params=PipelineParams()) as line:
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "?"}])))
            await until(
                lambda: bool(fake.chats) and len(line.of(LLMTextFrame)) == max(0, stalls_at)
            )
            await clock.advance(ms_to_ns(400))
            await until(lambda: bool(errors and line.of(LLMFullResponseEndFrame)))
            fake.stalls_at = None
            fake.freed.set()
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "?"}])))
            await line.until(lambda: len(line.of(LLMFullResponseEndFrame)) == 2)
    assert said in errors[0]
    assert "".join(f.text for f in line.of(LLMTextFrame)).endswith("One two three.")


# --- a recogniser ------------------------------------------------------------------------------


MOST_MS = 20.0


async def too_long() -> None:
    clock = MonotonicClock()
    await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(5 * MOST_MS))


class SlowSTT(STTService):
    """Takes far longer than it may over what begins and ends a session, and ends no utterance."""

    def __init__(self) -> None:
        super().__init__(ttfs_p99_latency=0.1, settings=STTSettings(model="x", language=None))

    async def start(self, frame: StartFrame) -> None:
        await too_long()
        await super().start(frame)

    async def stop(self, frame: EndFrame) -> None:
        await too_long()
        await super().stop(frame)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            await asyncio.Event().wait()
        await super().process_frame(frame, direction)

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        return
        yield


async def test_a_session_begins_and_ends_however_long_a_recogniser_needs_for_it() -> None:
    errors: list[str] = []
    stt = SlowSTT()

    async def on_error(_: object, frame: ErrorFrame) -> None:
        errors.append(frame.error)

    stt.add_event_handler("on_error", on_error)
    guard_ears(stt, most_ms=MOST_MS)
    async with running(stt, params=PipelineParams()) as line:
        await line.until(lambda: bool(line.of(StartFrame)))
        # It is given up at the utterance, and turn-taking hears of its end all the same.
        await line.send(VADUserStoppedSpeakingFrame())
        await line.until(lambda: bool(line.of(VADUserStoppedSpeakingFrame)))
        await line.send(EndFrame())
        await line.until(lambda: bool(line.of(EndFrame)))
    assert errors == ["no result for 0.02 s"]
