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

    What the server says that a reply took is asked when the reply has ended, so that nobody waits
    for it, and pushed then. Other people's requests of before are left out of it by a reading when
    the person begins to speak; one that is interrupted is not told, as the server counts it not.
    """

    def __init__(self, *, times: ServerTimes, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._times = times
        self._reply: object | None = None  # the one whose times may still be told
        self._readings: set[asyncio.Task[None]] = set()

    async def start(self, frame: StartFrame) -> None:
        """As pipecat's; from here on differences are known."""
        await super().start(frame)
        self._read()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """As pipecat's."""
        if isinstance(frame, InterruptionFrame):
            self._reply = None
        elif isinstance(frame, UserStartedSpeakingFrame):
            self._read()
        await super().process_frame(frame, direction)

    async def run_inference(self, *args: Any, **kwargs: Any) -> str | None:
        """As pipecat's: a question beside the conversation, which is no turn's."""
        answer = await super().run_inference(*args, **kwargs)
        self._read()
        return answer

    async def _process_context(self, context: LLMContext) -> None:
        reply = self._reply = object()
        await super()._process_context(context)
        self._read(reply)

    def _read(self, reply: object | None = None) -> None:
        # As with tokens: what nobody listens to is not asked for.
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
        """As pipecat's."""
        for task in self._readings:
            task.cancel()
        await super().cleanup()
