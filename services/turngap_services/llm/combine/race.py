"""`race`: both models start, and the full one wins if it is there by the deadline."""

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.clock import ms_to_ns
from turngap_services.llm.combine import RaceSettings
from turngap_services.llm.combine.ask import Ask, PartFailedError
from turngap_services.llm.combine.part import first_of
from turngap_services.llm.combine.service import PairLLMService

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
