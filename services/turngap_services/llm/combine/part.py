"""One LLM inside another: its view of a conversation, its requests and their cost."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
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
from pipecat.metrics.metrics import LLMTokenUsage, LLMUsageMetricsData, TTFATMetricsData
from pipecat.pipeline.pipeline import Pipeline, PipelineSink, PipelineSource
from pipecat.processors.aggregators.llm_context import LLMContext, LLMSpecificMessage
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.llm_service import LLMService

from turngap.backends import Price
from turngap.core.clock import Clock, ms_to_ns
from turngap.thoughts import guard_thoughts
from turngap_services.llm.combine import CombinedSettings
from turngap_services.llm.plain import offered, plain_messages

LONG = 12
VERY_LONG = 25

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_NUMBERS = """
    zero oh one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty
    ninety hundred thousand half quarter first second third fourth fifth twelfth
"""
_TAKEN_BACK = """
    no not never none nor without sorry actually instead rather except don't doesn't didn't can't
    cannot won't isn't wasn't aren't unless wait
"""
# Words that say nothing about the topic.
_COMMON = """
    a an the i i'd i'll i'm you we it it's that that's this these those is are was be been do does
    did have has had can could will would should may might my your our me us and or but so if of
    to in on at for from with by as up out about what which who when where why how many much some
    any please thanks thank okay yes well just like get make want need let all there here its now
    only
"""
NUMBERS, TAKEN_BACK, COMMON = (frozenset(t.split()) for t in (_NUMBERS, _TAKEN_BACK, _COMMON))

# Keys of a parameter's JSON schema that say what the parameter is for, and what it may be.
_TELLING = ("description", "enum", "const")


def difficulty(said: str, before: Sequence[str] = (), *, tools: bool = False) -> tuple[str, ...]:
    """Return why the turn `said` looks hard, a point each; empty if it looks easy.

    Args:
        said: the person's words now.
        before: the words of both sides in the conversation until then.
        tools: whether the turn looks like one for a tool (`is_about`).

    `long` (over 12 words) and `very_long` (over 25): the person asks for more. `tools`: the answer
    has to be looked up. `numbers`: digits or number words, the first weakness of small models.
    `negation`: a word that denies or takes something back. `new_topic`: none of the turn's content
    words was said before.
    """
    words = _words(said)
    content = set(words) - COMMON
    is_new = bool(before and content) and content.isdisjoint(w for t in before for w in _words(t))
    reasons = {
        "long": len(words) > LONG,
        "very_long": len(words) > VERY_LONG,
        "tools": tools,
        "numbers": any(c.isdigit() for c in said) or not NUMBERS.isdisjoint(words),
        "negation": not TAKEN_BACK.isdisjoint(words),
        "new_topic": is_new,
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def is_about(said: str, tools: Iterable[str]) -> bool:
    """Return whether the turn `said` has a content word of the tools' texts."""
    return not _content(said).isdisjoint(word for text in tools for word in _content(text))


def _words(text: str) -> list[str]:
    return [word.lower().replace("’", "'") for word in _WORD.findall(text)]


def _content(text: str) -> set[str]:
    """Return the content words; "today's" and "tomorrow's" give today and tomorrow."""
    return {word.removesuffix("'s") for word in _words(text)} - COMMON


def texts_of(tools: Sequence[FunctionSchema]) -> list[str]:
    """Return the tools' names and descriptions, and their parameters' names and values."""
    texts: list[str] = []
    for tool in tools:
        texts += [tool.name, tool.description or ""]
        texts += map(str, tool.properties) if isinstance(tool.properties, dict) else ()
        texts += _descriptions(tool.properties)
    return texts


def _descriptions(schema: Any) -> Iterator[str]:
    """Yield the descriptions and values anywhere in a schema, without its keywords."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key in _TELLING:
                yield from (str(v) for v in (value if isinstance(value, list) else [value]))
            else:
                yield from _descriptions(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _descriptions(value)


def last_words(context: LLMContext) -> tuple[str, list[str]]:
    """Return the conversation's last message, and the messages before it."""
    said = [m["content"] for m in plain_messages(context) if m["role"] != "system"]
    return (said[-1], said[:-1]) if said else ("", [])


