"""The simulated models as pipecat services."""

import json
import random
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pipecat.frames.frames import FunctionCallFromLLM
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage

from turngap.core.clock import NS_PER_MS, NS_PER_S, Clock
from turngap_services.llm.plain import PlainLLMService, offered, plain_messages, turns_heard
from turngap_services.llm.sim import LibrarySettings, ServedSettings, SimSettings
from turngap_services.llm.sim.script import (
    LibraryTurn,
    PromptCache,
    due_ns,
    reply_to,
    tokens,
    turn_for,
)
from turngap_services.llm.sim.server import LiveServer

if TYPE_CHECKING:
    from turngap.scenario.model import Call


class LibraryLLMService(PlainLLMService):
    """Answers from the scenario library, token by token, at a pace that subclasses decide.

    If the library says that a tool is called first, and the conversation offers it, it is called.
    """

    def __init__(
        self, *, name: str, settings: LibrarySettings, script: tuple[LibraryTurn, ...], clock: Clock
    ) -> None:
        super().__init__(name, seed=settings.seed)
        self._default = settings.default_reply
        self._script = script
        self._clock = clock

    @abstractmethod
    def _paced(self, said: list[str], messages: list[dict[str, Any]]) -> AsyncGenerator[str]:
        """Yield the reply's tokens as they come; closed when the reply is no longer wanted."""

    def _reply(self, heard: list[str], results: dict[str, Any] | None = None) -> str:
        return reply_to(heard, self._script, self._default, results) if heard else self._default

    def _calls(self, heard: list[str]) -> tuple["Call", ...]:
        turn = turn_for(heard, self._script) if heard else None
        return turn.calls if turn else ()

    async def run_inference(
        self,
        context: LLMContext,
        max_tokens: int | None = None,
        system_instruction: str | None = None,
        response_schema: dict[str, Any] | None = None,
    ) -> str | None:
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
        # A model writes its calls token by token, too.
        written = json.dumps([call.model_dump() for call in calls])
        text = written if calls else self._reply(heard, results)
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
            await self._count_tokens(len(prompt_tokens(messages)), said)
        # A guess calls no tool: pipecat withdraws the guess, and the model is asked again.
        await self.run_function_calls(
            [
                FunctionCallFromLLM(
                    function_name=call.name,
                    tool_call_id=f"call_{uuid4().hex}",
                    arguments=dict(call.arguments),
                    context=context,
                )
                for call in calls
            ]
        )


class SimLLMService(LibraryLLMService):
    """Paced as its settings say."""

    def __init__(
        self, *, settings: SimSettings, script: tuple[LibraryTurn, ...], clock: Clock
    ) -> None:
        super().__init__(name="sim", settings=settings, script=script, clock=clock)
        self._sim = settings
        self._cache = PromptCache()

    async def _paced(self, said: list[str], messages: list[dict[str, Any]]) -> AsyncGenerator[str]:
        heard = turns_heard(messages)
        due = due_ns(
            await self._read(messages),
            key=f"{self._sim.seed}|{len(heard)}|{heard[-1] if heard else ''}",
            ttft_ms=self._sim.ttft_ms,
            tokens_per_s=self._sim.tokens_per_s,
            jitter=self._sim.jitter,
        )
        for piece, at_ns in zip(said, due, strict=False):
            await self._clock.sleep_until_ns(at_ns)
            yield piece

    async def _read(self, messages: list[dict[str, Any]]) -> int:
        """Take the time to read the prompt; returns the instant at which it was read (ns)."""
        start_ns = self._clock.now_ns()
        if self._sim.prefill_tokens_per_s is None:
            return start_ns
        prompt = prompt_tokens(messages)
        read_ns = self._cache.unread(prompt) * NS_PER_S / self._sim.prefill_tokens_per_s
        await self._clock.sleep_until_ns(start_ns + round(read_ns))
        self._cache.read(prompt)
        return start_ns + round(read_ns)


def prompt_tokens(messages: list[dict[str, Any]]) -> list[str]:
    """Return the tokens that the model reads."""
    return [token for message in messages for token in tokens(message["content"])]


def offers(context: LLMContext, calls: Iterable["Call"]) -> bool:
    """Return whether the conversation offers a tool for each of the calls."""
    names = {tool.name for tool in offered(context)}
    return all(call.name in names for call in calls)


def results_of(context: LLMContext) -> dict[str, Any] | None:
    """Return what the tools called since the user's last words gave, by key; None without a call.

    A tool that failed gives no values, only words about the failure.
    """
    results: dict[str, Any] | None = None
    for message in context.get_messages():
        if isinstance(message, LLMSpecificMessage):
            continue
        if message["role"] == "user":
            results = None
        elif message["role"] == "tool":
            try:
                result = json.loads(message.get("content"))  # type: ignore[arg-type]
            except (TypeError, ValueError):
                result = None
            results = (results or {}) | (result if isinstance(result, dict) else {})
    return results


# A count of the turn: 1 if the reply was made wrong on purpose.
WRONG = "sim_wrong"


class ServedLLMService(LibraryLLMService):
    """Answers when its server has the tokens, and wrongly as often as its accuracy says.

    What it says depends on its `model`, not on how that is served: two servers of one model are
    wrong in the same turns.
    """

    def __init__(
        self,
        *,
        name: str,
        model: str,
        settings: ServedSettings,
        accuracy: float,
        server: LiveServer,
        script: tuple[LibraryTurn, ...],
        clock: Clock,
    ) -> None:
        super().__init__(name=name, settings=settings, script=script, clock=clock)
        self._model = model
        self._seed = settings.seed
        self._network_ns = round(settings.network_ms * NS_PER_MS)
        self._accuracy = accuracy
        self.server = server

    def counts_of(self, heard: list[str]) -> dict[str, float]:
        return {WRONG: float(self._is_wrong(heard))}

    def _calls(self, heard: list[str]) -> tuple["Call", ...]:
        return () if heard and self._is_wrong(heard) else super()._calls(heard)

    def _reply(self, heard: list[str], results: dict[str, Any] | None = None) -> str:
        if not heard or not self._is_wrong(heard):
            return super()._reply(heard, results)
        right = reply_to(heard, self._script, self._default)
        return wrong_reply(right, self._script, self._key(heard)) or self._default

    def _is_wrong(self, heard: list[str]) -> bool:
        """Decide by the conversation and the seed: the next run is wrong in the same turns."""
        return random.Random(f"wrong|{self._key(heard)}").random() >= self._accuracy

    def _key(self, heard: Sequence[str]) -> str:
        return f"{self._seed}|{self._model}|{len(heard)}|{heard[-1] if heard else ''}"

    async def _paced(self, said: list[str], messages: list[dict[str, Any]]) -> AsyncGenerator[str]:
        if self._network_ns:
            await self._clock.sleep_until_ns(self._clock.now_ns() + self._network_ns)
        prompt = max(1, len(prompt_tokens(messages)))
        async with aclosing(self.server.tokens(prompt, len(said))) as out:
            done = 0
            async for ready in out:
                for piece in said[done:ready]:
                    yield piece
                done = ready


def wrong_reply(right: str, script: Sequence[LibraryTurn], key: str) -> str | None:
    """Return another turn's reply, chosen by `key`; None if there is no other."""
    spoken = {turn.reply for turn in script if turn.reply and not turn.calls}
    others = sorted(spoken - {right})
    return random.Random(f"which|{key}").choice(others) if others else None
