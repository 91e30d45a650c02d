"""A line to an agent in memory, for virtual time: messages arrive as they are sent."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from starlette.websockets import WebSocket, WebSocketState
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, ConnectionClosedOK
from websockets.frames import Close

from turngap.caller.connection import Line
from turngap.caller.dialects.registry import find_dialect
from turngap.caller.dialects.session import Session
from turngap.caller.endpoint import PIPECAT
from turngap.caller.rtc.rtp import Datagram
from turngap.core.clock import Clock
from turngap.testing.agent import Account, Script, converse
from turngap.testing.virtual import LoopClock

# Each with its instant; a `Close`, or None without a handshake, stands for the end of who sends.
_Messages = asyncio.Queue[tuple[int, bytes | str | Close | None]]


class End:
    """One end of a line: sends into one queue and receives from another."""

    def __init__(self, clock: Clock, inbox: _Messages, outbox: _Messages) -> None:
        self._clock = clock
        self.arrived_ns = 0
        self._inbox = inbox
        self._outbox = outbox
        self._dead = False

    async def send(self, message: bytes | str) -> None:
        if not self._dead:
            self._outbox.put_nowait((self._clock.now_ns(), message))

    async def recv(self) -> bytes | str:
        """Return the next message and set `arrived_ns` to its instant; bytes have it too.

        Raises:
            ConnectionClosed: the other end has closed the line, or has died.
        """
        self.arrived_ns, message = await self._inbox.get()
        if message is None:
            raise ConnectionClosedError(None, None)
        if isinstance(message, Close):
            raise ConnectionClosedOK(message, message, rcvd_then_sent=True)
        return message if isinstance(message, str) else Datagram.at(message, self.arrived_ns)

    def die(self) -> None:
        """Disappear without a closing handshake; earlier messages still arrive."""
        self._end(None)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the line; earlier messages still arrive."""
        self._end(Close(code, reason))

    def _end(self, last: Close | None) -> None:
        self._outbox.put_nowait((self._clock.now_ns(), last))
        self._dead = True


def two_ends(clock: Clock) -> tuple[End, End]:
    """Make a line in memory: return the caller's end of it and the agent's."""
    up, down = _Messages(), _Messages()
    return End(clock, down, up), End(clock, up, down)


# An agent of any kind: it is given its end of the line.
Course = Callable[[End, Clock], Coroutine[Any, Any, None]]


@asynccontextmanager
async def line_to(
    script: Script | Course,
    session: Session | None = None,
    clock: Clock | None = None,
    account: Account | None = None,
) -> AsyncIterator[Line]:
    """Open a line to an agent that follows `script`, its handshake done, without a socket.

    The agent speaks the dialect of `session`, or its own without one; `account` records its
    actions.

    Raises:
        AgentError: as `turngap.caller.connection.open_line` does.
    """
    clock = clock or LoopClock()
    caller, end = two_ends(clock)
    if isinstance(script, Script):
        script = replace(script, dialect=session.name if session else script.dialect)
        session = session or find_dialect(script.dialect).session()
        agent = converse(script, end, clock, account)
    else:
        agent = script(end, clock)
    async with line_from(caller, agent, session, clock) as line:
        yield line


async def accepted(end: End) -> WebSocket:
    """Return the agent's end of a line as the WebSocket that a server has accepted."""
    socket = offered(end, {})
    await socket.accept()
    return socket


def offered(end: End, headers: Mapping[str, str]) -> WebSocket:
    """Return the agent's end of a line as a WebSocket that a server has not accepted yet."""

    async def receive() -> MutableMapping[str, Any]:
        try:
            message = await end.recv()
        except ConnectionClosed:
            return {"type": "websocket.disconnect", "code": 1006}
        key = "bytes" if isinstance(message, bytes) else "text"
        return {"type": "websocket.receive", key: message}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "websocket.send":
            await end.send(message.get("bytes") or message["text"])
        elif message["type"] == "websocket.close":
            end.die()

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    socket = WebSocket({"type": "websocket", "headers": raw}, receive, send)
    socket.client_state = WebSocketState.CONNECTED
    return socket


@asynccontextmanager
async def line_from(
    caller: End,
    agent: Coroutine[Any, Any, None] | asyncio.Task[None],
    session: Session | None,
    clock: Clock,
) -> AsyncIterator[Line]:
    """Open a line from this end of it, while the agent at the other end is at work."""
    agent = asyncio.ensure_future(agent)
    try:
        line = Line(caller, session or find_dialect(PIPECAT).session(), clock)
        await line.handshake()
        yield line
    finally:
        agent.cancel()
        await asyncio.wait([agent])
        if not agent.cancelled() and (error := agent.exception()) is not None:
            raise error
