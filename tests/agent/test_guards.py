"""What a guard around a recogniser bounds, and what it leaves alone."""

import asyncio
from collections.abc import AsyncGenerator

from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    StartFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from running_line import running

from turngap.agent.guards import guard_ears
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns

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
