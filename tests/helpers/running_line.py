"""A running pipecat pipeline around the processor under test, and clocks that need no waiting."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from pipecat.frames.frames import Frame
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipelines import PATIENCE_S, at_work, worker_of

F = TypeVar("F", bound=Frame)


class InstantClock:
    """Sleeps take no time: the clock is set to each deadline and notes it."""

    def __init__(self) -> None:
        self.deadlines: list[int] = []
        self._now_ns = 0

    def now_ns(self) -> int:
        return self._now_ns

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        self.deadlines.append(deadline_ns)
        self._now_ns = max(self._now_ns, deadline_ns)


class Line(FrameProcessor):
    """The end of the pipeline: keeps what arrives, and sends what the test wants sent."""

    def __init__(self) -> None:
        super().__init__(enable_direct_mode=True)
        self.frames: list[Frame] = []
        self.worker: PipelineWorker | None = None
        self._arrived = asyncio.Event()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        self.frames.append(frame)
        self._arrived.set()
        await self.push_frame(frame, direction)

    async def send(self, *frames: Frame) -> None:
        """Queue frames at the pipeline's start."""
        assert self.worker is not None
        for frame in frames:
            await self.worker.queue_frame(frame)

    def of(self, kind: type[F]) -> list[F]:
        """The frames of that kind that arrived."""
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait for a frame after which `ready()` holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not ready():
                self._arrived.clear()
                await self._arrived.wait()


@asynccontextmanager
async def running(*processors: FrameProcessor, params: PipelineParams) -> AsyncIterator[Line]:
    """Run the processors in a pipeline; ends them gracefully."""
    line = Line()
    line.worker = worker_of([*processors, line], params)
    async with at_work(line.worker):
        yield line
