"""Tells observers of a conversation only what one of them looks at.

It takes the place of a private part of pipecat's worker: look at that anew with each version.
"""

from pipecat.frames.frames import InputAudioRawFrame
from pipecat.observers.base_observer import FrameProcessed, FramePushed
from pipecat.pipeline.worker import PipelineWorker
from pipecat.pipeline.worker_observer import WorkerObserver


class SparingObserver(WorkerObserver):
    """pipecat's, without what nobody looks at here.

    pipecat tells each observer of every step of every frame, by a queue and a task of its own. The
    caller's audio comes in fifty packets a second, which four processors push on and process: 400
    wake-ups a second with two observers, for a call in which nobody speaks.
    """

    async def on_process_frame(self, data: FrameProcessed) -> None:
        """Tell nobody: the observers of this agent look at pushes."""

    async def on_push_frame(self, data: FramePushed) -> None:
        if not isinstance(data.frame, InputAudioRawFrame):
            await super().on_push_frame(data)


def observe_sparingly(worker: PipelineWorker) -> None:
    """Give a worker that has not run yet a `SparingObserver` in the place of pipecat's."""
    told = worker._observer  # pyright: ignore[reportPrivateUsage]
    observers = told._observers  # pyright: ignore[reportPrivateUsage]
    worker._observer = SparingObserver(observers=observers)  # pyright: ignore[reportPrivateUsage]
