"""A combined backend in a running pipeline in virtual time, and parts that do as they are told."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import pytest
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    Frame,
    FunctionCallFromLLM,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMRunFrame,
    LLMTextFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.llm_service import LLMService
from pipecat.turns.user_start import BaseUserTurnStartStrategy
from pipecat.turns.user_stop import BaseUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pydantic import Field
from running_line import Line, running

from turngap.backends import COUNTS, BackendSettings, BackendSpec, Price
from turngap.core.clock import Clock, ms_to_ns
from turngap.testing import LoopClock, in_virtual_time
from turngap_services.llm import combine
from turngap_services.llm.combine import SPECS
from turngap_services.llm.combine.part import follows_a_tool
from turngap_services.llm.combine.service import CombinedLLMService, create
from turngap_services.llm.plain import PlainAdapter, offered, plain_settings

T = TypeVar("T")
TOKEN_MS = 10.0


class ActorSettings(BackendSettings):
    """A part's task: say `text`'s words, the first after `ttft_ms`; fail at one of them.

    With `letters`, a piece is so many characters instead of a word. From the token `hangs_at` on
    nothing comes any more. Tools that it is offered, it `calls` behind its text, with so many
    `call_tokens` each, and says `after` to their results; where it `insists`, it calls them again.
    What it is to do other than that with a result, `with_results` says.
    """

    text: str = "yes indeed"
    ttft_ms: Annotated[float, Field(ge=0)] = 50.0
    fails_after: int | None = None
    letters: int | None = None
    hangs_at: int | None = None
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()
    call_tokens: int = 1
    after: str = "done"
    insists: bool = False
    with_results: dict[str, Any] = Field(default_factory=dict)


@dataclass
class Actor:
    """The work of the parts of one kind: tokens made after each request, and cancellations."""

    made: Counter[int] = field(default_factory=Counter)
    last_ns: int = 0
    asked: int = 0
    running: int = 0
    contexts: list[list[Any]] = field(default_factory=list)
    offered: list[set[str]] = field(default_factory=list)


class ActorLLM(LLMService[PlainAdapter]):
    adapter_class = PlainAdapter

    def __init__(self, settings: ActorSettings, actor: Actor, clock: Clock) -> None:
        super().__init__(settings=plain_settings("actor"))
        self._told, self._actor, self._clock = settings, actor, clock

    def can_generate_metrics(self) -> bool:
        return True

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        self._actor.asked += 1
        self._actor.running += 1
        self._actor.contexts.append(list(frame.context.messages))
        self._actor.offered.append({tool.name for tool in offered(frame.context)})
        await self.push_frame(LLMFullResponseStartFrame())
        try:
            await self._answer(frame.context)
        finally:
            self._actor.running -= 1
            await self.push_frame(LLMFullResponseEndFrame())

    async def _answer(self, context: LLMContext) -> None:
        told, has_results = self._told, follows_a_tool(context)
        if has_results:
            told = told.model_copy(update={"text": told.after, **told.with_results})
        calls = told.calls if offered(context) and (told.insists or not has_results) else ()
        await self.start_ttfb_metrics()
        if not await self._make(told, len(calls) * told.call_tokens):
            return
        await self.run_function_calls(
            [
                FunctionCallFromLLM(
                    function_name=name,
                    tool_call_id=f"{told.ttft_ms}-{self._actor.asked}-{number}",
                    arguments=arguments,
                    context=context,
                )
                for number, (name, arguments) in enumerate(calls)
            ]
        )

    async def _make(self, told: ActorSettings, silent: int) -> bool:
        """Text, then so many tokens that nobody sees; whether it came to its end."""
        at_ns = self._clock.now_ns() + ms_to_ns(told.ttft_ms)
        text, size = told.text, told.letters
        words = [f"{word} " for word in text.split()]
        parts = [text[at : at + size] for at in range(0, len(text), size)] if size else words
        for number, part in enumerate([*parts, *[""] * silent]):
            if number == told.hangs_at:
                await asyncio.Event().wait()  # until it is cancelled
            await self._clock.sleep_until_ns(at_ns + number * ms_to_ns(TOKEN_MS))
            if number == told.fails_after:
                await self.push_error("out of order")
                return False
            self._actor.made[self._actor.asked] += 1
            self._actor.last_ns = self._clock.now_ns()
            await self.stop_ttfb_metrics()
            if part:
                await self._push_llm_text(part)
            else:
                await self.stop_ttfat_metrics()
        return True


# `plain` knows of no tools.
PRICES: dict[str, Price | None] = {
    "quick": Price(1, 10),
    "large": Price(5, 50),
    "free": None,
    "plain": Price(2, 20),
}


@pytest.fixture
def actors() -> Iterator[dict[str, Actor]]:
    """Put `quick`, `large`, `free` and `plain` in the place of every registered LLM."""
    with casting() as cast:
        yield cast


@contextmanager
def casting() -> Iterator[dict[str, Actor]]:
    """Make what the fixture makes, for a test that needs it anew each time."""
    cast = {name: Actor() for name in PRICES}

    def find(kind: str, name: str) -> BackendSpec:
        def create(settings: ActorSettings, clock: Clock) -> ActorLLM:
            return ActorLLM(settings, cast[name], clock)

        tools, price = name != "plain", PRICES[name]
        return BackendSpec(name, "llm", ActorSettings, create, price=price, tools=tools)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combine, "find", find)
        yield cast


@dataclass
class Said:
    """One reply as the pipeline got it."""

    text: str
    counts: dict[str, float]
    first_ms: float | None
    errors: list[str]


def question(said: str = "hello", *before: str) -> LLMContextFrame:
    messages = [{"role": "system", "content": "Be brief."}]
    for number, text in enumerate(before):
        messages.append({"role": "assistant" if number % 2 else "user", "content": text})
    messages.append({"role": "user", "content": said})
    return LLMContextFrame(LLMContext(messages))  # type: ignore


async def ask(line: Line, frame: Frame, errors: list[str]) -> Said:
    """Send a question and wait for all of its reply."""
    clock, asked = LoopClock(), len(line.frames)
    asked_ns, firsts = clock.now_ns(), list[float]()

    def over() -> bool:
        new = line.frames[asked:]
        if not firsts and any(isinstance(f, LLMTextFrame) for f in new):
            firsts.append((clock.now_ns() - asked_ns) / 1e6)
        return any(isinstance(f, LLMFullResponseEndFrame) for f in new)

    await line.send(frame)
    await line.until(over)
    new = line.frames[asked:]
    return Said(
        "".join(f.text for f in new if isinstance(f, LLMTextFrame)).strip(),
        counted(new),
        firsts[0] if firsts else None,
        errors,
    )


def counted(frames: list[Frame]) -> dict[str, float]:
    """The counts of all frames, as the observer adds them up."""
    total: Counter[str] = Counter()
    for frame in frames:
        for name, n in frame.metadata.get(COUNTS, {}).items():
            total[name] += n
    return dict(total)


def talk(
    make: Callable[[Clock], CombinedLLMService],
    with_: Callable[[Line, list[str]], Coroutine[Any, Any, T]],
) -> T:
    """Run `with_` on a line with the service, in virtual time.

    A second passes at its end, in which whoever was not cancelled would go on.
    """

    async def main() -> T:
        service, errors = make(LoopClock()), list[str]()

        async def on_error(_: object, error: Any) -> None:
            errors.append(error.error)

        service.add_event_handler("on_error", on_error)
        async with running(service, params=PipelineParams()) as line:
            result = await with_(line, errors)
            await passes(1000)
            return result

    return in_virtual_time(main())


async def passes(ms: float) -> None:
    """Let virtual time pass."""
    clock = LoopClock()
    await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(ms))


def one_reply(make: Callable[[Clock], CombinedLLMService], frame: Frame | None = None) -> Said:
    """Return a service's answer to one question."""
    return talk(make, lambda line, errors: ask(line, frame or question(), errors))


