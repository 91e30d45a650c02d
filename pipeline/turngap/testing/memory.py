"""A connection to an agent in memory, for virtual time: messages arrive as they are sent.

With a `LineSpec`, they cross that line.
"""

import asyncio
from collections import deque
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
from turngap.caller.line.leg import Leg
from turngap.caller.line.running import (
    AGENT_BUFFER,
    CALLER_BUFFER,
    Crossings,
    LineEndedError,
    OnPiece,
    RunningLine,
)
from turngap.caller.line.spec import LineSpec
from turngap.caller.line.transport import RESET
from turngap.caller.opening import ANSWER_S, NO_ANSWER, QUIET_S, frame_of
from turngap.caller.rtc.rtp import Datagram
from turngap.core.clock import Clock
from turngap.testing.agent import Account, Script, converse
from turngap.testing.virtual import LoopClock

# Each with its instant; a `Close`, or None or an error without a handshake, ends who sends.
_Messages = asyncio.Queue[tuple[int, bytes | str | Close | LineEndedError | None]]
_GOODBYE = b"\x88\x00"  # a frame


class End:
    """One end of a line: sends into one queue and receives from another.

    Attributes:
        line: of the caller's end: the line between both, if there is one.
    """

    def __init__(
        self,
        clock: Clock,
        inbox: _Messages,
        outbox: "_Messages | _Way",
        line: RunningLine | None = None,
    ) -> None:
        self._clock = clock
        self.arrived_ns = 0
        self.line = line
        self._inbox = inbox
        self._outbox = outbox
        self._dead = False

    @property
    def crossings(self) -> Crossings | None:
        return self.line.crossings if self.line else None

    async def send(self, message: bytes | str) -> None:
        if isinstance(self._outbox, _Way):
            await self._outbox.has_room()
        if not self._dead:
            self._outbox.put_nowait((self._clock.now_ns(), message))

    async def recv(self) -> bytes | str:
        """Return the next message and set `arrived_ns` to its instant; bytes have it too.

        Raises:
            ConnectionClosed: the other end has closed the line, or has died.
        """
        self.arrived_ns, message = await self._inbox.get()
        if message is None or isinstance(message, LineEndedError):
            raise ConnectionClosedError(None, None) from message
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


class _Way:
    """One direction of a line in memory: a message arrives when its last byte does."""

    def __init__(self, inbox: _Messages, mask: bytes = b"") -> None:
        self._inbox, self._mask = inbox, mask
        self._line: tuple[Leg, OnPiece] | None = None
        self._left: deque[tuple[int, bytes | str | Close | None]] = deque()
        self._step: list[bytes] = []
        self.changed = asyncio.Event()

    def join(self, leg: Leg, send: OnPiece) -> None:
        """Take the leg to send over, and the function that sends."""
        self._line = leg, send

    def lose(self, at_ns: int, why: str) -> None:
        """End the direction at its receiver; who sends waits no more."""
        self._line = None
        self.changed.set()
        self._inbox.put_nowait((at_ns, LineEndedError(why)))

    def put_nowait(self, sent: tuple[int, bytes | str | Close | None]) -> None:
        """Send with what else is sent in this step, as turngap's own server does."""
        if self._line is not None:
            at_ns, message = sent
            whole = isinstance(message, bytes | str)
            data = frame_of(message, self._mask) if whole else _GOODBYE
            self._left.append((len(data), message))
            if not self._step:
                asyncio.get_running_loop().call_soon(self._flush, at_ns)
            self._step.append(data)

    def _flush(self, at_ns: int) -> None:
        step, self._step = b"".join(self._step), []
        if self._line is not None:
            self._line[1](at_ns, step)

    def take(self, at_ns: int, data: bytes) -> None:
        """Take bytes that came out."""
        came = len(data)
        while came:
            size, message = self._left.popleft()
            if came < size:
                self._left.appendleft((size - came, message))
                return
            came -= size
            self._inbox.put_nowait((at_ns, message))

    async def has_room(self) -> None:
        """Wait as at a full socket."""
        most = CALLER_BUFFER if self._mask else AGENT_BUFFER
        while self._line and self._line[0].room - sum(map(len, self._step)) < -most:
            self.changed.clear()
            await self.changed.wait()


def two_ends(clock: Clock, line: LineSpec | None = None, call: str = "") -> tuple[End, End]:
    """Make a connection in memory: return the caller's end of it and the agent's.

    With a `line`, each message crosses it as a WebSocket's frame, as it is for this `call`. When
    the line is reset, both ends lose it; when it is half-open, the caller notices after the time
    that it takes with a socket.
    """
    up, down = _Messages(), _Messages()
    if line is None:
        return End(clock, down, up), End(clock, up, down)
    there, back = _Way(up, mask=bytes(4)), _Way(down)

    def change() -> None:
        there.changed.set()
        back.changed.set()

    def reset() -> None:
        there.lose(clock.now_ns(), RESET)
        back.lose(clock.now_ns(), RESET)

    def half_open() -> None:
        asyncio.get_running_loop().call_later(
            QUIET_S + ANSWER_S, lambda: back.lose(clock.now_ns(), NO_ANSWER)
        )

    running = RunningLine(
        line,
        call,
        clock,
        there.take,
        back.take,
        on_change=change,
        on_half_open=half_open,
        on_reset=reset,
    )
    there.join(running.up, running.send_up)
    back.join(running.down, running.send_down)
    return End(clock, down, there, running), End(clock, up, back)


# An agent of any kind: it is given its end of the line.
Course = Callable[[End, Clock], Coroutine[Any, Any, None]]


@asynccontextmanager
async def line_to(
    script: Script | Course,
    session: Session | None = None,
    clock: Clock | None = None,
    account: Account | None = None,
    *,
    line: LineSpec | None = None,
    call: str = "",
) -> AsyncIterator[Line]:
    """Open a connection to an agent that follows `script`, its handshake done, without a socket.

    It crosses `line`, as it is for this `call`. The agent speaks the dialect of `session`, or its
    own without one; `account` records its actions.

    Raises:
        AgentError: as `turngap.caller.connection.open_line` does.
    """
    clock = clock or LoopClock()
    caller, end = two_ends(clock, line, call)
    if isinstance(script, Script):
        script = replace(script, dialect=session.name if session else script.dialect)
        session = session or find_dialect(script.dialect).session()
        agent = converse(script, end, clock, account)
    else:
        agent = script(end, clock)
    async with line_from(caller, agent, session, clock) as opened:
        yield opened


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
        if caller.line is not None:
            caller.line.close()
        agent.cancel()
        await asyncio.wait([agent])
        if not agent.cancelled() and (error := agent.exception()) is not None:
            raise error
