"""One LLM inside another: asked, listened to and cancelled as a pipeline of its own."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage, LLMUsageMetricsData
from pipecat.pipeline.pipeline import Pipeline, PipelineSink, PipelineSource
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.llm_service import LLMService

from turngap.backends import Price
from turngap.core.clock import Clock


class PartFailedError(Exception):
    """A part said that it cannot answer, or not the whole of it."""


class Ask:
    """One request to a part, and what has come of it.

    Attributes:
        pieces: how many pieces of text came; with most services a piece is a token.
        prompt_chars: length of what it was asked with.
        used: the tokens that the part says it used; None: it has not said.
        first_ms: from the request to the first piece; None: there is none.
        failed: why the part cannot answer; None: it can.
        ready: set once it can be told whether it answers.
        ended: set once no more will come.
        said: its text so far.
    """

    def __init__(self, part: "Part", prompt_chars: int) -> None:
        self.part = part
        self.prompt_chars = prompt_chars
        self.pieces = 0
        self.used: LLMTokenUsage | None = None
        self.first_ms: float | None = None
        self.failed: str | None = None
        self.over = False
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.said = ""
        self._said: asyncio.Queue[str | None] = asyncio.Queue()

    @property
    def answers(self) -> bool:
        """Whether there is something to say."""
        return self.pieces > 0

    async def text(self) -> AsyncGenerator[str]:
        """Its pieces as they come.

        Raises:
            PartFailedError: it ended by an error, or without a word.
        """
        while (piece := await self._said.get()) is not None:
            yield piece
        if self.failed is not None:
            raise PartFailedError(self.failed)

    def say(self, piece: str, after_ms: float) -> None:
        """A piece came."""
        if self.over:
            return
        if not self.pieces:
            self.first_ms = after_ms
        self.pieces += 1
        self.said += piece
        self._said.put_nowait(piece)
        self.ready.set()

    def end(self, error: str | None = None) -> None:
        """No more will come."""
        if self.over:
            return
        self.over = True
        self.failed = error or (None if self.pieces else f"{self.part.name} said nothing")
        self._said.put_nowait(None)
        self.ready.set()
        self.ended.set()


def prompt_chars(context: LLMContext) -> int:
    """The length of what a model is asked with."""
    messages = (m for m in context.get_messages() if isinstance(m, dict))
    return sum(len(str(m.get("content", ""))) for m in messages)


class Part:
    """An LLM service that answers to another instead of to the pipeline.

    It runs in a pipeline of its own, so that an interruption cancels its request as it would in the
    agent's; what it pushes is heard here alone.

    Attributes:
        name: of its backend.
        price: per million tokens, where known.
    """

    def __init__(self, name: str, service: LLMService[Any], price: Price | None, clock: Clock):
        self.name = name
        self.price = price
        self.service = service
        self._clock = clock
        self._ask: Ask | None = None
        self._asked_ns = 0
        self._settled = asyncio.Event()
        source, sink = PipelineSource(self._hear), PipelineSink(self._hear)
        self._pipeline = Pipeline([service], source=source, sink=sink)

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """As a processor's; observers see the whole alone, and what is used is always told."""
        await self._pipeline.setup(replace(setup, observer=None, enable_usage_metrics=True))

    async def cleanup(self) -> None:
        """As a processor's."""
        await self._pipeline.cleanup()

    async def hand(self, frame: Frame) -> None:
        """A frame that begins or ends the session."""
        await self._pipeline.queue_frame(frame)

    async def ask(self, context: LLMContext) -> Ask:
        """Ask for a reply; what comes of one before is not listened to any more."""
        ask = self._ask = Ask(self, prompt_chars(context))
        self._asked_ns = self._clock.now_ns()
        # A copy: what is said meanwhile belongs to the conversation, and not to this request.
        # Without tools: whose answer is heard is not decided yet, and what a tool did stays done.
        copy = LLMContext(list(context.messages))
        await self._pipeline.queue_frame(LLMContextFrame(copy))
        return ask

    async def cancel(self) -> None:
        """Drop the request that runs, if one does; returns when its service has let go of it."""
        if self._ask is None or self._ask.over:
            return
        self._settled.clear()
        await self._pipeline.queue_frame(InterruptionFrame())
        await self._settled.wait()
        self._ask.end()

    async def _hear(self, frame: Frame, direction: FrameDirection) -> None:
        ask = self._ask
        match frame:
            case InterruptionFrame():
                self._settled.set()
            case _ if ask is None:
                pass
            case LLMTextFrame():
                ask.say(frame.text, (self._clock.now_ns() - self._asked_ns) / 1e6)
            case LLMFullResponseEndFrame():
                ask.end()
            case ErrorFrame():
                ask.end(f"{self.name}: {frame.error}")
            case MetricsFrame():
                for data in frame.data:
                    if isinstance(data, LLMUsageMetricsData):
                        ask.used = data.value
            case _:
                pass
