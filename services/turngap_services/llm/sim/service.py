"""The simulated model as a pipecat service."""

from typing import Any

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
from pipecat.services.settings import LLMSettings

from turngap.core.clock import Clock
from turngap_services.llm.plain import PlainAdapter, plain_messages
from turngap_services.llm.sim.script import Line, due_ns, reply_to, tokens
from turngap_services.llm.sim.settings import SimSettings


class SimLLMService(LLMService[PlainAdapter]):
    """Answers from the scenario library with the timing that its settings say.

    pipecat cancels the frame being processed at an interruption, and the reply with it.
    """

    adapter_class = PlainAdapter

    def __init__(self, *, settings: SimSettings, script: tuple[Line, ...], clock: Clock) -> None:
        super().__init__(
            settings=LLMSettings(
                model="sim",
                system_instruction=None,
                temperature=None,
                max_tokens=None,
                top_p=None,
                top_k=None,
                frequency_penalty=None,
                presence_penalty=None,
                seed=settings.seed,
                filter_incomplete_user_turns=False,
                user_turn_completion_config=None,
            )
        )
        self._sim = settings
        self._script = script
        self._clock = clock

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
        finally:
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())

    async def _answer(self, context: LLMContext) -> None:
        start_ns = self._clock.now_ns()
        await self.start_ttfb_metrics()
        messages = plain_messages(context)
        heard = _heard(messages)
        if not heard:
            reply = self._sim.default_reply
        else:
            reply = reply_to(heard, self._script, self._sim.default_reply)
        due = due_ns(
            start_ns,
            key=f"{self._sim.seed}|{len(heard)}|{heard[-1] if heard else ''}",
            ttft_ms=self._sim.ttft_ms,
            tokens_per_s=self._sim.tokens_per_s,
            jitter=self._sim.jitter,
        )
        said = 0
        try:
            for piece, at_ns in zip(tokens(reply), due, strict=False):
                await self._clock.sleep_until_ns(at_ns)
                if said == 0:
                    await self.stop_ttfb_metrics()
                await self._push_llm_text(piece)
                said += 1
        finally:
            # As a provider would bill it, an interrupted reply included.
            read = sum(len(tokens(m["content"])) for m in messages)
            await self.start_llm_usage_metrics(
                LLMTokenUsage(prompt_tokens=read, completion_tokens=said, total_tokens=read + said)
            )


def _heard(messages: list[dict[str, Any]]) -> list[str]:
    """What the user said turn by turn; messages with no answer between them are one turn."""
    turns: list[str] = []
    answered = True
    for message in messages:
        if message["role"] == "assistant":
            answered = True
        elif message["role"] == "user" and message["content"].strip():
            if answered:
                turns.append(message["content"])
            else:
                turns[-1] += " " + message["content"]
            answered = False
    return turns
