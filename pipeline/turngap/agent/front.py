"""The front of a server of several processes: it accepts, and hands each connection to a worker.

The kernel's own way, several processes that listen at one port, spreads calls by a hash of their
addresses: of eight, one process may get six. Here each goes to the worker with the fewest. The
front reads no more than a request's head, and is not between the two ends of a call.
"""

import asyncio
import itertools
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from loguru import logger

from turngap.agent.channel import Channel, Message
from turngap.agent.connections import (
    AFTER_CLOSE_BYTES,
    BACKLOG,
    CLOSE_S,
    READ_BYTES,
    most_connections,
    refusal,
    too_late,
    too_many,
)
from turngap.agent.limits import Limits
from turngap.agent.routing import Route, path_of, route
from turngap.agent.seats import Seat, Seats, not_ready
from turngap.core.clock import Clock, ms_to_ns, ns_to_ms

NOT_LOADED = "not ready: the agent's models are still being loaded; try again in a few seconds"
AGAIN = "one of the agent's processes is starting again; try again in a few seconds"

# After an error of `accept`, as when the process has no descriptor left.
ACCEPT_AGAIN_MS = 500.0


@dataclass(eq=False)
class Hand:
    """A worker as the front knows it.

    Attributes:
        number: counted from 0; the page is with the first.
        channel: to it; None until it has started, and once it is gone.
        ready: it takes connections.
        seats: those of its conversations, by the number that it gave them.
    """

    number: int
    channel: Channel | None = None
    ready: bool = False
    seats: dict[int, Seat] = field(default_factory=dict[int, Seat])

    def send(self, message: Message, connection: socket.socket | None = None) -> None:
        if self.channel is not None:
            self.channel.send(message, connection)
        elif connection is not None:
            connection.close()

    def tell_state(self, message: Message) -> None:
        if self.channel is not None:
            self.channel.tell_state(message)


@dataclass(eq=False)
class _Open:
    """A connection: from where, and with whom; None: its request's head is being read."""

    address: str
    route: Route | None = None
    hand: Hand | None = None