# --- a conversation with tools around a combined backend ---------------------------------------

TOOL_MS = 100.0
# Nothing that a test plays takes so long.
ALL_MS = 60_000.0
ORDER = ("order", {"number": "7"})
# What a part does: it calls, behind so many tokens; the full model does; the fast one talks.
CALLS: dict[str, Any] = {"text": "", "calls": (ORDER,), "call_tokens": 20, "after": "It is there."}
FULL: dict[str, Any] = {"ttft_ms": 200, **CALLS}
FAST: dict[str, Any] = {"text": "I do not know.", "ttft_ms": 20}
TYPES = {spec.name: spec.settings_type for spec in SPECS}


@dataclass
class Heard:
    """A turn as the pipeline got it: what was said, what ran, what it cost, when it was over."""

    text: str = ""
    counts: Mapping[str, float] = field(default_factory=dict[str, float])
    ran: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict[str, float])
    errors: list[str] = field(default_factory=list)
    replies: int = 0
    over_ms: float = 0.0
    roles: list[str] = field(default_factory=list)


class _Stamps(FrameProcessor):
    """Notes what comes by, and when."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(enable_direct_mode=True)
        self.seen: list[tuple[int, Frame]] = []
        self._clock = clock

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction is FrameDirection.DOWNSTREAM:
            self.seen.append((self._clock.now_ns(), frame))
        await self.push_frame(frame, direction)


def combined(
    which: str,
    full: dict[str, Any] = FULL,
    fast: dict[str, Any] = FAST,
    *,
    who: str = "quick",
    **values: Any,
) -> Callable[[Clock], CombinedLLMService]:
    """One of them, of `large` and of `who`."""
    values = {"first_token_ms": 1000, "stall_ms": 500, **values}
    if which == "best-of":
        values |= {"candidates": ["large", who], "candidate_settings": [full, fast]}
    else:
        values |= {"full": "large", "full_settings": full, "fast": who, "fast_settings": fast}
    made = TYPES[which].model_validate(values)
    return lambda clock: create(which, made, clock)


def box(ran: list[tuple[str, dict[str, Any]]], clock: Clock) -> ToolsSchema:
    """A shop's tool and one for the weather; each notes that it ran, when it has begun to."""

    async def handle(params: Any) -> None:
        ran.append((params.function_name, dict(params.arguments)))
        await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(TOOL_MS))
        await params.result_callback({"status": "underway"})

    def tool(name: str, description: str, parameter: str) -> FunctionSchema:
        properties = {parameter: {"type": "string"}}
        return FunctionSchema(name, description, properties, [parameter], handler=handle)

    return ToolsSchema(
        [
            tool("order", "Where an order is.", "number"),
            tool("weather", "The weather line.", "day"),
        ]
    )


