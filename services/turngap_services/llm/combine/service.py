"""An LLM made of several: to the pipeline it is one service, with one reply and one bill."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.llm_service import LLMService

from turngap.backends import COUNTS
from turngap.core.clock import Clock, ms_to_ns
from turngap_services.llm.combine.meter import CHARS_A_TOKEN, Meter, tokens_of
from turngap_services.llm.combine.part import Ask, Part, PartFailedError, prompt_chars
from turngap_services.llm.combine.settings import CombinedSettings, PairSettings
from turngap_services.llm.plain import PlainAdapter, plain_settings


class CombinedLLMService(LLMService[PlainAdapter]):
    """Several models; those below decide who answers."""

    adapter_class = PlainAdapter

    def __init__(self, *, name: str, settings: CombinedSettings, clock: Clock) -> None:
        super().__init__(settings=plain_settings(name))
        self._combined = settings
        self._clock = clock
        self._parts = [
            Part(spec.name, spec.create(own, clock), price, clock)
            for (spec, own), price in zip(settings.parts(), settings.prices(), strict=True)
        ]
        self._asks: list[Ask] = []
        self._beside: list[Ask] = []
        self._counts: dict[str, float] = {}
        self._user_end_ns: int | None = None

    @property
    def _trusted(self) -> Part:
        return self._parts[0]

    @abstractmethod
    def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        """The reply's pieces; closed when it is not wanted any more.

        Raises:
            PartFailedError: nobody can answer, or not to the end.
        """

    def can_generate_metrics(self) -> bool:
        """Yes: pipecat times the first token and counts them."""
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """With its parts."""
        await super().setup(setup)
        for part in self._parts:
            await part.setup(setup)

    async def cleanup(self) -> None:
        """With its parts."""
        await super().cleanup()
        for part in self._parts:
            await part.cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer a conversation; pass on everything else, what begins and ends it to all parts."""
        await super().process_frame(frame, direction)
        match frame:
            case StartFrame() | EndFrame() | CancelFrame():
                for part in self._parts:
                    await part.hand(frame)
            case VADUserStoppedSpeakingFrame():
                self._user_end_ns = self._clock.now_ns() - ms_to_ns(frame.stop_secs * 1000)
            case UserStoppedSpeakingFrame() if self._user_end_ns is None:
                self._user_end_ns = self._clock.now_ns()
            case UserStartedSpeakingFrame():
                self._user_end_ns = None
            case _:
                pass
        if isinstance(frame, LLMContextFrame):
            await self._respond(frame.context)
        else:
            await self.push_frame(frame, direction)

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """A question beside the conversation goes to the most trusted model, and is paid for."""
        ask = Ask(self._trusted, prompt_chars(context))
        self._beside.append(ask)
        said = await self._trusted.service.run_inference(
            context, max_tokens, system_instruction, response_schema
        )
        ask.pieces = -(-len(said or "") // CHARS_A_TOKEN)
        return said

    def _left_ms(self) -> float:
        """What is left of this turn's budget for the first token.

        Where nothing is known of the person's last word, it begins with the request.
        """
        now_ns = self._clock.now_ns()
        spent_ms = (now_ns - (self._user_end_ns or now_ns)) / 1e6
        return self._combined.budget_ms - self._combined.after_llm_ms - spent_ms

    async def _ask(self, part: Part, context: LLMContext) -> Ask:
        ask = await part.ask(context)
        self._asks.append(ask)
        return ask

    def _fell_back(self, ask: Ask) -> None:
        """Another part answers, because this one failed."""
        logger.warning(f"{self}: fell back, {ask.failed}")
        self._counts["combined_fell_back"] = 1.0

    async def _respond(self, context: LLMContext) -> None:
        # What was asked beside the conversation since the last answer is on this one's bill.
        self._asks, self._beside, self._counts = self._beside, [], {}
        meter = Meter(self._asks)
        await self.push_frame(LLMFullResponseStartFrame())
        await self.start_processing_metrics()
        await self.start_ttfb_metrics()
        try:
            async with aclosing(self._reply(context)) as pieces:
                async for piece in pieces:
                    await self.stop_ttfb_metrics()
                    # Told as it is spent: who is interrupted can tell nothing after it.
                    await self.push_frame(self._counted(LLMTextFrame(piece), meter))
        except PartFailedError as e:
            await self.push_error(str(e), exception=e)
        finally:
            await asyncio.gather(*(part.cancel() for part in self._parts))
            await self._tell_usage()
            await self.stop_processing_metrics()
            await self.push_frame(self._counted(LLMFullResponseEndFrame(), meter))

    def _counted(self, frame: Frame, meter: Meter) -> Frame:
        frame.metadata[COUNTS] = {**meter.take(), **self._counts}
        self._counts = {}
        return frame

    async def _tell_usage(self) -> None:
        used = [tokens_of(ask) for ask in self._asks]
        prompt, said = sum(p for p, _ in used), sum(c for _, c in used)
        await self.start_llm_usage_metrics(
            LLMTokenUsage(prompt_tokens=prompt, completion_tokens=said, total_tokens=prompt + said)
        )


class PairLLMService(CombinedLLMService):
    """A fast and a full model."""

    def __init__(self, *, name: str, settings: PairSettings, clock: Clock) -> None:
        super().__init__(name=name, settings=settings, clock=clock)
        self._fast, self._full = self._parts

    @property
    def _trusted(self) -> Part:
        return self._full
