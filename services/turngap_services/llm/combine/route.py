"""`route`: easy turns to the fast model, hard ones to the full one, if there is time for it."""

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.clock import Clock
from turngap_services.llm.combine import RouteSettings
from turngap_services.llm.combine.ask import Ask
from turngap_services.llm.combine.conversation import difficulty, is_for_tool, last_words
from turngap_services.llm.combine.service import PairLLMService

# Points of the turn; 1 if the full model answered; 1 if there was no time to ask it; 1 if the turn
# looked like one for a tool.
POINTS, TO_FULL, NO_TIME = "route_points", "route_full", "route_no_time"
FOR_TOOL = "route_for_tool"

# Weight of each new time to first token in the running mean: the last few turns count.
NEWS = 0.3
# Share of the mean's excess over the setting that is forgotten when there was no time for the full
# model: a model that is not asked gives no new time, and one slow turn would exclude it for good.
FORGOTTEN = 0.1


class RouteLLMService(PairLLMService[RouteSettings]):
    """Asks one of the two, and the other if that one fails before its first word."""

    backend = "route"

    def __init__(self, *, settings: RouteSettings, clock: Clock) -> None:
        super().__init__(settings=settings, clock=clock)
        self._full_ttft_ms = settings.full_ttft_ms

    async def _choose(self, context: LLMContext) -> Ask:
        pair = [self._fast, self._full]
        try:
            ask = await self._one_of(pair[::-1] if self._is_for_full(context) else pair, context)
        finally:
            self._learn()
        self._counts[TO_FULL] = float(ask.part is self._full)
        return ask

    def _is_for_full(self, context: LLMContext) -> bool:
        for_tool = is_for_tool(context)
        points = difficulty(*last_words(context), tools=for_tool)
        self._counts |= {POINTS: float(len(points)), FOR_TOOL: float(for_tool)}
        hard = len(points) >= self._combined.threshold
        in_time = self._full_ttft_ms <= self._left_ms()
        no_time = hard and not in_time and not for_tool
        self._counts[NO_TIME] = float(no_time)
        if no_time:
            above_ms = self._full_ttft_ms - self._combined.full_ttft_ms
            self._full_ttft_ms -= FORGOTTEN * max(0.0, above_ms)
        # A turn with a tool takes two requests and may be late: a right call matters more.
        return for_tool or (hard and in_time)

    def _learn(self) -> None:
        """Add the full model's time to first token, or how long it was waited for, to the mean."""
        for ask in self._asks:
            in_vain_ms = self._combined.first_token_ms if ask.given_up else None
            ms = in_vain_ms if ask.first_ms is None else ask.first_ms
            if ask.part is self._full and ms is not None:
                self._full_ttft_ms += NEWS * (ms - self._full_ttft_ms)
