"""Services in a running pipeline of pipecat's, so that they are set up as in an agent."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pipecat.frames.frames import EndFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.workers.runner import WorkerRunner


@asynccontextmanager
async def running(
    processors: Sequence[FrameProcessor], params: PipelineParams
) -> AsyncIterator[PipelineWorker]:
    """Run them, from when all have begun; what was queued is done before this returns."""
    worker = PipelineWorker(
        Pipeline(list(processors)), params=params, enable_rtvi=False, idle_timeout_secs=None
    )
    begun = asyncio.Event()

    async def on_started(*_: object) -> None:
        begun.set()

    worker.add_event_handler("on_pipeline_started", on_started)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    run = asyncio.create_task(runner.run())
    await begun.wait()
    yield worker
    await worker.queue_frame(EndFrame())
    await run