def is_for_tool(context: LLMContext) -> bool:
    """Return whether the person's last words look like a request for one of the tools."""
    return is_about(last_words(context)[0], texts_of(offered(context)))


def follows_a_tool(context: LLMContext) -> bool:
    """Return whether the reply is to answer a tool's result instead of the person's words."""
    for message in reversed(context.get_messages()):
        if isinstance(message, LLMSpecificMessage):
            continue
        if message["role"] in ("user", "tool"):
            return message["role"] == "tool"
    return False


def written(call: FunctionCallFromLLM) -> str:
    """Return a call as text, the same for the same tool and arguments."""
    arguments = json.dumps(dict(call.arguments), sort_keys=True, default=str)
    return f"{call.function_name}({arguments})"


# Many services never say what a cancelled request cost. Four characters a token is the rule of
# thumb for English.
CHARS_A_TOKEN = 4

_FIGURES = ("requests", "given_up", "prompt_tokens", "completion_tokens", "usd", "unpriced_tokens")


class PartFailedError(Exception):
    """A part cannot answer, or not to the end."""


class Ask:
    """One request to a part, and its results so far.

    Attributes:
        prompt_chars: length of the prompt.
        pieces: number of pieces of text so far; with most services a piece is a token.
        used: tokens that the service says it used, if it has said.
        first_ms: time to the first token, of text or of a call, if there is one.
        thoughts: number of pieces of its thoughts, which are no part of the answer.
        thought_ms: time that the thoughts took.
        news_ns: when the request last had news, or was made.
        calls: tool calls, which come whole at the reply's end.
        failed: why the part cannot answer, if it cannot.
        given_up: whether it was ended for being silent too long.
        begun: set once the first token is there, or none will come.
        ready: set once it is known whether the part answers.
        ended: set once no more will come.
        said: the text so far.
    """

    def __init__(self, part: "Part", prompt_chars: int, asked_ns: int) -> None:
        self.part = part
        self.prompt_chars = prompt_chars
        self.pieces = 0
        self.thoughts = 0
        self.thought_ms = 0.0
        self._piece_ns: int | None = None  # the latest, of the answer or of a thought
        self.used: LLMTokenUsage | None = None
        self.first_ms: float | None = None
        self.news_ns = self._asked_ns = asked_ns
        self.calls: tuple[FunctionCallFromLLM, ...] = ()
        self.failed: str | None = None
        self.given_up = False
        self.over = False
        self.begun = asyncio.Event()
        self.ready = asyncio.Event()
        self.ended = asyncio.Event()
        self.said = ""
        self._said: asyncio.Queue[str | None] = asyncio.Queue()

    @property
    def answers(self) -> bool:
        return self.pieces > 0 or bool(self.calls)

    async def text(self) -> AsyncGenerator[str]:
        """Yield the reply's pieces as they come.

        Raises:
            PartFailedError: the reply ended by an error, or without a word or a call.
        """
        while (piece := await self._said.get()) is not None:
            yield piece
        if self.failed is not None:
            raise PartFailedError(self.failed)

    def begin(self, at_ns: int) -> None:
        """Note a token; the first may be that of a call, which comes when it is whole."""
        if self.over:
            return
        if self.first_ms is None:
            self.first_ms = (at_ns - self._asked_ns) / 1e6
        self.news_ns = at_ns
        self.begun.set()

    def say(self, piece: str, at_ns: int) -> None:
        if self.over:
            return
        self.begin(at_ns)
        self._piece_ns = at_ns
        self.pieces += 1
        self.said += piece
        self._said.put_nowait(piece)
        self.ready.set()

    def think(self, at_ns: int) -> None:
        """Note a piece of the part's thoughts; the wait for the first token continues."""
        if not self.over:
            self.thoughts += 1
            self.thought_ms += (at_ns - (self._piece_ns or at_ns)) / 1e6
            self._piece_ns = at_ns

    def call(self, calls: Sequence[FunctionCallFromLLM], at_ns: int) -> None:
        if self.over:
            return
        self.begin(at_ns)
        self.calls += tuple(calls)
        self.ready.set()

    def end(self, error: str | None = None) -> None:
        if self.over:
            return
        self.over = True
        thought = f" but {self.thoughts} pieces of thought" if self.thoughts else ""
        self.failed = error or (None if self.answers else f"{self.part.name} said nothing{thought}")
        self._said.put_nowait(None)
        self.begun.set()
        self.ready.set()
        self.ended.set()

    def tokens(self) -> tuple[int, int]:
        """Return prompt and completion tokens: the service's figures, or an estimate."""
        if self.used is not None:
            return self.used.prompt_tokens, self.used.completion_tokens
        called = sum(-(-len(written(call)) // CHARS_A_TOKEN) for call in self.calls)
        return -(-self.prompt_chars // CHARS_A_TOKEN), self.pieces + self.thoughts + called


def prompt_chars(context: LLMContext) -> int:
    """Return the length of a prompt: messages, calls with their results, and tools."""
    messages = (m for m in context.get_messages() if isinstance(m, dict))
    tools = sum(len(json.dumps(tool.to_default_dict())) for tool in offered(context))
    return tools + sum(_chars(message) for message in messages)


def _chars(message: Any) -> int:
    calls = message.get("tool_calls")
    return len(str(message.get("content") or "")) + (len(json.dumps(calls)) if calls else 0)


class Meter:
    """The sum of the usage of all requests of one turn so far, the losers' included."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._asks = asks
        self._told: dict[str, float] = {}

    def take(self) -> dict[str, float]:
        """Return the usage added since the last call, by name; negative after a high estimate.

        Parts with a price are counted in USD, tokens of the others as unpriced.
        """
        totals: dict[str, float] = dict.fromkeys(_FIGURES, 0.0)
        for ask in self._asks:
            prompt, completion = ask.tokens()
            totals["requests"] += 1
            totals["given_up"] += ask.given_up
            totals["prompt_tokens"] += prompt
            totals["completion_tokens"] += completion
            if (price := ask.part.price) is None:
                totals["unpriced_tokens"] += prompt + completion
            else:
                totals["usd"] += (prompt * price.input_usd + completion * price.output_usd) / 1e6
        news = {f"combined_{name}": n - self._told.get(name, 0.0) for name, n in totals.items()}
        self._told = totals
        return {name: n for name, n in news.items() if n}


class Part:
    """An LLM service that answers to another service instead of to the pipeline.

    It runs in a pipeline of its own: an interruption cancels its request as it would in the
    agent's, and its frames reach only this service. Its tool calls are noted and not run, because
    it is not decided yet whose answer is heard, and the effects of a tool cannot be undone.

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
        own = replace(setup, observer=None, enable_metrics=True, enable_usage_metrics=True)
        await self.pipeline.setup(replace(own, report_only_initial_ttfb=False))

    async def cleanup(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        await self.pipeline.cleanup()

    def prompt(self, context: LLMContext) -> LLMContext:
        """Return a copy of the conversation, with its tools if the part calls tools.

        Later words belong to the conversation and not to this request.
        """
        messages = list(context.messages)
        if not self.tools:
            return LLMContext(messages)
        return LLMContext(messages, context.tools, context.tool_choice)

    async def ask(self, context: LLMContext) -> Ask:
        """Ask for a reply; ignore everything that still arrives from an earlier request."""
        await self._settled.wait()
        prompt = self.prompt(context)
        ask = self._ask = Ask(self, prompt_chars(prompt), self._clock.now_ns())
        self._watching = asyncio.create_task(self._watch(ask))
        await self.pipeline.queue_frame(LLMContextFrame(prompt))
        return ask

    async def cancel(self) -> None:
        """Drop the running request, if any; return when its service has released it."""
        if self._ask is not None and not self._ask.over:
            await self._drop()
            self._ask.end()
        await self._settled.wait()

    async def _drop(self) -> None:
        if self._settled.is_set():
            self._settled.clear()
            await self.pipeline.queue_frame(InterruptionFrame())
        await self._settled.wait()

    async def _watch(self, ask: Ask) -> None:
        """Give up a request that is silent too long."""
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
        """Replace the service's own method, which would run the calls."""
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
    """Return when one of the awaitables is done, and cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
