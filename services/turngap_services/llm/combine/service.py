"""An LLM made of several: to the pipeline it is one service, with one reply and one bill."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
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
from turngap_services.llm.combine.ask import Ask, PartFailedError, prompt_chars
from turngap_services.llm.combine.meter import CHARS_A_TOKEN, Meter, tokens_of
from turngap_services.llm.combine.part import Part, Patience
from turngap_services.llm.combine.settings import CombinedSettings, PairSettings
from turngap_services.llm.combine.tools import follows_a_tool, written
from turngap_services.llm.plain import PlainAdapter, plain_settings


class CombinedLLMService(LLMService[PlainAdapter]):
    """Several models; those below decide who answers.

    Tools are called here, for the part whose reply is kept, when it has been said. Their results
    are answered by whoever called them.
    """

    adapter_class = PlainAdapter

    def __init__(self, *, name: str, settings: CombinedSettings, clock: Clock) -> None:
        super().__init__(settings=plain_settings(name))
        self._combined = settings
        self._clock = clock
        patience = Patience(settings.first_token_ms, settings.stall_ms)
        self._parts = [
            Part(
                *(spec.name, spec.create(own, clock), price, clock),
                tools=spec.why_no_tools(own) is None,
                patience=patience,
            )
            for (spec, own), price in zip(settings.parts(), settings.prices(), strict=True)
        ]
        self._asks: list[Ask] = []
        self._beside: list[Ask] = []
        self._counts: dict[str, float] = {}
        self._user_end_ns: int | None = None
        # Whose reply is heard; who called what since the person's last words.
        self._kept: Ask | None = None
        self._called: dict[str, Part] = {}

    @property
    def _trusted(self) -> Part:
        return self._parts[0]

    @abstractmethod
    def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        """The reply's pieces; closed when it is not wanted any more. Says who is `_kept`.

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
        prompt = self._trusted.prompt(context)
        ask = Ask(self._trusted, prompt_chars(prompt), self._clock.now_ns())
        self._beside.append(ask)
        said = await self._trusted.service.run_inference(
            prompt, max_tokens, system_instruction, response_schema
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

    async def _one_of(self, parts: Sequence[Part], context: LLMContext) -> Ask:
        """Ask one after the other until one has something to say or to be called.

        Raises:
            PartFailedError: none has.
        """
        failed: list[Ask] = []
        for part in parts:
            ask = await self._ask(part, context)
            await ask.ready.wait()
            if ask.answers:
                for other in failed:
                    self._fell_back(other)
                return ask
            failed.append(ask)
        raise PartFailedError("; ".join(f"{ask.failed}" for ask in failed))

    def _answerers(self) -> list[Part]:
        """Who may answer a tool's result: who called last, then the others that know of tools."""
        callers = reversed(self._called.values())
        able = [self._trusted, *self._parts]
        known = dict.fromkeys([*callers, *(part for part in able if part.tools)])
        return list(known) or [self._trusted]

    async def _answer_tools(self, context: LLMContext) -> AsyncGenerator[str]:
        """What is said to the results of tools; as `_reply`."""
        self._kept = await self._one_of(self._answerers(), context)
        async for piece in self._kept.text():
            yield piece

    def _pieces(self, context: LLMContext) -> AsyncGenerator[str]:
        if follows_a_tool(context):
            return self._answer_tools(context)
        self._called = {}
        return self._reply(context)

    async def _call(self, context: LLMContext) -> None:
        """Run the tools that the reply which was heard calls; nobody else's.

        What another part has called in this turn is not called again: what it did stays done.
        """
        calls = self._kept.calls if self._kept else ()
        if self._kept is None or not calls:
            return
        part = self._kept.part
        for call in map(written, calls):
            before = self._called.setdefault(call, part)
            if before is not part:
                await self.push_error(f"{part.name}: calls {call}, as {before.name} did before it")
                return
        await self.run_function_calls([replace(call, context=context) for call in calls])

    async def _respond(self, context: LLMContext) -> None:
        # What was asked beside the conversation since the last answer is on this one's bill.
        self._asks, self._beside, self._counts = self._beside, [], {}
        self._kept = None
        meter = Meter(self._asks)
        await self.push_frame(LLMFullResponseStartFrame())
        await self.start_processing_metrics()
        await self.start_ttfb_metrics()
        try:
            async with aclosing(self._pieces(context)) as pieces:
                async for piece in pieces:
                    await self.stop_ttfb_metrics()
                    # Told as it is spent: who is interrupted can tell nothing after it.
                    await self.push_frame(self._counted(LLMTextFrame(piece), meter))
            await self.stop_ttfb_metrics()  # of a call, where nothing was said
        except PartFailedError as e:
            self._kept = None
            await self.push_error(str(e), exception=e)
        finally:
            await asyncio.gather(*(part.cancel() for part in self._parts))
            await self._tell_usage()
            await self.stop_processing_metrics()
            await self.push_frame(self._counted(LLMFullResponseEndFrame(), meter))
        # Behind the figures: from a tool's result on, what belongs to a guess is void.
        await self._call(context)

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
