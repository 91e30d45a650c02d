"""`route`: easy turns to the fast model, hard ones to the full one, if there is time for it."""

from collections.abc import AsyncGenerator

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.clock import Clock
from turngap_services.llm.combine.difficulty import difficulty
from turngap_services.llm.combine.service import PairLLMService
from turngap_services.llm.combine.settings import RouteSettings
from turngap_services.llm.combine.tools import is_for_tool
from turngap_services.llm.plain import plain_messages

# Points of the turn; 1 where the full model answered; 1 where it would have been asked, had there
# been time; 1 where the turn looked like one for a tool.
POINTS, TO_FULL, NO_TIME = "route_points", "route_full", "route_no_time"
FOR_TOOL = "route_for_tool"

# Of each new time to the first token, so much goes into the mean: the last few turns count.
NEWS = 0.3
# Of what that is above the setting, so much is forgotten whenever there was no time for it: who is
# not asked says nothing new, and one slow turn would keep it out for the rest of the session.
FORGOTTEN = 0.1


class RouteLLMService(PairLLMService):
    """Asks one of the two, and the other where that one fails before its first word."""

    def __init__(self, *, settings: RouteSettings, clock: Clock) -> None:
        super().__init__(name="route", settings=settings, clock=clock)
        self._route = settings
        self._full_ttft_ms = settings.full_ttft_ms

    async def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        pair = [self._fast, self._full]
        try:
            ask = await self._one_of(pair[::-1] if self._is_for_full(context) else pair, context)
        finally:
            self._learn()
        self._counts[TO_FULL] = float(ask.part is self._full)
        self._kept = ask
        async for piece in ask.text():
            yield piece

    def _is_for_full(self, context: LLMContext) -> bool:
        messages = [m for m in plain_messages(context) if m["role"] != "system"]
        said, before = (messages[-1]["content"] if messages else ""), messages[:-1]
        for_tool = is_for_tool(context)
        points = difficulty(said, [m["content"] for m in before], tools=for_tool)
        self._counts |= {POINTS: float(len(points)), FOR_TOOL: float(for_tool)}
        hard = len(points) >= self._route.threshold
        in_time = self._full_ttft_ms <= self._left_ms()
        no_time = hard and not in_time and not for_tool
        self._counts[NO_TIME] = float(no_time)
        if no_time:
            self._forget()
        # A turn with a tool is two requests, late or not: better that the tool is called rightly.
        return for_tool or (hard and in_time)

    def _forget(self) -> None:
        above_ms = self._full_ttft_ms - self._route.full_ttft_ms
        self._full_ttft_ms -= FORGOTTEN * max(0.0, above_ms)

    def _learn(self) -> None:
        """When the full model's first token came, or for how long it was waited for in vain."""
        for ask in self._asks:
            in_vain_ms = self._route.first_token_ms if ask.given_up else None
            ms = in_vain_ms if ask.first_ms is None else ask.first_ms
            if ask.part is self._full and ms is not None:
                self._full_ttft_ms += NEWS * (ms - self._full_ttft_ms)
