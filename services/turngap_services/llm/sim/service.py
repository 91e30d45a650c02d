"""The simulated models as pipecat services."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

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

from turngap.backends import COUNTS
from turngap.core.clock import NS_PER_S, Clock
from turngap_services.llm.plain import PlainAdapter, plain_messages, plain_settings
from turngap_services.llm.sim import LibrarySettings, SimSettings
from turngap_services.llm.sim.calls import offers, requests, results_of, written
from turngap_services.llm.sim.script import (
    Line,
    PromptCache,
    due_ns,
    line_for,
    reply_to,
    tokens,
)

if TYPE_CHECKING:
    from turngap.scenario.model import Call


class LibraryLLMService(LLMService[PlainAdapter]):
    """Answers from the scenario library, token by token, at a pace that those below decide.

    Where the library says that a tool is called first, and the conversation offers it, it is.
    pipecat cancels the frame being processed at an interruption, and the reply with it.
    """

    adapter_class = PlainAdapter

    def __init__(
        self, *, name: str, settings: LibrarySettings, script: tuple[Line, ...], clock: Clock
    ) -> None:
        super().__init__(settings=plain_settings(name, seed=settings.seed))
        self._spoken = settings
        self._script = script
        self._clock = clock

    @abstractmethod
    def _paced(self, said: list[str], messages: list[dict[str, Any]]) -> AsyncGenerator[str]:
        """The reply's tokens as they come; closed when the reply is not wanted any more."""

    def counts_of(self, heard: list[str]) -> dict[str, float]:
        """Figures of the turn to be stored with it, by name."""
        return {}

    def _reply(self, heard: list[str], results: dict[str, Any] | None = None) -> str:
        """What is said to that, with what the tools gave."""
        default = self._spoken.default_reply
        return reply_to(heard, self._script, default, results) if heard else default

    def _calls(self, heard: list[str]) -> tuple["Call", ...]:
        """What is called before that is answered."""
        line = line_for(heard, self._script) if heard else None
        return line.calls if line else ()

    def can_generate_metrics(self) -> bool:
        """Yes: pipecat times the first token and counts them."""
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Answer a conversation; pass on everything else."""
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        start = LLMFullResponseStartFrame()
        start.metadata[COUNTS] = self.counts_of(turns_heard(plain_messages(frame.context)))
        await self.push_frame(start)
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
        said = tokens(self._reply(turns_heard(messages)))[:max_tokens]
        return "".join([piece async for piece in self._paced(said, messages)])

    async def _answer(self, context: LLMContext) -> None:
        await self.start_ttfb_metrics()
        messages = plain_messages(context, tools=True)
        heard, results = turns_heard(messages), results_of(context)
        calls = () if results is not None else self._calls(heard)
        if not offers(context, calls):
            calls = ()
        text = written(calls) if calls else self._reply(heard, results)
        said = 0
        try:
            async with aclosing(self._paced(tokens(text), messages)) as pieces:
                async for piece in pieces:
                    if said == 0:
                        await self.stop_ttfb_metrics()
                        if calls:  # the first token of a call is the answer's, as pipecat has it
                            await self.stop_ttfat_metrics()
                    if not calls:
                        await self._push_llm_text(piece)
                    said += 1
        finally:
            # As a provider would bill it, an interrupted reply included.
            read = len(prompt_tokens(messages))
            await self.start_llm_usage_metrics(
                LLMTokenUsage(prompt_tokens=read, completion_tokens=said, total_tokens=read + said)
            )
        # Of a guess nothing is called: pipecat withdraws it, and it is asked again.
        await self.run_function_calls(requests(calls, context))


class SimLLMService(LibraryLLMService):
    """Paced as its settings say."""

    def __init__(self, *, settings: SimSettings, script: tuple[Line, ...], clock: Clock) -> None:
        super().__init__(name="sim", settings=settings, script=script, clock=clock)
        self._sim = settings
        self._cache = PromptCache()

    async def _paced(self, said: list[str], messages: list[dict[str, Any]]) -> AsyncGenerator[str]:
        start_ns = await self._read(messages)
        for piece, at_ns in zip(said, self._due_ns(start_ns, turns_heard(messages)), strict=False):
            await self._clock.sleep_until_ns(at_ns)
            yield piece

    async def _read(self, messages: list[dict[str, Any]]) -> int:
        """Read the prompt, in the time that it takes. Returns when that was done (ns)."""
        start_ns = self._clock.now_ns()
        if self._sim.prefill_tokens_per_s is None:
            return start_ns
        prompt = prompt_tokens(messages)
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


def prompt_tokens(messages: list[dict[str, Any]]) -> list[str]:
    """The tokens that the model reads."""
    return [token for message in messages for token in tokens(message["content"])]


def turns_heard(messages: list[dict[str, Any]]) -> list[str]:
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
