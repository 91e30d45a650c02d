"""The pipeline that tests and benchmarks run services in."""

import asyncio

import pytest
from pipecat.frames.frames import EndFrame, Frame, StartFrame, TextFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.frame_processor import (
    FrameDirection,
    FrameProcessor,
    FrameProcessorSetup,
)
from pipelines import at_work, worker_of

from turngap.core.clock import NS_PER_S
from turngap.testing import ManualClock


class Keeping(FrameProcessor):
    """Keeps what comes, and passes it on; text only when the clock says so."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        super().__init__()
        self.seen: list[Frame] = []
        self._clock = clock

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if self._clock is not None and isinstance(frame, TextFrame):
            await self._clock.sleep_until_ns(self._clock.now_ns() + NS_PER_S)
        self.seen.append(frame)
        await self.push_frame(frame, direction)

    @property
    def kinds(self) -> list[type[Frame]]:
        """Return the types of the received frames, without those that pipecat adds."""
        told = TextFrame | StartFrame | EndFrame
        return [type(frame) for frame in self.seen if isinstance(frame, told)]


async def test_they_have_begun_when_they_are_used_and_have_done_what_was_queued_at_the_end() -> (
    None
):
    steps = Keeping(), Keeping()
    worker = worker_of(steps, PipelineParams())
    async with at_work(worker):
        for step in steps:
            assert step.kinds == [StartFrame]
        await worker.queue_frame(TextFrame("last words"))
    for step in steps:
        assert step.kinds == [StartFrame, TextFrame, EndFrame]


async def test_the_end_is_reached_on_a_manual_clock_where_time_is_let_pass() -> None:
    clock = ManualClock()
    step = Keeping(clock)
    worker = worker_of([step], PipelineParams())
    async with at_work(worker, passing=lambda: clock.advance(NS_PER_S // 10)):
        await worker.queue_frame(TextFrame("in a second"))
    assert step.kinds == [StartFrame, TextFrame, EndFrame]
    assert clock.now_ns() >= NS_PER_S


async def test_what_fails_in_the_block_cancels_it() -> None:
    step = Keeping()
    before = asyncio.all_tasks()
    with pytest.raises(ZeroDivisionError):
        async with at_work(worker_of([step], PipelineParams())):
            raise ZeroDivisionError
    assert step.kinds == [StartFrame]  # no end
    assert asyncio.all_tasks() == before


class NoVoice(FrameProcessor):
    """Cannot be set up."""

    async def setup(self, setup: FrameProcessorSetup) -> None:
        raise ValueError("no such voice")


class NoStart(FrameProcessor):
    """Can, and fails at the first frame."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        raise ValueError("no such voice")


@pytest.mark.parametrize("broken", [NoVoice, NoStart])
async def test_who_cannot_begin_is_named_at_once_however_long_one_would_wait(
    broken: type[FrameProcessor],
) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(RuntimeError, match=rf"^{broken.__name__}#\d+: .*no such voice"):
        async with at_work(worker_of([broken()], PipelineParams()), patience_s=None):
            pytest.fail("it has begun")
    assert asyncio.all_tasks() == before
