"""One of several processes that serve an agent: its connections and seats come from the front."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

from starlette.types import ASGIApp, Scope

from turngap.agent.channel import Channel, Message, packed
from turngap.agent.connections import READ_BYTES, Config, Http
from turngap.agent.drain import Server
from turngap.agent.limits import Limits, address_of
from turngap.agent.seats import Seat
from turngap.core.errors import TurngapError


class SharedSeats:
    """The seats that all workers have together, as this one knows them (`Places`)."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = self.coming_down = 0
        self.drains = False
        self._channel: Channel | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Seat]] = {}

    def attach(self, channel: Channel) -> None:
        """Ask the front at the other end of this from now on."""
        self._channel = channel

    def changed(self, message: Message) -> None:
        """Take the front's word on how many seats are taken."""
        self.taken, self.coming_down = message["taken"], message["coming_down"]
        self.drains = message["drains"]

    def answered(self, message: Message) -> None:
        """Take the front's answer to a client that wants a seat."""
        asked = self._asked.pop(message["seat"], None)
        if asked is not None and not asked.done():
            asked.set_result(Seat(message["refused"], message["reason"], message["code"]))

    @asynccontextmanager
    async def seat(self, scope: Scope) -> AsyncIterator[Seat]:
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self._tell("take", number, address=address_of(scope))
        try:
            seat: Seat = await asked
            seat.on_left.append(lambda: self._tell("left", number))
            yield seat
        finally:
            self._asked.pop(number, None)
            self._tell("down", number)

    def _tell(self, kind: str, number: int, **more: Any) -> None:
        if self._channel is not None:
            self._channel.send({"kind": kind, "seat": number, **more})


class _HandedOver(Http):
    """A connection of which the front has read the beginning."""

    def __init__(
        self,
        config: Config,
        server: Server,
        begun: bytes,
        waited_s: float,
        opened: Callable[[asyncio.BaseTransport], None],
    ) -> None:
        super().__init__(config, server.server_state, server.lifespan.state)
        self.waited_s = waited_s
        self._begun, self._opened = begun, opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened(transport)
        super().connection_made(transport)
        spoken = cast("asyncio.Transport", transport)
        # Before the transport begins to read. What upgrades to a WebSocket changes its protocol.
        for at in range(0, len(self._begun), READ_BYTES):
            protocol = cast("Http", spoken.get_protocol())
            protocol.data_received(self._begun[at : at + READ_BYTES])


class _Server(Server):
    """Ends when the front says so: a signal is the front's to obey, of the whole group as well."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Worker:
    """Serves the connections that the front hands over, until the front ends it or is gone."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        seats: SharedSeats,
        at_end: Callable[[], Awaitable[None]],
    ) -> None:
        self._config = Config(app, limits, seats.most)
        self._config.on_closed = self._closed
        self._server = _Server(self._config)
        self._seats = seats
        self._at_end = at_end
        self._numbers: dict[asyncio.BaseTransport, int] = {}

    async def serve(self, end: socket.socket, ready: Message) -> None:
        """Tell the front that this is `ready`, and serve."""
        self._channel = Channel(end)
        self._seats.attach(self._channel)
        serving = asyncio.create_task(self._server.serve(sockets=[]))
        while not self._server.started and not serving.done():
            await asyncio.wait({serving}, timeout=0.01)
        self._channel.send({"kind": "ready", **ready})
        try:
            await self._obey()
        finally:
            self._server.should_exit = True
            await serving
            await self._at_end()
            self._channel.close()

    async def _obey(self) -> None:
        while (came := await self._channel.receive()) is not None:
            message, connection = came
            match message["kind"]:
                case "connection":
                    await self._take(message, connection)
                case "seat":
                    self._seats.answered(message)
                case "seats":
                    self._seats.changed(message)
                case _:
                    return

    async def _take(self, message: Message, connection: socket.socket | None) -> None:
        number, begun = message["connection"], message["begun"].encode("latin-1")
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.BaseProtocol:
            opened = partial(self._opened, number)
            return _HandedOver(self._config, self._server, begun, message["waited_s"], opened)

        try:
            if connection is None:
                raise OSError("no descriptor is left for it")
            await loop.connect_accepted_socket(protocol, connection)
        except OSError:
            self._channel.send({"kind": "closed", "connection": number})

    def _opened(self, number: int, transport: asyncio.BaseTransport) -> None:
        self._numbers[transport] = number

    def _closed(self, transport: asyncio.BaseTransport) -> None:
        number = self._numbers.pop(transport, None)
        if number is not None:
            self._channel.send({"kind": "closed", "connection": number})


def tell_failure(end: socket.socket, error: TurngapError) -> None:
    """Tell the front why this worker cannot serve."""
    failed = {"error": error.kind, "message": error.message, "hint": error.hint}
    end.sendall(packed({"kind": "failed", "exit_code": int(error.exit_code), **failed}))
