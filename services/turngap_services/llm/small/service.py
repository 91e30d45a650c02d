"""The small model as a pipecat service."""

import asyncio
import threading

from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService

from turngap.core.errors import AgentError
from turngap_services.llm.plain import PlainAdapter, plain_messages, plain_settings
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.model import Reply, SmallModel


class SmallLLMService(LLMService[PlainAdapter]):
    """Answers with a model in this process; the model runs in a thread, token by token.

    pipecat cancels the frame being processed at an interruption; the model then stops with the
    token that it is at.
    """

    adapter_class = PlainAdapter

    def __init__(self, *, settings: SmallSettings, model: SmallModel) -> None:
        super().__init__(
            settings=plain_settings(
                model.name,
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                seed=settings.seed,
            )
        )
        self._model = model

    def can_generate_metrics(self) -> bool:
        """Yes: pipecat times the first token and counts them."""
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer a conversation; pass on everything else."""
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        await self.start_processing_metrics()
        try:
            await self._answer(frame.context)
        except AgentError as e:
            await self.push_error(f"{e.message} ({e.hint})", exception=e)
        finally:
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())

    async def _answer(self, context: LLMContext) -> None:
        await self.start_ttfb_metrics()
        prompt = self._model.prompt(plain_messages(context))
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        stop = threading.Event()

        def hear(piece: str) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def run() -> Reply:
            try:
                return self._model.say(prompt, hear, stop)
            finally:
                loop.call_soon_threadsafe(pieces.put_nowait, None)

        reply = loop.run_in_executor(None, run)
        try:
            said = 0
            while (piece := await pieces.get()) is not None:
                if said == 0:
                    await self.stop_ttfb_metrics()
                said += 1
                await self._push_llm_text(piece)
        finally:
            stop.set()
            done = await reply  # within a token, also when this is cancelled
            await self._count(done)

    async def _count(self, reply: Reply) -> None:
        await self.start_llm_usage_metrics(
            LLMTokenUsage(
                prompt_tokens=reply.prompt_tokens,
                completion_tokens=reply.tokens,
                total_tokens=reply.prompt_tokens + reply.tokens,
            )
        )
