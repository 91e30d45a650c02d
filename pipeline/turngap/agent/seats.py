"""The seats of a served agent: how many conversations run at once, and who gets one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from turngap.agent.limits import CODE_FULL, CODE_RESTART


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
    """Limits the conversations that run at the same time.

    A seat is free as soon as its client is gone, while as many pipelines as there are seats may
    still come down.

    Attributes:
        most: conversations at once.
        drains: no new ones are taken; to be set by whoever ends the server.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.drains = False
        self._seats: set[Seat] = set()

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
            return "this agent is shutting down and takes no new calls"
        if self.taken < self.most and len(self._seats) < 2 * self.most:
            return ""
        ending = f", and {self.coming_down} still ending" if self.coming_down else ""
        return (
            f"full: {self.taken} of {self.most} conversations{ending}; try again later, or serve "
            "with a higher --max-sessions"
        )

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[Seat]:
        """Take a seat for as long as this lasts, or one that says why there is none."""
        if why := self.why_none:
            yield Seat(why, CODE_RESTART if self.drains else CODE_FULL)
            return
        seat = Seat()
        self._seats.add(seat)
        try:
            yield seat
        finally:
            self._seats.discard(seat)
