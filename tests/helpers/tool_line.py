"""A conversation with tools around a combined backend, in virtual time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from combined_line import Actor, counted, passes
from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    Frame,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    LLMFullResponseEndFrame,
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
from pipecat.turns.user_start import BaseUserTurnStartStrategy
from pipecat.turns.user_stop import BaseUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from running_line import running

from turngap.core.clock import Clock, ms_to_ns
from turngap.testing import LoopClock, in_virtual_time
from turngap_services.llm.combine import SPECS
from turngap_services.llm.combine.service import CombinedLLMService, create

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
