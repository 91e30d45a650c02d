"""`race`, `route` and `best-of`: of several models, one is chosen to say the whole reply."""

import asyncio
from collections.abc import Sequence
from math import fsum

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.clock import Clock, ms_to_ns
from turngap.scenario.phrases import tokens
from turngap_services.llm.combine import BestOfSettings, RaceSettings, RouteSettings
from turngap_services.llm.combine.conversation import difficulty, is_for_tool, last_words, written
from turngap_services.llm.combine.part import Ask, PartFailedError, first_of
from turngap_services.llm.combine.service import CombinedLLMService, PairLLMService

# 1 if the full model's reply was heard.
FULL_WON = "race_full_won"


class RaceLLMService(PairLLMService[RaceSettings]):
    """Asks both at once; the loser is cancelled before the winner's first word is said."""

    backend = "race"

    async def _choose(self, context: LLMContext) -> Ask:
        own_ms = self._combined.deadline_ms
        ms = self._left_ms() if own_ms is None else own_ms
        deadline_ns = self._clock.now_ns() + ms_to_ns(ms)
        full = await self._ask(self._full, context)
        fast = await self._ask(self._fast, context)
        winner = await self._winner(fast, full, deadline_ns)
        await (fast if winner is full else full).part.cancel()
        self._counts[FULL_WON] = float(winner is full)
        return winner

    async def _winner(self, fast: Ask, full: Ask, deadline_ns: int) -> Ask:
        """Return the full one up to the deadline; from then on whichever has a token first.

        A call's first token counts, too; the other model runs on until the call is whole.
        """
        await first_of(full.begun.wait(), self._clock.sleep_until_ns(deadline_ns))
        if not full.begun.is_set() and not fast.begun.is_set():
            await first_of(full.begun.wait(), fast.begun.wait())
        preferred, other = (full, fast) if full.begun.is_set() else (fast, full)
        await preferred.ready.wait()
        if preferred.answers:
            return preferred
        await other.ready.wait()
        if not other.answers:
            raise PartFailedError(f"{preferred.failed}; {other.failed}")
        self._fell_back(preferred)
        return other


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


# Which candidate was heard, counted from 0; how many had something to say by then.
CHOSEN, IN_TIME = "best_of_chosen", "best_of_in_time"


class BestOfLLMService(CombinedLLMService[BestOfSettings]):
    """Asks all candidates, and says what most of them agree on."""

    backend = "best-of"

    async def _choose(self, context: LLMContext) -> Ask:
        until_ns = self._clock.now_ns() + ms_to_ns(self._combined.window_ms)
        asks = [await self._ask(part, context) for part in self._parts]
        over = asyncio.gather(*(ask.ended.wait() for ask in asks))
        await first_of(over, self._clock.sleep_until_ns(until_ns))
        # A call that has begun is known when it is whole.
        await asyncio.gather(*(ask.ready.wait() for ask in asks if ask.begun.is_set()))
        while not any(ask.answers for ask in asks):
            waiting = [ask for ask in asks if not ask.over]
            if not waiting:
                raise PartFailedError("; ".join(f"{ask.failed}" for ask in asks))
            await first_of(*(ask.ready.wait() for ask in waiting))
        for ask in asks:
            if ask.over and not ask.answers:
                self._fell_back(ask)
        able = [n for n, ask in enumerate(asks) if ask.answers and ask.failed is None]
        able = able or [n for n, ask in enumerate(asks) if ask.answers]
        chosen = able[best([words_of(asks[n]) for n in able])]
        self._counts |= {CHOSEN: float(chosen), IN_TIME: float(len(able))}
        others = (part for n, part in enumerate(self._parts) if n != chosen)
        await asyncio.gather(*(part.cancel() for part in others))
        return asks[chosen]


def words_of(ask: Ask) -> list[str]:
    """Return what a candidate is judged by: its words, and each call with and without arguments.

    So two calls of one tool are alike, the more so with the same arguments, and unlike any text.
    """
    calls = [word for call in ask.calls for word in (f"{call.function_name}()", written(call))]
    return [*tokens(ask.said), *calls]


def best(words: Sequence[Sequence[str]]) -> int:
    """Return the index of the candidate that the others agree with most, the first of equals.

    A candidate's score is its mean likeness to the others: the words that both have, divided by the
    words that either has. Both are cut to the length of the shorter one, as a longer one may just
    have come sooner.
    """

    def score(at: int) -> float:
        others = [w for n, w in enumerate(words) if n != at]
        # Exact: in another order the same likenesses would add up to a little more.
        return fsum(_alike(words[at], other) for other in others) / max(len(others), 1)

    return max(range(len(words)), key=score)


def _alike(a: Sequence[str], b: Sequence[str]) -> float:
    both = min(len(a), len(b))
    one, other = set(a[:both]), set(b[:both])
    return len(one & other) / len(one | other) if both else 0.0
