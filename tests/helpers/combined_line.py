"""A combined backend in a running pipeline in virtual time, and parts that do as they are told."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import pytest
from pipecat.frames.frames import (
    Frame,
    FunctionCallFromLLM,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pydantic import Field
from running_line import Line, running

from turngap.backends import COUNTS, BackendSettings, BackendSpec, Price
from turngap.core.clock import Clock, ms_to_ns
from turngap.testing import LoopClock, in_virtual_time
from turngap_services.llm import combine
from turngap_services.llm.combine.part import follows_a_tool
from turngap_services.llm.combine.service import CombinedLLMService
from turngap_services.llm.plain import PlainAdapter, offered, plain_settings

T = TypeVar("T")
TOKEN_MS = 10.0


class ActorSettings(BackendSettings):
    """What a part is to do: say `text`'s words, the first after `ttft_ms`; fail at one of them.

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
    """What the parts of one kind have done: tokens made after each request, and cancellations."""

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
    """As the fixture, for a test that needs them anew each time."""
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
    """What a service answers to one question."""
    return talk(make, lambda line, errors: ask(line, frame or question(), errors))
