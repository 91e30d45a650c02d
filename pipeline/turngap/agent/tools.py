"""Answers that are not the LLM's own: from tools, and to turns outside a closed domain.

pipecat runs the tools for real, in the agent's process: a clock, a weather line, a shop's orders
and a calendar. They are small enough to know by heart, so a tester knows the right answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngap.agent.stack import ToolName
from turngap.backends import COUNTS
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.counts import OUT_OF_DOMAIN, OUTSIDE
from turngap.scenario.library import Domain

# Follows the system prompt of an agent with tools, as what a prompt says about the day is outdated.
PROMPT = (
    "Call a tool for the time, the weather, an order or the calendar. Say what it gives in a short "
    "sentence, and trust it more than what stands above."
)

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


class _Arguments(BaseModel):
    # Models write a number where a text is asked for.
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class ClockArguments(_Arguments):
    """The time and the day now."""


class WeatherArguments(_Arguments):
    """The weather line: the weather today or tomorrow."""

    day: Literal["today", "tomorrow"]


class OrderArguments(_Arguments):
    """An order's whereabouts and confirmation number."""

    number: Annotated[str, Field(description="The order's number, digits only.")]


class CalendarArguments(_Arguments):
    """A day's entries in the calendar. With a time and an entry, the entry is added first."""

    day: Day
    time: Annotated[
        str | None,
        Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$", description="As 09:30, in 24 hours."),
    ] = None
    entry: Annotated[str | None, Field(min_length=1, description="What to add.")] = None


Result = Mapping[str, str]

# The shipped agents' system prompts have the same facts.
_WEATHER: Mapping[str, Result] = {
    "today": {"sky": "sunny", "degrees": "20"},
    "tomorrow": {"sky": "light rain", "degrees": "14"},
}
_ORDERS: Mapping[str, Result] = {
    "47192": {"status": "arrives today", "confirmation": "8306"},
    "30558": {"status": "was delivered yesterday", "confirmation": "1274"},
}


def _order(asked: OrderArguments) -> Result:
    number = "".join(c for c in asked.number if c.isdigit())
    return _ORDERS.get(number, {"error": f"there is no order {number or asked.number}"})


class _Calendar:
    """One conversation's calendar, which is empty when it begins."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, str]] = {}

    def __call__(self, asked: CalendarArguments) -> Result:
        entries = self._entries.setdefault(asked.day, {})
        if asked.entry is not None:
            if asked.time is None:
                return {"error": "an entry needs a time"}
            if (there := entries.get(asked.time)) is not None:
                return {"error": f"{asked.time} is taken: {there}"}
            entries[asked.time] = asked.entry
        listed = ", ".join(f"{time} {entry}" for time, entry in sorted(entries.items()))
        return {"day": asked.day, "entries": listed or "nothing"}


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: its arguments, which also describe it, and its function."""

    name: ToolName
    arguments: type[_Arguments]
    run: Callable[[Any], Result]

    def answer(self, arguments: Mapping[str, Any]) -> Result:
        """Run the tool; the LLM gets an `error` for arguments that the tool does not understand."""
        try:
            asked = self.arguments.model_validate(dict(arguments))
        except ValidationError as e:
            problems = (f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in e.errors())
            return {"error": "; ".join(problems)}
        return self.run(asked)


def tools(now: Callable[[], datetime] = datetime.now) -> tuple[Tool, ...]:
    """Return all tools for one conversation; `now` is the time in the machine's own zone."""

    def clock(asked: ClockArguments) -> Result:
        at = now()
        return {"time": f"{at:%H:%M}", "day": f"{at:%A}", "date": f"{at:%Y-%m-%d}"}

    return (
        Tool("clock", ClockArguments, clock),
        Tool("weather", WeatherArguments, lambda asked: _WEATHER[asked.day]),
        Tool("order", OrderArguments, _order),
        Tool("calendar", CalendarArguments, _Calendar()),
    )


def toolbox(
    names: tuple[ToolName, ...], clock: Clock, *, delay_ms: float = 0.0, among: tuple[Tool, ...]
) -> ToolsSchema:
    """Return the tools of `among` with these names, as pipecat offers them to an LLM and runs them.

    `delay_ms` is added to each call: the time on the way between an agent and its tools.
    """
    return ToolsSchema([_schema(tool, clock, delay_ms) for tool in among if tool.name in names])


def _schema(tool: Tool, clock: Clock, delay_ms: float) -> FunctionSchema:
    async def handle(params: Any) -> None:
        if delay_ms:
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(delay_ms))
        await params.result_callback(tool.answer(params.arguments))

    schema = tool.arguments.model_json_schema()
    return FunctionSchema(
        name=tool.name,
        description=schema["description"],
        properties=schema["properties"],
        required=schema.get("required", []),
        handler=handle,
    )


class DomainAnswer(FrameProcessor):
    """A processor before the LLM that answers turns outside of the domain with an offer.

    Such a turn holds `OUT_OF_DOMAIN`, or, while `checks` says so, a text that is near no sentence
    of the domain.

    The LLM never sees such a turn, because it has no answer to it. An answer that was requested
    before the turn was over is refused, as an LLM refuses one for which it would call a tool. The
    answer is then requested again when the turn is over.

    It has no queue, so it adds no wait to a turn that it lets pass.
    """

    def __init__(self, domain: Domain, checks: Callable[[], bool] = lambda: False) -> None:
        super().__init__(enable_direct_mode=True)
        self._checks = checks
        self._domain = domain
        self._times = 0  # in a row

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame) or direction != FrameDirection.DOWNSTREAM:
            await self.push_frame(frame, direction)
        elif not self._is_outside(frame.context.messages[-1]):
            if not frame.speculation:
                self._times = 0
            forget_outside(frame.context, self._is_outside)
            await self.push_frame(frame, direction)
        elif frame.speculation:
            await self.broadcast_frame(EagerEndOfTurnCancelFrame)
        else:
            text = LLMTextFrame(self._domain.offer(self._times))
            text.metadata[COUNTS] = {OUTSIDE: 1}
            self._times += 1
            for part in (LLMFullResponseStartFrame(), text, LLMFullResponseEndFrame()):
                await self.push_frame(part)

    def _is_outside(self, message: Any) -> bool:
        if not _is_turn(message):
            return False
        text = str(message.get("content", ""))
        return OUT_OF_DOMAIN in text or (self._checks() and not self._domain.knows(text))


def forget_outside(context: LLMContext, is_outside: Callable[[Any], bool]) -> None:
    """Remove the turns that are outside of the domain, and the agent's answers to them."""
    kept: list[Any] = []
    forgets = False
    for message in context.messages:
        if _is_turn(message):
            forgets = is_outside(message)
        if not forgets:
            kept.append(message)
    if len(kept) < len(context.messages):
        context.set_messages(kept)


def _is_turn(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"
