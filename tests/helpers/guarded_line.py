"""A client of the server's guard in memory and virtual time: raw messages in any protocol."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from turngap.agent.guard import Guard, Spoken
from turngap.agent.limits import Limits
from turngap.agent.session import Assembly
from turngap.core.clock import ms_to_ns
from turngap.testing import LoopClock


class Client:
    """The client's end: `sent` has the server's messages so far, each with its instant (ns)."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.got: list[tuple[int, str | bytes]] = []
        self.closed: tuple[int, str] | None = None
        self._up = asyncio.Queue[dict[str, Any]]()

    def send(self, message: str | bytes) -> None:
        key = "text" if isinstance(message, str) else "bytes"
        self._up.put_nowait({"type": "websocket.receive", key: message})

    def leave(self) -> None:
        self._up.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def wait(self, ms: float) -> None:
        await self.clock.sleep_until_ns(self.clock.now_ns() + ms_to_ns(ms))

    async def receive(self) -> dict[str, Any]:
        return await self._up.get()

    async def take(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            self.closed = (message["code"], message["reason"])
            self.leave()
        else:
            self.got.append((self.clock.now_ns(), message.get("bytes") or message["text"]))


@asynccontextmanager
async def guarded(assembly: Assembly, spoken: Spoken) -> AsyncIterator[Client]:
    """A client of an agent, which has come down when this ends."""
    client = Client()
    assembly = dataclasses.replace(assembly, clock=client.clock)
    guard = Guard(Limits(), client.clock, spoken)
    scope = {"type": "websocket", "headers": [], "path": "/"}
    serving = asyncio.create_task(guard.run(assembly, scope, client.receive, client.take))
    try:
        yield client
    finally:
        client.leave()
        await serving
