"""`best-of`: several candidates at once, and the best of what is there at the window's end."""

import asyncio
from collections.abc import Sequence
from math import fsum

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.clock import ms_to_ns
from turngap.scenario.phrases import tokens
from turngap_services.llm.combine import BestOfSettings
from turngap_services.llm.combine.ask import Ask, PartFailedError
from turngap_services.llm.combine.conversation import written
from turngap_services.llm.combine.part import first_of
from turngap_services.llm.combine.service import CombinedLLMService

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
