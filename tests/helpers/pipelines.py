"""Services and processors in a pipeline of pipecat's that runs: set up as they are in an agent.

What tests and benchmarks put at its ends, and how they wait for what comes, is their own.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from pipecat.frames.frames import EndFrame, ErrorFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.workers.runner import WorkerRunner

# Reached only where something hangs.
PATIENCE_S = 20.0


def worker_of(processors: Sequence[FrameProcessor], params: PipelineParams) -> PipelineWorker:
    """Build a pipeline of these alone: no one uses RTVI with it, and it may be idle for ever."""
    return PipelineWorker(
        Pipeline(list(processors)), params=params, enable_rtvi=False, idle_timeout_secs=None
    )


@asynccontextmanager
async def at_work(
    worker: PipelineWorker,
    *,
    patience_s: float | None = PATIENCE_S,
    passing: Callable[[], Awaitable[object]] | None = None,
) -> AsyncIterator[None]:
    """Run it, from when all have begun; what was queued is done before this returns.

    Where the block fails, the pipeline is cancelled instead. One whose processor fails as it begins
    would never have begun.

    Args:
        worker: what runs.
        patience_s: for the beginning, and again for the end; None waits for as long as it takes.
        passing: lets time pass, again and again until the end is reached, where a manual clock
            stands still by itself.

    Raises:
        RuntimeError: a processor failed before it had begun; the message says which and why.
        TimeoutError: it did not begin or end within `patience_s`.
    """
    begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def on_started(*_: object) -> None:
        if not begun.done():
            begun.set_result(None)

    async def on_error(_: object, frame: ErrorFrame) -> None:
        if not begun.done():
            begun.set_exception(RuntimeError(f"{frame.processor}: {frame.error}"))

    worker.add_event_handler("on_pipeline_started", on_started)
    worker.add_event_handler("on_pipeline_error", on_error)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    run = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(patience_s):
            await begun
        yield
        await worker.queue_frame(EndFrame())
        async with asyncio.timeout(patience_s):
            while passing is not None and not run.done():
                await passing()
            await run
    finally:
        if not run.done():
            await worker.cancel()
            await run
