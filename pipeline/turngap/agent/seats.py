"""The seats of a served agent: how many conversations run at once, and who gets one."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Scope

from turngap.agent.limits import CODE_FULL, CODE_RESTART, Limits, Meters, address_of
from turngap.agent.metrics import Metrics
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
        reason: the same in a word, for counting: `full`, `begins` or `draining`.
        code: with which the client's WebSocket is closed then.
        left: the client is gone, and its pipeline comes down.
        on_left: all of these are called once when that is so.
    """

    refused: str = ""
    reason: str = ""
    code: int = CODE_FULL
    left: bool = False
    on_left: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def leave(self) -> None:
        if not self.left:
            self.left = True
            for tell in self.on_left:
                tell()


class Places(Protocol):
    """What the endpoints of a server know of its seats; several processes may share them.

    Attributes:
        most: conversations at once.
        taken: those that run.
        coming_down: those whose client is gone while their pipeline still comes down.
        drains: it takes no new ones, and ends when the last has ended.
    """

    @property
    def most(self) -> int: ...

    @property
    def taken(self) -> int: ...

    @property
    def coming_down(self) -> int: ...

    @property
    def drains(self) -> bool: ...

    def seat(self, scope: Scope) -> AbstractAsyncContextManager[Seat]:
        """Take a seat until it is left, or for as long as this lasts."""
        ...


def not_ready(places: Places) -> str:
    """Return why no call is taken; empty if one is."""
    if places.drains:
        return DRAINS
    if places.taken >= places.most or places.taken + places.coming_down >= 2 * places.most:
        return _full(places)
    return ""


def _full(places: Places) -> str:
    ending = places.coming_down
    still = f", and {ending} more {'is' if ending == 1 else 'are'} still ending" if ending else ""
    return (
        f"full: {places.taken} of {places.most} conversations{still}; try again later, or serve "
        "with a higher --max-sessions"
    )


class Seats:
    """Limits the conversations that run at the same time, and how many of one address may begin.

    A client that connects and leaves again and again would keep the server busy with setting up
    conversations, which takes as long as twenty turns' worth of messages. A seat is free as soon
    as its client is gone, while as many pipelines as there are seats may still come down.

    Attributes:
        drains: as in `Places`; to be set by whoever ends the server.
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
        return sum(not seat.left for seat in self._seats)

    @property
    def coming_down(self) -> int:
        return len(self._seats) - self.taken

    def take(self, address: str) -> Seat:
        """Return a seat, which has to be given back, or one that says why there is none."""
        if why := not_ready(self):
            return Seat(why, "draining", CODE_RESTART) if self.drains else Seat(why, "full")
        if not self._begins.take(address, self._clock.now_ns()):
            return Seat("too many conversations begin: try again in a second", "begins")
        seat = Seat()
        self._seats.add(seat)
        return seat

    def give_back(self, seat: Seat) -> None:
        """Free a seat: its conversation has come down. One that was refused is let be."""
        self._seats.discard(seat)

    @asynccontextmanager
    async def seat(self, scope: Scope) -> AsyncIterator[Seat]:
        seat = self.take(address_of(scope))
        try:
            yield seat
        finally:
            self.give_back(seat)


class SeatsBehind:
    """The seats of others, for whoever does more when one is taken."""

    def __init__(self, places: Places) -> None:
        self._places = places

    @property
    def most(self) -> int:
        return self._places.most

    @property
    def taken(self) -> int:
        return self._places.taken

    @property
    def coming_down(self) -> int:
        return self._places.coming_down

    @property
    def drains(self) -> bool:
        return self._places.drains


class CountedSeats(SeatsBehind):
    """Seats of which is counted who gets one, and why others do not."""

    def __init__(self, places: Places, metrics: Metrics) -> None:
        super().__init__(places)
        self._metrics = metrics
        metrics.seats(places.most)

    @asynccontextmanager
    async def seat(self, scope: Scope) -> AsyncIterator[Seat]:
        async with self._places.seat(scope) as seat:
            if seat.refused:
                self._metrics.refused(seat.reason)
                yield seat
                return
            with self._metrics.session() as leave:
                seat.on_left.append(leave)
                yield seat
