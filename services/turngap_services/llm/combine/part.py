"""One LLM inside another: asked, listened to and cancelled as a pipeline of its own."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import Any

from pipecat.frames.frames import (
    ErrorFrame,
    Frame,
    FunctionCallFromLLM,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    LLMThoughtTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData, TTFATMetricsData
from pipecat.pipeline.pipeline import Pipeline, PipelineSink, PipelineSource
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.llm_service import LLMService

from turngap.backends import Price
from turngap.core.clock import Clock, ms_to_ns
from turngap.thoughts import guard_thoughts
from turngap_services.llm.combine import CombinedSettings
from turngap_services.llm.combine.ask import Ask, prompt_chars


class Part:
    """An LLM service that answers to another instead of to the pipeline.

    It runs in a pipeline of its own, so that an interruption cancels its request as it would in the
    agent's, and what it pushes is heard only here. Its tool calls are noted and not run: it is not
    decided yet whose answer is heard, and what a tool did cannot be undone.

    Attributes:
        name: the backend's name.
        price: price per million tokens, if known.
        tools: whether it calls tools, and so is offered them.
    """

    def __init__(
        self,
        name: str,
        service: LLMService[Any],
        price: Price | None,
        clock: Clock,
        *,
        tools: bool,
        settings: CombinedSettings,
    ) -> None:
        self.name = name
        self.price = price
        self.tools = tools
        self.service = service
        self._clock = clock
        self._settings = settings
        self._ask: Ask | None = None
        self._watching: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        self._settled.set()
        guard_thoughts(service)
        service.run_function_calls = self._wants
        source, sink = PipelineSource(self._hear), PipelineSink(self._hear)
        self.pipeline = Pipeline([service], source=source, sink=sink)

    async def setup(self, setup: FrameProcessorSetup) -> None:
        # Observers see only the combined service. Usage and the first token's instant, even that of
        # a call, are always needed.
        told = replace(setup, observer=None, enable_metrics=True, enable_usage_metrics=True)
        await self.pipeline.setup(replace(told, report_only_initial_ttfb=False))

    async def cleanup(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self.pipeline.cleanup()

    def prompt(self, context: LLMContext) -> LLMContext:
        """Return a copy of the conversation, with its tools if the part calls tools.

        What is said meanwhile belongs to the conversation and not to this request.
        """
        messages = list(context.messages)
        if not self.tools:
            return LLMContext(messages)
        return LLMContext(messages, context.tools, context.tool_choice)

    async def ask(self, context: LLMContext) -> Ask:
        """Ask for a reply; anything that still comes of an earlier request is ignored."""
        await self._settled.wait()
        prompt = self.prompt(context)
        ask = self._ask = Ask(self, prompt_chars(prompt), self._clock.now_ns())
        self._watching = asyncio.create_task(self._watch(ask))
        await self.pipeline.queue_frame(LLMContextFrame(prompt))
        return ask

    async def cancel(self) -> None:
        """Drop the running request, if there is one; return when its service has let go of it."""
        if self._ask is None:
            return
        if self._ask.over:
            await self._settled.wait()
            return
        await self._drop()
        self._ask.end()

    async def _drop(self) -> None:
        if self._settled.is_set():
            self._settled.clear()
            await self.pipeline.queue_frame(InterruptionFrame())
        await self._settled.wait()

    async def _watch(self, ask: Ask) -> None:
        """Give a request up that is silent too long, so that whoever waits for it goes on."""
        while not ask.over:
            begun = ask.begun.is_set()
            most_ms = self._settings.stall_ms if begun else self._settings.first_token_ms
            due_ns = ask.news_ns + ms_to_ns(most_ms)
            if self._clock.now_ns() >= due_ns:
                what = "nothing more" if begun else "no first token"
                ask.given_up = True
                ask.end(f"{self.name}: {what} for {most_ms:g} ms")
                await self._drop()
                return
            news = ask.ended if begun else ask.begun
            await first_of(news.wait(), self._clock.sleep_until_ns(due_ns))

    async def _wants(self, function_calls: Sequence[FunctionCallFromLLM]) -> None:
        """Take the place of the service's own method, which would run the calls."""
        if self._ask is not None and function_calls:
            self._ask.call(function_calls, self._clock.now_ns())

    async def _hear(self, frame: Frame, direction: FrameDirection) -> None:
        ask = self._ask
        match frame:
            case InterruptionFrame():
                self._settled.set()
            case _ if ask is None:
                pass
            case LLMTextFrame():
                ask.say(frame.text, self._clock.now_ns())
            case LLMThoughtTextFrame():
                ask.think(self._clock.now_ns())
            case LLMFullResponseEndFrame():
                ask.end()
            case ErrorFrame():
                ask.end(f"{self.name}: {frame.error}")
            case MetricsFrame():
                for data in frame.data:
                    if isinstance(data, LLMUsageMetricsData):
                        ask.used = data.value
                    elif isinstance(data, TTFATMetricsData):
                        ask.begin(self._clock.now_ns())
            case _:
                pass


async def first_of(*waits: Awaitable[object]) -> None:
    """Return when one of them is over, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
