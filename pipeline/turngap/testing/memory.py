"""A line to a scripted agent in memory: what is sent has arrived. For virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from websockets.exceptions import ConnectionClosedError

from turngap.caller.dialect import Dialect
from turngap.caller.line import Line
from turngap.caller.pipecat import PipecatDialect
from turngap.core.clock import Clock
from turngap.testing.agent import Script, converse
from turngap.testing.virtual import LoopClock

# Each with its instant; None stands for the end of who sends.
_Messages = asyncio.Queue[tuple[int, bytes | str | None]]


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
        """The next message; `arrived_ns` is its instant.

        Raises:
            ConnectionClosedError: the other end has died.
        """
        self.arrived_ns, message = await self._inbox.get()
        if message is None:
            raise ConnectionClosedError(None, None)
        return message

    def die(self) -> None:
        """Be gone, without a closing handshake: what was sent before still arrives."""
        self._outbox.put_nowait((self._clock.now_ns(), None))
        self._dead = True


@asynccontextmanager
async def line_to(
    script: Script, dialect: Dialect | None = None, clock: Clock | None = None
) -> AsyncIterator[Line]:
    """A line to an agent that follows `script`, its handshake done. No socket is involved.

    Raises:
        AgentError: as `turngap.caller.line.open_line` does.
    """
    clock = clock or LoopClock()
    up, down = _Messages(), _Messages()
    agent = asyncio.create_task(converse(script, End(clock, up, down), clock))
    try:
        line = Line(End(clock, down, up), dialect or PipecatDialect(), clock)
        await line.handshake()
        yield line
    finally:
        agent.cancel()
        await asyncio.wait([agent])
        if not agent.cancelled() and (error := agent.exception()) is not None:
            raise error
