"""Whether the agent is still there: callers of a bot that has crashed would dial on for nothing."""

import asyncio
import errno
from collections.abc import Awaitable, Callable

from turngap.caller.arrival import is_of_this_machine
from turngap.core.clock import NS_PER_S, Clock
from turngap.core.errors import AgentError
from turngap.load.calls import CallMark, News, Played
from turngap.load.record import LoadTurn
from turngap.load.schedule import Step

UNREACHABLE = "agent.unreachable"
# A bot that somebody restarts is back by then.
GONE_S = 10.0
LOOK_EVERY_S = 1.0

# Asks whether anything listens where the agent was: `Endpoint.knock`.
Knock = Callable[[], Awaitable[None]]
# Whether what is left of a step would change nothing.
Decided = Callable[[Played], bool]


class AgentGoneError(AgentError):
    """Nothing has listened at the agent's URL for `GONE_S`.

    Attributes:
        void: why the step that was played says nothing of the agent.
    """

    void = ""


class Presence:
    """Looks whether the agent is there, once a call could not be made, or broke off.

    Args:
        url: as it is shown.
    """

    def __init__(self, url: str, knock: Knock, clock: Clock) -> None:
        self._url = url
        self._knock = knock
        self._clock = clock
        self._begun_ns = 0
        self._missing_ns: int | None = None  # since when there was no sign of it
        self.played = Played()

    def take(self, said: News) -> None:
        """Take what a caller tells: a line that opens, and a reply, are signs of the agent."""
        self.played.take(said)
        if _shows_it(said):
            self._missing_ns = None
        elif _may_be_gone(said) and self._missing_ns is None:
            self._missing_ns = self._clock.now_ns()

    async def during(
        self, step: Step, playing: Awaitable[Played], decided: Decided = lambda _: False
    ) -> Played:
        """Play a step for as long as the agent is there, and it is not `decided` what it says.

        Raises:
            AgentGoneError: it is not; `played` has what was played of the step.
        """
        self._begun_ns, self._missing_ns, self.played = self._clock.now_ns(), None, Played()
        task = asyncio.ensure_future(playing)
        looking = asyncio.create_task(self._look(step, decided), name="turngap-load-presence")
        try:
            await asyncio.wait({task, looking}, return_when=asyncio.FIRST_COMPLETED)
            if not looking.done() or task.done():
                return await task
            looking.result()
        finally:
            for each in (task, looking):
                each.cancel()
            await asyncio.gather(task, looking, return_exceptions=True)
        return self.played

    async def _look(self, step: Step, decided: Decided) -> None:
        while not decided(self.played):
            await self._clock.sleep_until_ns(self._clock.now_ns() + round(LOOK_EVERY_S * NS_PER_S))
            since_ns = self._missing_ns
            if since_ns is None:
                continue
            if await self._listens():
                if self._missing_ns == since_ns:
                    self._missing_ns = None
            elif self._missing_ns == since_ns and self._missing_s() >= GONE_S:
                raise self._gone(step, since_ns)

    def _missing_s(self) -> float:
        since_ns = self._missing_ns
        return 0.0 if since_ns is None else (self._clock.now_ns() - since_ns) / NS_PER_S

    async def _listens(self) -> bool:
        """Whether anything does; one that takes too long to say so is busy, and not gone."""
        try:
            await self._knock()
        except AgentError as e:
            why = e.__cause__
            busy = isinstance(why, TimeoutError) or getattr(why, "errno", 0) == errno.ETIMEDOUT
            return e.kind != UNREACHABLE or busy or is_of_this_machine(why)
        return True

    def _gone(self, step: Step, since_ns: int) -> AgentGoneError:
        at_s = (since_ns - self._begun_ns) / NS_PER_S
        planned = sum(sum(call.counted) for call in step.calls)
        over = sum(turn.counted and turn.played is not None for turn in self.played.turns)
        # Of this kind, since whoever started the agent then says what its process ended with.
        error = AgentGoneError(
            UNREACHABLE,
            f"the agent is gone: nothing has listened at {self._url} since {at_s:.0f} s into step "
            f"{step.number} ({over} of {planned} turns were over)",
            hint="look at the bot's log; what was played until then is kept",
        )
        error.void = f"the agent was gone from {at_s:.0f} s on"
        return error


def _shows_it(said: News) -> bool:
    """Whether it shows that the agent is there: a line that opens, or a reply."""
    if isinstance(said, LoadTurn):
        return said.played is not None and said.played.replied and not _line_lost(said)
    return isinstance(said, CallMark) and said.running


def _may_be_gone(said: News) -> bool:
    return isinstance(said, LoadTurn) and (
        said.missed in ("refused", "dropped") or _line_lost(said)
    )


def _line_lost(turn: LoadTurn) -> bool:
    return turn.played is not None and turn.played.ended == "line_lost"
