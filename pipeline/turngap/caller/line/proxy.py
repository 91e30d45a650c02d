"""A line in front of any TCP server, for other people's clients; to it, bytes are only bytes."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import cast

from turngap.caller.arrival import connect_stamped
from turngap.caller.line.running import Crossings
from turngap.caller.line.spec import LineSpec
from turngap.caller.line.transport import WATCH_S, LinedTransport, break_off, narrow
from turngap.clocks import MonotonicClock, others_first
from turngap.core.clock import NS_PER_S, ns_to_ms
from turngap.core.errors import AgentError
from turngap.core.wording import bytes_words

MOST_CONNECTIONS = 256
REACH_S = 10.0
Place = tuple[str, int]


class _Near(asyncio.Protocol):
    """The proxy's end of a line, which passes everything on to the client."""

    def __init__(self, client: "_Client", spec: LineSpec, call: str) -> None:
        self._client, self._spec, self._call = client, spec, call
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        real, client = cast("asyncio.Transport", transport), self._client
        self.lined = lined = LinedTransport(
            real, self, self._spec, self._call, MonotonicClock(), keep=0
        )
        lined.set_write_buffer_limits(high=0)
        client.lined = lined
        for ours, other in ((self, client.transport), (client, lined)):
            ours.data_received = other.write
            ours.pause_writing = other.pause_reading
            ours.resume_writing = other.resume_reading
        client.transport.resume_reading()

    def eof_received(self) -> bool:
        self._client.agent_ended = True
        if not self._client.transport.is_closing():
            self._client.transport.write_eof()
        return not self._client.ended

    def connection_lost(self, exc: Exception | None) -> None:
        transport = self._client.transport
        transport.close() if exc is None else break_off(transport)
        self.over.set()


class _Client(asyncio.Protocol):
    """A client's connection to the proxy; it is not read before the agent is reached."""

    transport: asyncio.Transport
    lined: LinedTransport | None = None
    ended = agent_ended = False

    def __init__(self, take: "Callable[[_Client], None]") -> None:
        self._take = take

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        # Not at once: before Python 3.11.4, asyncio begins to read after this, paused or not.
        asyncio.get_running_loop().call_soon(self.transport.pause_reading)
        self._take(self)

    def eof_received(self) -> bool:
        self.ended = True
        if self.lined is not None:
            self.lined.close() if self.agent_ended else self.lined.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.lined is not None:
            self.lined.close() if exc is None else self.lined.reset()


@dataclass(slots=True)
class Proxy:
    """Connections to one server, each over a line of its own: the call `connection 1` and so on.

    Attributes:
        on_end: receives a line of text when a connection is over, or could not be made.
    """

    spec: LineSpec
    to: Place
    on_end: Callable[[str], None]
    _numbers: "count[int]" = field(default_factory=lambda: count(1))
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def listen(self, at: Place) -> Place:
        """Begin to take connections; return where.

        Raises:
            AgentError: nothing listens at the server's address, or the port cannot be had.
        """
        try:
            (await connect_stamped(*self.to, REACH_S)).close()
        except OSError as e:
            hint = "is the agent running, and is this its host and port?"
            raise AgentError("agent.unreachable", self._unreached(e), hint=hint) from e
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        # With its protocol, or asyncio leaves Nagle's algorithm on, which holds packets back.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            narrow(listener)
            listener.bind(at)
            self._server = await loop.create_server(lambda: _Client(self.take), sock=listener)
        except OSError as e:
            listener.close()
            in_use = e.errno == errno.EADDRINUSE
            why = "something listens there already" if in_use else e.strerror or str(e)
            raise AgentError(
                "line.port",
                f"cannot listen at {shown(at)}: {why}",
                hint="give another port, or none for a free one: --listen 127.0.0.1:0",
            ) from e
        return listener.getsockname()[:2]

    async def close(self) -> None:
        """End all connections at once, and take no more."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await others_first()  # the transports' last callbacks

    def take(self, client: _Client) -> None:
        """Connect a client to the server."""
        name = f"connection {next(self._numbers)}"
        if len(self._tasks) >= MOST_CONNECTIONS:
            self.on_end(f"{name}: refused, since {MOST_CONNECTIONS} are open")
            break_off(client.transport)
            return
        task = asyncio.create_task(self._carry(client, name), name="turngap-line-connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, client: _Client, name: str) -> None:
        loop, begun_ns = asyncio.get_running_loop(), MonotonicClock().now_ns()
        near = _Near(client, self.spec, name)
        try:
            tcp = await connect_stamped(*self.to, REACH_S, narrow)
            await loop.create_connection(lambda: near, sock=tcp)
        except OSError as e:
            self.on_end(f"{name}: {self._unreached(e)}")
            break_off(client.transport)
            return
        except asyncio.CancelledError:
            client.transport.abort()
            raise
        try:
            await near.over.wait()
            await near.lined.ended()
        finally:
            near.lined.kill()
            client.transport.abort()
        seconds = (MonotonicClock().now_ns() - begun_ns) / NS_PER_S
        self.on_end(f"{name}: {ended_words(seconds, near.lined.line.crossings)}")

    def _unreached(self, error: OSError) -> str:
        why = os.strerror(error.errno) if error.errno else error
        return f"nothing answers at {shown(self.to)}: {why}"


def shown(place: Place) -> str:
    """Format a host and a port."""
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def ended_words(seconds: float, crossings: Crossings) -> str:
    """Sum a connection up in a line."""
    words = [f"{seconds:.1f} s"]
    for way, crossing in (("up", crossings.up), ("down", crossings.down)):
        stall_ms = ns_to_ms(max((end - begun for begun, end in crossing.stalls), default=0))
        size, most = bytes_words(crossing.bytes), bytes_words(crossing.most_waiting)
        words.append(f"{size} {way} (longest stall {stall_ms:,.0f} ms, backlog {most})")
    if crossings.half_open_ns is not None and crossings.agent_left_ns is not None:
        left_s = (crossings.agent_left_ns - crossings.half_open_ns) / NS_PER_S
        words.append(f"half-open, and the agent left after {left_s:.1f} s")
    elif crossings.half_open_ns is not None:
        words.append(f"half-open, and the agent had not left {WATCH_S:g} s later")
    return ", ".join(words)
