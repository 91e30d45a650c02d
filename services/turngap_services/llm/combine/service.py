"""An LLM made of several: to the pipeline it is one service, with one reply and one bill."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameProcessorSetup

from turngap.backends import COUNTS
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.tokens import THOUGHT, THOUGHT_MS
from turngap_services.llm.combine import CombinedSettings, PairSettings
from turngap_services.llm.combine.conversation import follows_a_tool, written
from turngap_services.llm.combine.part import (
    CHARS_A_TOKEN,
    Ask,
    Meter,
    Part,
    PartFailedError,
    prompt_chars,
)
from turngap_services.llm.plain import PlainLLMService

Settings = TypeVar("Settings", bound=CombinedSettings)
Pair = TypeVar("Pair", bound=PairSettings)


class CombinedLLMService(PlainLLMService, Generic[Settings]):
    """Several models; subclasses decide which one answers.

    Tools are called here, for the part whose reply is kept, when that reply has been said. The part
    that called a tool answers its result.
    """

    backend: ClassVar[str]

    def __init__(self, *, settings: Settings, clock: Clock) -> None:
        super().__init__(self.backend)
        self._combined = settings
        self._clock = clock
        self._parts = [
            Part(
                *(spec.name, spec.create(own, clock), price, clock),
                tools=spec.why_no_tools(own) is None,
                settings=settings,
            )
            for (spec, own), price in zip(settings.parts(), settings.prices(), strict=True)
        ]
        self._asks: list[Ask] = []
        self._beside: list[Ask] = []
        self._counts: dict[str, float] = {}
        self._user_end_ns: int | None = None
        # The request whose reply is heard; the part that made each call since the person's last
        # words.
        self._kept: Ask | None = None
        self._called: dict[str, Part] = {}

    @property
    def _trusted(self) -> Part:
        return self._parts[0]

    async def _choose(self, context: LLMContext) -> Ask:
        """Ask the parts, and return the request whose reply is heard.

        Raises:
            PartFailedError: no part can answer.
        """
        raise NotImplementedError

    async def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        """Yield the reply's pieces and set `_kept`; closed when the reply is no longer wanted.

        Raises:
            PartFailedError: no part can answer, or not to the end.
        """
        self._kept = await self._choose(context)
        async for piece in self._kept.text():
            yield piece

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        for part in self._parts:
            await part.setup(setup)

    async def cleanup(self) -> None:
        await super().cleanup()
        for part in self._parts:
            await part.cleanup()

    async def _note(self, frame: Frame) -> None:
        match frame:
            case StartFrame() | EndFrame() | CancelFrame():
                for part in self._parts:
                    await part.pipeline.queue_frame(frame)
            case VADUserStoppedSpeakingFrame():
                self._user_end_ns = self._clock.now_ns() - ms_to_ns(frame.stop_secs * 1000)
            case UserStoppedSpeakingFrame() if self._user_end_ns is None:
                self._user_end_ns = self._clock.now_ns()
            case UserStartedSpeakingFrame():
                self._user_end_ns = None
            case _:
                pass

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """Ask the most trusted model beside the conversation; the next turn pays for it."""
        prompt = self._trusted.prompt(context)
        ask = Ask(self._trusted, prompt_chars(prompt), self._clock.now_ns())
        self._beside.append(ask)
        said = await self._trusted.service.run_inference(
            prompt, max_tokens, system_instruction, response_schema
        )
        ask.pieces = -(-len(said or "") // CHARS_A_TOKEN)
        return said

    def _left_ms(self) -> float:
        """Return what is left of this turn's budget for the first token.

        If the end of the person's last word is not known, the budget begins with the request.
        """
        now_ns = self._clock.now_ns()
        spent_ms = (now_ns - (self._user_end_ns or now_ns)) / 1e6
        return self._combined.budget_ms - self._combined.after_llm_ms - spent_ms

    async def _ask(self, part: Part, context: LLMContext) -> Ask:
        ask = await part.ask(context)
        self._asks.append(ask)
        return ask

    def _fell_back(self, ask: Ask) -> None:
        logger.warning(f"{self}: fell back, {ask.failed}")
        self._counts["combined_fell_back"] = 1.0

    async def _one_of(self, parts: Sequence[Part], context: LLMContext) -> Ask:
        """Ask one part after the other until one answers.

        Raises:
            PartFailedError: none does.
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
        """Return who may answer a tool's result: the last caller, then others that call tools."""
        callers = reversed(self._called.values())
        able = [self._trusted, *self._parts]
        known = dict.fromkeys([*callers, *(part for part in able if part.tools)])
        return list(known) or [self._trusted]

    async def _answer_tools(self, context: LLMContext) -> AsyncGenerator[str]:
        """Yield the answer to tools' results, as `_reply` does."""
        self._kept = await self._one_of(self._answerers(), context)
        async for piece in self._kept.text():
            yield piece

    def _pieces(self, context: LLMContext) -> AsyncGenerator[str]:
        if follows_a_tool(context):
            return self._answer_tools(context)
        self._called = {}
        return self._reply(context)

    async def _call(self, context: LLMContext) -> None:
        """Run the tools that the heard reply calls.

        A call that another part made in this turn is not repeated, as what it did stays done.
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
        # This answer's bill includes what was asked beside the conversation since the last one.
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
                    # Costs go out as they arise: after an interruption no frame carries them.
                    await self.push_frame(self._counted(LLMTextFrame(piece), meter))
            await self.stop_ttfb_metrics()  # of a call, if nothing was said
        except PartFailedError as e:
            self._kept = None
            await self.push_error(str(e), exception=e)
        finally:
            await asyncio.gather(*(part.cancel() for part in self._parts))
            if self._kept is not None and self._kept.thoughts:
                self._counts |= {THOUGHT: self._kept.thoughts, THOUGHT_MS: self._kept.thought_ms}
            used = [ask.tokens() for ask in self._asks]
            await self._count_tokens(sum(p for p, _ in used), sum(c for _, c in used))
            await self.stop_processing_metrics()
            await self.push_frame(self._counted(LLMFullResponseEndFrame(), meter))
        # After the figures, as a tool's result makes void whatever belongs to a guess.
        await self._call(context)

    def _counted(self, frame: Frame, meter: Meter) -> Frame:
        frame.metadata[COUNTS] = {**meter.take(), **self._counts}
        self._counts = {}
        return frame


class PairLLMService(CombinedLLMService[Pair]):
    """A fast and a full model."""

    def __init__(self, *, settings: Pair, clock: Clock) -> None:
        super().__init__(settings=settings, clock=clock)
        self._fast, self._full = self._parts

    @property
    def _trusted(self) -> Part:
        return self._full
