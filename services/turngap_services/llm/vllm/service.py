"""vLLM as a pipecat service, with the server's own times of each reply."""

import asyncio
from typing import Any

from pipecat.frames.frames import (
    Frame,
    InterruptionFrame,
    MetricsFrame,
    StartFrame,
    UserStartedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.llm import OpenAILLMService

from turngap.backends import COUNTS
from turngap_services.llm.once import AskedOnce
from turngap_services.llm.vllm.times import ServerTimes


class VllmLLMService(AskedOnce, OpenAILLMService):
    """Pipecat's service for a vLLM server.

    The server's own times are read when the reply has ended, so that nobody waits for them, and
    pushed then. Another reading when the person begins to speak excludes other people's earlier
    requests. An interrupted reply gets no times, as the server does not count it.
    """

    def __init__(self, *, times: ServerTimes, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._times = times
        self._reply: object | None = None  # the latest, unless it was interrupted
        self._readings: set[asyncio.Task[None]] = set()

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._read()  # the times of a reply are the difference of two readings

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, InterruptionFrame):
            self._reply = None
        elif isinstance(frame, UserStartedSpeakingFrame):
            self._read()
        await super().process_frame(frame, direction)

    async def run_inference(self, *args: Any, **kwargs: Any) -> str | None:
        answer = await super().run_inference(*args, **kwargs)
        self._read()  # so that the next turn's times exclude this question
        return answer

    async def _process_context(self, context: LLMContext) -> None:
        reply = self._reply = object()
        await super()._process_context(context)
        self._read(reply)

    def _read(self, reply: object | None = None) -> None:
        # As with tokens, figures that nobody collects are not asked for.
        if self.usage_metrics_enabled:
            task = asyncio.create_task(self._tell(reply))
            self._readings.add(task)
            task.add_done_callback(self._readings.discard)

    async def _tell(self, reply: object | None) -> None:
        counts = await self._times.since()
        if counts and reply is not None and reply is self._reply:
            frame = MetricsFrame(data=[])
            frame.metadata[COUNTS] = counts
            await self.push_frame(frame)

    async def cleanup(self) -> None:
        for task in self._readings:
            task.cancel()
        await super().cleanup()
