"""LLM services of turngap's own, which see a conversation as roles and texts."""

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict

from pipecat.adapters.llm.base_llm_adapter import BaseLLMAdapter
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
)
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import LLMSettings

from turngap.backends import COUNTS
from turngap.core.errors import AgentError
from turngap.thoughts import BEGINS_IN_THOUGHT


class PlainParams(TypedDict):
    """The prompt of a model that sees only roles and texts."""

    messages: list[dict[str, Any]]


class PlainAdapter(BaseLLMAdapter[PlainParams]):
    """Plain messages. The default adapter would import the OpenAI SDK, a second for nothing."""

    @property
    def id_for_llm_specific_messages(self) -> str:
        return "plain"

    async def get_llm_invocation_params(self, context: LLMContext, **kwargs: Any) -> PlainParams:
        return {"messages": plain_messages(context)}

    def to_provider_tools_format(self, tools_schema: ToolsSchema) -> list[Any]:
        return []

    def get_messages_for_logging(self, context: LLMContext) -> list[dict[str, Any]]:
        return plain_messages(context)


def plain_settings(
    model: str,
    *,
    temperature: float | None = None,
    max_tokens: int | None = None,
    seed: int | None = None,
) -> LLMSettings:
    """Build the settings of a model that has none of its own; pipecat needs every field."""
    return LLMSettings(
        model=model,
        system_instruction=None,
        temperature=temperature,
        max_tokens=max_tokens,
        top_p=None,
        top_k=None,
        frequency_penalty=None,
        presence_penalty=None,
        seed=seed,
        filter_incomplete_user_turns=False,
        user_turn_completion_config=None,
    )


class PlainLLMService(LLMService[PlainAdapter]):
    """A service that answers each context frame and passes every other frame on.

    At an interruption pipecat cancels the frame being processed, and the reply with it. The
    arguments are those of `plain_settings`.
    """

    adapter_class = PlainAdapter

    def __init__(self, model: str, **chosen: Any) -> None:
        super().__init__(settings=plain_settings(model, **chosen))

    async def _answer(self, context: LLMContext) -> None:
        """Push the reply's text, between the frames that begin and end it."""
        raise NotImplementedError

    def counts_of(self, heard: list[str]) -> dict[str, float]:
        """Return figures to store with the turn, by name, from the user's words in each turn."""
        return {}

    async def _note(self, frame: Frame) -> None:
        """Note a frame before it is answered or passed on."""

    def can_generate_metrics(self) -> bool:
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self._note(frame)
        if isinstance(frame, LLMContextFrame):
            await self._respond(frame.context)
        else:
            await self.push_frame(frame, direction)

    async def _respond(self, context: LLMContext) -> None:
        start = LLMFullResponseStartFrame()
        start.metadata[COUNTS] = self.counts_of(turns_heard(plain_messages(context)))
        await self.push_frame(start)
        await self.start_processing_metrics()
        try:
            await self._answer(context)
        finally:
            await self.stop_processing_metrics()
            await self.push_frame(LLMFullResponseEndFrame())

    async def _count_tokens(self, prompt: int, completion: int) -> None:
        await self.start_llm_usage_metrics(
            LLMTokenUsage(
                prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion
            )
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of a reply.

    Attributes:
        prompt_tokens: tokens of the prompt.
        tokens: tokens of the reply, the end mark included.
        finished: the reply came to its end or to its limit; False if it was stopped.
    """

    prompt_tokens: int
    tokens: int
    finished: bool


class InProcessModel(Protocol):
    """A language model in this process, which any number of threads may ask."""

    @property
    def name(self) -> str: ...

    @property
    def executor(self) -> Executor:
        """Return what runs replies, as many at a time as the model makes."""
        ...

    def reply(
        self, messages: Sequence[dict[str, Any]], hear: Callable[[str], None], stop: threading.Event
    ) -> Reply:
        """Answer a conversation. Blocks until the reply has ended, without holding the GIL.

        Args:
            messages: roles and texts.
            hear: called with each piece of text as soon as it is there, in any thread.
            stop: once set, the reply ends with the next token.

        Raises:
            AgentError: the engine failed.
        """
        ...


class InProcessLLMService(PlainLLMService):
    """A service whose model runs in a thread of this process, token by token.

    An interruption stops the model at its current token.

    Args:
        model: what answers.
        system_prompt: takes the place of the conversation's own, if given.
        begins_in_thought: the chat template begins the reply within a thought.
        chosen: the arguments of `plain_settings`.
    """

    def __init__(
        self,
        model: InProcessModel,
        *,
        system_prompt: str | None = None,
        begins_in_thought: bool = False,
        **chosen: Any,
    ) -> None:
        super().__init__(model.name, **chosen)
        self._model = model
        self._system_prompt = system_prompt
        setattr(self, BEGINS_IN_THOUGHT, begins_in_thought)

    def messages_of(self, context: LLMContext) -> list[dict[str, Any]]:
        messages = plain_messages(context)
        if self._system_prompt is None:
            return messages
        said = [message for message in messages if message["role"] != "system"]
        return [{"role": "system", "content": self._system_prompt}, *said]

    async def _answer(self, context: LLMContext) -> None:
        try:
            await self._say(context)
        except AgentError as e:
            await self.push_error(f"{e.message} ({e.hint})", exception=e)

    async def _say(self, context: LLMContext) -> None:
        await self.start_ttfb_metrics()
        messages = self.messages_of(context)
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        begun, stop = threading.Event(), threading.Event()

        def hear(piece: str) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def run() -> Reply:
            begun.set()
            try:
                return self._model.reply(messages, hear, stop)
            finally:
                loop.call_soon_threadsafe(pieces.put_nowait, None)

        reply = loop.run_in_executor(self._model.executor, run)
        try:
            said = 0
            while (piece := await pieces.get()) is not None:
                if said == 0:
                    await self.stop_ttfb_metrics()
                said += 1
                await self._push_llm_text(piece)
        finally:
            stop.set()
            if begun.is_set():  # it ends within a token
                done = await reply
                await self._count_tokens(done.prompt_tokens, done.tokens)
            else:
                reply.cancel()


def offered(context: LLMContext) -> Sequence[FunctionSchema]:
    """Return the tools that the conversation offers."""
    tools = context.tools
    return tools.standard_tools if isinstance(tools, ToolsSchema) else ()


def plain_messages(context: LLMContext, *, tools: bool = False) -> list[dict[str, Any]]:
    """Return role and text of each message of the conversation.

    Tool calls and their results are left out, because these models know neither. With `tools` they
    are included as text, in the role `tool`.
    """
    plain: list[dict[str, Any]] = []
    for message in context.get_messages():
        if isinstance(message, LLMSpecificMessage):
            continue
        calls = message.get("tool_calls")
        if calls or message["role"] == "tool":
            if tools:
                text = json.dumps(calls) if calls else _text(message.get("content"))
                plain.append({"role": "tool", "content": text})
        else:
            plain.append({"role": message["role"], "content": _text(message.get("content"))})
    return plain


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return " ".join(p["text"] for p in parts if isinstance(p, dict) and p.get("type") == "text")


def turns_heard(messages: list[dict[str, Any]]) -> list[str]:
    """Return the user's words in each turn; messages with no answer between them are one turn."""
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
