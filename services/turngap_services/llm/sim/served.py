"""A served model as a pipecat service: the library's replies, some of them wrong, as served."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from turngap.core.clock import NS_PER_MS, Clock
from turngap_services.llm.sim import ServedSettings
from turngap_services.llm.sim.script import LibraryTurn, reply_to
from turngap_services.llm.sim.server import LiveServer
from turngap_services.llm.sim.service import LibraryLLMService, prompt_tokens

if TYPE_CHECKING:
    from turngap.scenario.model import Call

# A count of the turn: 1 if the reply was made wrong on purpose.
WRONG = "sim_wrong"


class ServedLLMService(LibraryLLMService):
    """Answers when its server has the tokens, and wrongly as often as its accuracy says.

    What it says depends on its `model`, not on how that is served: two servers of one model are
    wrong in the same turns.
    """

    def __init__(
        self,
        *,
        name: str,
        model: str,
        settings: ServedSettings,
        accuracy: float,
        server: LiveServer,
        script: tuple[LibraryTurn, ...],
        clock: Clock,
    ) -> None:
        super().__init__(name=name, settings=settings, script=script, clock=clock)
        self._model = model
        self._seed = settings.seed
        self._network_ns = round(settings.network_ms * NS_PER_MS)
        self._accuracy = accuracy
        self.server = server

    def counts_of(self, heard: list[str]) -> dict[str, float]:
        return {WRONG: float(self._is_wrong(heard))}

    def _calls(self, heard: list[str]) -> tuple["Call", ...]:
        return () if heard and self._is_wrong(heard) else super()._calls(heard)

    def _reply(self, heard: list[str], results: dict[str, Any] | None = None) -> str:
        if not heard or not self._is_wrong(heard):
            return super()._reply(heard, results)
        right = reply_to(heard, self._script, self._default)
        return wrong_reply(right, self._script, self._key(heard)) or self._default

    def _is_wrong(self, heard: list[str]) -> bool:
        """Decide by the conversation and the seed: the next run is wrong in the same turns."""
        return random.Random(f"wrong|{self._key(heard)}").random() >= self._accuracy

    def _key(self, heard: Sequence[str]) -> str:
        return f"{self._seed}|{self._model}|{len(heard)}|{heard[-1] if heard else ''}"

    async def _paced(self, said: list[str], messages: list[dict[str, Any]]) -> AsyncGenerator[str]:
        if self._network_ns:
            await self._clock.sleep_until_ns(self._clock.now_ns() + self._network_ns)
        prompt = max(1, len(prompt_tokens(messages)))
        async with aclosing(self.server.tokens(prompt, len(said))) as out:
            done = 0
            async for ready in out:
                for piece in said[done:ready]:
                    yield piece
                done = ready


def wrong_reply(right: str, script: Sequence[LibraryTurn], key: str) -> str | None:
    """Return another turn's reply, chosen by `key`; None if there is no other."""
    spoken = {turn.reply for turn in script if turn.reply and not turn.calls}
    others = sorted(spoken - {right})
    return random.Random(f"which|{key}").choice(others) if others else None
