"""`race`: both models start, and the full one wins if it is there by the deadline."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable

from pipecat.processors.aggregators.llm_context import LLMContext

from turngap.core.clock import Clock, ms_to_ns
from turngap_services.llm.combine.part import Ask, PartFailedError
from turngap_services.llm.combine.service import PairLLMService
from turngap_services.llm.combine.settings import RaceSettings

# 1 where the full model's reply was heard.
FULL_WON = "race_full_won"


class RaceLLMService(PairLLMService):
    """Asks both at once; the loser is cancelled before the first word of the winner is said."""

    def __init__(self, *, settings: RaceSettings, clock: Clock) -> None:
        super().__init__(name="race", settings=settings, clock=clock)
        self._race = settings

    async def _reply(self, context: LLMContext) -> AsyncGenerator[str]:
        deadline_ns = self._deadline_ns()
        full = await self._ask(self._full, context)
        fast = await self._ask(self._fast, context)
        winner = await self._winner(fast, full, deadline_ns)
        loser = fast if winner is full else full
        await loser.part.cancel()
        self._counts[FULL_WON] = float(winner is full)
        async for piece in winner.text():
            yield piece

    def _deadline_ns(self) -> int:
        ms = self._left_ms() if self._race.deadline_ms is None else self._race.deadline_ms
        return self._clock.now_ns() + ms_to_ns(ms)

    async def _winner(self, fast: Ask, full: Ask, deadline_ns: int) -> Ask:
        """The full one up to the deadline; from then on whoever has something to say."""
        await first_of(full.ready.wait(), self._clock.sleep_until_ns(deadline_ns))
        if not full.ready.is_set() and not fast.ready.is_set():
            await first_of(full.ready.wait(), fast.ready.wait())
        preferred, other = (full, fast) if full.ready.is_set() else (fast, full)
        if preferred.answers:
            return preferred
        await other.ready.wait()
        if not other.answers:
            raise PartFailedError(f"{preferred.failed}; {other.failed}")
        self._fell_back(preferred)
        return other


async def first_of(*waits: Awaitable[object]) -> None:
    """Return when one of them is over; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
