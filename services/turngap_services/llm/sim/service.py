"""The simulated model as a pipecat service."""

from collections.abc import Iterator
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

from turngap.core.clock import NS_PER_S, Clock
from turngap_services.llm.plain import PlainAdapter, plain_messages
from turngap_services.llm.sim.script import Line, PromptCache, due_ns, reply_to, tokens
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
        self._cache = PromptCache()

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

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
        """Read a conversation beside the pipeline; its reply comes whole, at most `max_tokens`."""
        messages = plain_messages(context)
        start_ns = await self._read(messages)
        heard = _heard(messages)
        reply = reply_to(heard, self._script, self._sim.default_reply) if heard else ""
        said = tokens(reply or self._sim.default_reply)[:max_tokens]
        for _, at_ns in zip(said, self._due_ns(start_ns, heard), strict=False):
            await self._clock.sleep_until_ns(at_ns)
        return "".join(said)

    async def _read(self, messages: list[dict[str, Any]]) -> int:
        """Read the prompt, in the time that it takes. Returns when that was done (ns)."""
        start_ns = self._clock.now_ns()
        if self._sim.prefill_tokens_per_s is None:
            return start_ns
        prompt = _prompt(messages)
        read_ns = self._cache.unread(prompt) * NS_PER_S / self._sim.prefill_tokens_per_s
        await self._clock.sleep_until_ns(start_ns + round(read_ns))
        self._cache.read(prompt)
        return start_ns + round(read_ns)

    def _due_ns(self, start_ns: int, heard: list[str]) -> Iterator[int]:
        """When each token of a reply is due."""
        return due_ns(
            start_ns,
            key=f"{self._sim.seed}|{len(heard)}|{heard[-1] if heard else ''}",
            ttft_ms=self._sim.ttft_ms,
            tokens_per_s=self._sim.tokens_per_s,
            jitter=self._sim.jitter,
        )

    async def _answer(self, context: LLMContext) -> None:
        await self.start_ttfb_metrics()
        messages = plain_messages(context)
        start_ns = await self._read(messages)
        heard = _heard(messages)
        if not heard:
            reply = self._sim.default_reply
        else:
            reply = reply_to(heard, self._script, self._sim.default_reply)
        due = self._due_ns(start_ns, heard)
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
            read = len(_prompt(messages))
            await self.start_llm_usage_metrics(
                LLMTokenUsage(prompt_tokens=read, completion_tokens=said, total_tokens=read + said)
            )


def _prompt(messages: list[dict[str, Any]]) -> list[str]:
    """The tokens that the model reads."""
    return [token for message in messages for token in tokens(message["content"])]


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
