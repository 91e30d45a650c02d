"""`route`: easy turns to the fast model, hard ones to the full one, if there is time for it."""

from collections.abc import AsyncGenerator

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.clock import Clock
from turngap_services.llm.combine.difficulty import difficulty
from turngap_services.llm.combine.part import PartFailedError
from turngap_services.llm.combine.service import PairLLMService
from turngap_services.llm.combine.settings import RouteSettings
from turngap_services.llm.plain import plain_messages

# Points of the turn; 1 where the full model was asked; 1 where it would have been, had there been
# time.
POINTS, TO_FULL, NO_TIME = "route_points", "route_full", "route_no_time"

# Of each new time to the first token, so much goes into the mean: the last few turns count.
NEWS = 0.3


class RouteLLMService(PairLLMService):
    """Asks one of the two, and the other where that one fails before its first word."""

    def __init__(self, *, settings: RouteSettings, clock: Clock) -> None:
        super().__init__(name="route", settings=settings, clock=clock)
        self._route = settings
        self._full_ttft_ms = settings.full_ttft_ms

    async def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        part = self._full if self._is_for_full(context) else self._fast
        ask = await self._ask(part, context)
        await ask.ready.wait()
        if not ask.answers:
            other = await self._ask(self._fast if part is self._full else self._full, context)
            await other.ready.wait()
            if not other.answers:
                raise PartFailedError(f"{ask.failed}; {other.failed}")
            self._fell_back(ask)
            ask = other
        self._learn(ask.first_ms if ask.part is self._full else None)
        self._counts[TO_FULL] = float(ask.part is self._full)
        async for piece in ask.text():
            yield piece

    def _is_for_full(self, context: LLMContext) -> bool:
        messages = [m for m in plain_messages(context) if m["role"] != "system"]
        said, before = (messages[-1]["content"] if messages else ""), messages[:-1]
        tools = bool(context.tools)
        points = difficulty(said, [m["content"] for m in before], tools=tools)
        self._counts[POINTS] = float(len(points))
        hard = len(points) >= self._route.threshold
        in_time = self._full_ttft_ms <= self._left_ms()
        self._counts[NO_TIME] = float(hard and not in_time)
        return hard and in_time

    def _learn(self, full_ttft_ms: float | None) -> None:
        if full_ttft_ms is not None:
            self._full_ttft_ms += NEWS * (full_ttft_ms - self._full_ttft_ms)
