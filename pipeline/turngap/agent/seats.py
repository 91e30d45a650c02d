"""The seats of a served agent: how many conversations run at once, and who gets one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from starlette.types import Scope

from turngap.agent.limits import CODE_FULL, CODE_RESTART, Limits, Meters, address_of
from turngap.core.clock import Clock

DRAINS = "this agent is shutting down and takes no new calls"

# With more seats than these, more conversations of one address may begin: one in five seconds for
# each seat, as where an exchange or a load test makes short calls.
SEATS_AT_LIMIT = 25


@dataclass(slots=True, eq=False)
class Seat:
    """A client's place.

    Attributes:
        refused: why there is none; empty if there is one.
        code: with which the client's WebSocket is closed then.
        left: the client is gone, and its pipeline comes down.
    """

    refused: str = ""
    code: int = CODE_FULL
    left: bool = False

    def leave(self) -> None:
        self.left = True


class Seats:
    """Limits the conversations that run at the same time, and how many of one address may begin.

    A client that connects and leaves again and again would keep the server busy with setting up
    conversations, which takes as long as twenty turns' worth of messages. A seat is free as soon
    as its client is gone, while as many pipelines as there are seats may still come down.

    Attributes:
        most: conversations at once.
        drains: no new ones are taken; to be set by whoever ends the server.
    """

    def __init__(self, most: int, limits: Limits, clock: Clock) -> None:
        self.most = most
        self.drains = False
        self._seats: set[Seat] = set()
        self._clock = clock
        # Everybody may come at once, and once again after an interruption.
        per_s = limits.begins_per_s * max(1.0, most / SEATS_AT_LIMIT)
        self._begins = Meters(per_s, 2 * most / per_s)

    @property
    def taken(self) -> int:
        """The number of conversations that run."""
        return sum(not seat.left for seat in self._seats)

    @property
    def coming_down(self) -> int:
        """The number of those whose client is gone while their pipeline still comes down."""
        return len(self._seats) - self.taken

    @property
    def why_none(self) -> str:
        """The reason why no call is taken; empty if one is."""
        if self.drains:
            return DRAINS
        if self.taken < self.most and len(self._seats) < 2 * self.most:
            return ""
        ending = self.coming_down
        still = f", and {ending} still ending" if ending else ""
        return (
            f"full: {self.taken} of {self.most} conversations{still}; try again later, or serve "
            "with a higher --max-sessions"
        )

    @asynccontextmanager
    async def seat(self, scope: Scope) -> AsyncIterator[Seat]:
        """Take a seat for as long as this lasts, or one that says why there is none."""
        if why := self.why_none:
            yield Seat(why, CODE_RESTART if self.drains else CODE_FULL)
            return
        if not self._begins.take(address_of(scope), self._clock.now_ns()):
            yield Seat("too many conversations begin: try again in a second")
            return
        seat = Seat()
        self._seats.add(seat)
        try:
            yield seat
        finally:
            self._seats.discard(seat)