def tool_turn(
    make: Callable[[Clock], CombinedLLMService], said: str = "where is my order", *later: str
) -> Heard:
    """Ask in a conversation that has tools, and wait for whatever comes of it; then the next."""

    async def main() -> Heard:
        clock, heard = LoopClock(), Heard()
        service, stamps = make(clock), _Stamps(clock)

        async def on_error(_: object, error: Any) -> None:
            heard.errors.append(error.error)

        service.add_event_handler("on_error", on_error)
        context = LLMContext([{"role": "user", "content": said}], box(heard.ran, clock))
        strategies = UserTurnStrategies(
            start=[BaseUserTurnStartStrategy()], stop=[BaseUserTurnStopStrategy()]
        )
        pair = LLMContextAggregatorPair(
            context, user_params=LLMUserAggregatorParams(user_turn_strategies=strategies)
        )
        steps = (pair.user(), service, stamps, pair.assistant())
        async with running(*steps, params=PipelineParams()) as line:
            begun_ns = clock.now_ns()
            await line.send(LLMRunFrame())
            await passes(ALL_MS)
            for text in later:
                context.add_message({"role": "user", "content": text})
                await line.send(LLMRunFrame())
                await passes(ALL_MS)
        _told(heard, stamps.seen, begun_ns)
        heard.roles = [m["role"] for m in context.get_messages() if isinstance(m, dict)]
        return heard

    return in_virtual_time(main())


def paid(heard: Heard, actors: dict[str, Actor]) -> None:
    """Every request is on the bill, and none goes on."""
    assert heard.counts["combined_requests"] == sum(a.asked for a in actors.values())
    assert all(actor.running == 0 for actor in actors.values())


def _told(heard: Heard, seen: list[tuple[int, Frame]], begun_ns: int) -> None:
    for at_ns, frame in seen:
        ms = (at_ns - begun_ns) / 1e6
        match frame:
            case LLMTextFrame():
                heard.text += frame.text
                heard.stages.setdefault("text", ms)
            case FunctionCallInProgressFrame():
                heard.stages.setdefault("call", ms)
            case FunctionCallResultFrame():
                heard.stages.setdefault("result", ms)
            case LLMFullResponseEndFrame():
                heard.replies += 1
                heard.over_ms = ms
            case _:
                pass
    heard.text = " ".join(heard.text.split())
    heard.counts = counted([frame for _, frame in seen])