class Front:
    """Accepts connections, counts them and the seats of all workers, and hands them over.

    Args:
        agent: its name, as its workers tell it.
        refused: called with the reason for each call for which there is no worker.

    Attributes:
        hands: the workers.
        open: whether workers get connections; until then all are told that nothing is loaded.
    """

    def __init__(
        self,
        listener: socket.socket,
        hands: list[Hand],
        seats: Seats,
        limits: Limits,
        clock: Clock,
        *,
        agent: str,
        refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.hands = hands
        self.open = False
        self._listener = listener
        self._seats = seats
        self._limits = limits
        self._clock = clock
        self._agent = agent
        self._refused = refused
        self._most = most_connections(limits, seats.most)
        self._connections: dict[int, _Open] = {}
        self._numbers = itertools.count()
        self._reading: set[asyncio.Task[None]] = set()
        self._lingering = 0

    def close(self) -> None:
        """Take no more connections, after `accept` was cancelled: the kernel refuses them."""
        self._listener.close()

    # Connections

    async def accept(self) -> None:
        """Take connections for ever."""
        self._listener.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    connection, address = await loop.sock_accept(self._listener)
                except OSError as e:
                    logger.error(f"no connection could be accepted: {e.strerror or e}")
                    await self._clock.sleep_until_ns(
                        self._clock.now_ns() + ms_to_ns(ACCEPT_AGAIN_MS)
                    )
                    continue
                connection.setblocking(False)
                task = asyncio.create_task(self._admit(connection, address[0]))
                self._reading.add(task)
                task.add_done_callback(self._reading.discard)
        finally:
            for task in self._reading:
                task.cancel()

    async def _admit(self, connection: socket.socket, address: str) -> None:
        number = next(self._numbers)
        opened = self._connections[number] = _Open(address)
        handed_over = False
        try:
            addresses = [each.address for each in self._connections.values()]
            if words := too_many((len(addresses), addresses.count(address)), self._most):
                del self._connections[number]
                await self._refuse(connection, 503, words)
                return
            handed_over = await self._read(number, opened, connection)
        except OSError:
            return  # the client is gone
        finally:
            if not handed_over:
                self._connections.pop(number, None)
                connection.close()

    async def _read(self, number: int, opened: _Open, connection: socket.socket) -> bool:
        """Read a request's head until it tells where it goes; return whether it went there."""
        begun_ns, head = self._clock.now_ns(), b""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.request_s):
                while (where := route(head)) is None:
                    piece = await loop.sock_recv(connection, READ_BYTES)
                    if not piece:
                        return False
                    head += piece
        except TimeoutError:
            await self._refuse(connection, 408, too_late(self._limits))
            return False
        hand = self.hand_for(where)
        if hand is None:
            if where is Route.CALL:
                self._refused("other")
            await self._answer(connection, path_of(head.partition(b"\n")[0]))
            return False
        opened.route, opened.hand = where, hand
        waited_s = ns_to_ms(self._clock.now_ns() - begun_ns) / 1000
        message = {"connection": number, "waited_s": waited_s, "begun": head.decode("latin-1")}
        hand.send({"kind": "connection", "brings": True, **message}, connection)
        return True

    def hand_for(self, where: Route) -> Hand | None:
        """Return the worker that takes such a connection now, if one does."""
        if not self.open:
            return None
        ready = [hand for hand in self.hands if hand.ready]
        if where is not Route.CALL:
            return next((hand for hand in ready if hand.number == 0), None)
        return min(ready, key=lambda hand: (self.calls_of(hand), hand.number), default=None)

    def calls_of(self, hand: Hand) -> int:
        """Return how many conversations a worker has, those that begin or end among them."""
        return sum(
            each.hand is hand and each.route is not Route.PAGE
            for each in self._connections.values()
        )

    async def _answer(self, connection: socket.socket, path: str) -> None:
        """Answer without a worker."""
        why = AGAIN if self.open else NOT_LOADED
        if path == "/healthz":
            said = {"agent": self._agent, "sessions": self._seats.taken}
            await self._refuse(connection, 200, said)
        elif path == "/readyz":
            if self.open and any(hand.ready for hand in self.hands):
                why = not_ready(self._seats)
            said = {"agent": self._agent, "ready": not why, "sessions": self._seats.taken}
            why_not = {"reason": why} if why else {}
            await self._refuse(connection, 503 if why else 200, said | why_not)
        else:
            await self._refuse(connection, 503, why)

    async def _refuse(
        self, connection: socket.socket, status: int, said: str | Mapping[str, object]
    ) -> None:
        words = (said,) if isinstance(said, str) else (json.dumps(said), "application/json")
        answer = refusal(status, *words)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.request_s):
                await asyncio.get_running_loop().sock_sendall(connection, answer)
        connection.shutdown(socket.SHUT_WR)
        await self._linger(connection)

    async def _linger(self, connection: socket.socket) -> None:
        """Read what the client still sends, as it would be reset by a close before that.

        Not for many at once: who opens more connections than allowed gets no more by it.
        """
        if self._lingering >= BACKLOG:
            return
        self._lingering += 1
        loop, left = asyncio.get_running_loop(), AFTER_CLOSE_BYTES
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    while left > 0 and (piece := await loop.sock_recv(connection, READ_BYTES)):
                        left -= len(piece)
        finally:
            self._lingering -= 1

    # Workers

    async def listen_to(self, hand: Hand) -> Message | None:
        """Do as a worker asks until it is gone.

        Returns:
            Its first word, where that is not that it is `ready`.
        """
        channel = hand.channel
        assert channel is not None
        while (came := await channel.receive()) is not None:
            message, _ = came
            match message["kind"]:
                case "ready" | "failed":
                    return message
                case "take":
                    self._take(hand, message)
                case "left":
                    if (seat := hand.seats.get(message["seat"])) is not None:
                        seat.leave()
                case "down":
                    if (seat := hand.seats.pop(message["seat"], None)) is not None:
                        self._seats.give_back(seat)
                case _:
                    self._connections.pop(message["connection"], None)
                    continue
            self.tell_seats()
        return None

    def lost(self, hand: Hand) -> int:
        """Forget a worker that is gone, with its connections; return how many calls it had."""
        calls = len([seat for seat in hand.seats.values() if not seat.left])
        for seat in hand.seats.values():
            self._seats.give_back(seat)
        for number in [n for n, each in self._connections.items() if each.hand is hand]:
            del self._connections[number]
        if hand.channel is not None:
            hand.channel.close()
        hand.channel, hand.ready = None, False
        hand.seats.clear()
        self.tell_seats()
        return calls

    def tell_seats(self) -> None:
        """Tell all workers how many seats are taken, and whether new ones are."""
        said = {"taken": self._seats.taken, "coming_down": self._seats.coming_down}
        for hand in self.hands:
            hand.tell_state({"kind": "seats", **said, "drains": self._seats.drains})

    def _take(self, hand: Hand, message: Message) -> None:
        seat = self._seats.take(message["address"])
        if not seat.refused:
            hand.seats[message["seat"]] = seat
        said = {"refused": seat.refused, "reason": seat.reason, "code": seat.code}
        self.tell_seats()
        hand.send({"kind": "seat", "seat": message["seat"], **said})
