"""Scripted agents in memory and virtual time, where agents at URLs would be: whole runs at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count

import pytest
from fake_agents import speaks_pipecat

from turngap.caller import stream
from turngap.caller.connection import Line
from turngap.caller.endpoint import Endpoint
from turngap.check import play as checking
from turngap.core.clock import Clock, ms_to_ns
from turngap.play import rounds, run
from turngap.testing import LoopClock, in_virtual_time
from turngap.testing.agent import Script
from turngap.testing.memory import Course, line_to
from turngap.testing.virtual import VirtualLoop


class VirtualAgents:
    """Every run that a test plays goes to these agents, and every `asyncio.run` in virtual time.

    Attributes:
        stalled: whether the machine stands still again and again during the nth conversation.
        opened: the endpoint of each conversation, with the headers that an agent would be sent.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stalled: Callable[[int], bool] = lambda _: False
        self.opened: list[Endpoint] = []
        self._scripts: dict[str, Script | Course] = {}
        self._played = count()
        line = self._line

        def open_in_memory(
            endpoint: Endpoint, clock: Clock, **_: float
        ) -> AbstractAsyncContextManager[Line]:
            return line(endpoint, clock)

        monkeypatch.setattr(Endpoint, "open", open_in_memory)
        monkeypatch.setattr(rounds, "identify", speaks_pipecat)
        for module in (run, rounds, stream, checking):
            monkeypatch.setattr(module, "MonotonicClock", _clock)
        monkeypatch.setattr(asyncio, "run", in_virtual_time)

    def url_of(self, script: Script | Course, host: str = "in-memory") -> str:
        """Return an address at which an agent that follows the script can be reached."""
        url = f"ws://{host}/{len(self._scripts)}"
        self._scripts[url] = script
        return url

    @asynccontextmanager
    async def _line(self, endpoint: Endpoint, clock: Clock) -> AsyncIterator[Line]:
        self.opened.append(endpoint)
        stalls = asyncio.create_task(_stand_still()) if self.stalled(next(self._played)) else None
        try:
            async with line_to(self._scripts[endpoint.url], None, clock) as line:
                yield line
        finally:
            if stalls is not None:
                stalls.cancel()


def _clock(**_: object) -> Clock:
    return LoopClock()


async def _stand_still() -> None:
    """For 22 ms, five times a second: as a shared machine does that is quiet otherwise."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    while True:
        await LoopClock().sleep_until_ns(loop.now_ns() + ms_to_ns(200))
        loop.hold_up(22)
