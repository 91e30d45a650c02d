"""The small model as a pipecat service."""

import asyncio
import threading
from typing import Any

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.errors import AgentError
from turngap.thoughts import BEGINS_IN_THOUGHT
from turngap_services.llm.plain import PlainLLMService, plain_messages
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.model import Reply, SmallModel


class SmallLLMService(PlainLLMService):
    """Answers with a model that runs in a thread of this process, token by token.

    An interruption stops the model at its current token.
    """

    def __init__(self, *, settings: SmallSettings, model: SmallModel) -> None:
        super().__init__(
            model.name,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            seed=settings.seed,
        )
        self._model = model
        self._system_prompt = settings.system_prompt
        setattr(self, BEGINS_IN_THOUGHT, model.begins_in_thought)

    async def _answer(self, context: LLMContext) -> None:
        try:
            await self._say(context)
        except AgentError as e:
            await self.push_error(f"{e.message} ({e.hint})", exception=e)

    def _messages(self, context: LLMContext) -> list[dict[str, Any]]:
        messages = plain_messages(context)
        if self._system_prompt is None:
            return messages
        said = [message for message in messages if message["role"] != "system"]
        return [{"role": "system", "content": self._system_prompt}, *said]

    async def _say(self, context: LLMContext) -> None:
        await self.start_ttfb_metrics()
        prompt = self._model.prompt(self._messages(context))
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
            await self._count_tokens(done.prompt_tokens, done.tokens)
