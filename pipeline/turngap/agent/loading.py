"""What clients are told while an agent that is served from one process loads its models."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from turngap.agent.front import Front
from turngap.agent.limits import Limits
from turngap.agent.seats import Seats
from turngap.core.clock import Clock


@contextmanager
def answering_while_loading(
    listener: socket.socket, seats: Seats, limits: Limits, clock: Clock, agent: str
) -> Iterator[None]:
    """Tell whoever connects meanwhile that nothing is loaded, from a thread of its own."""
    began = threading.Event()
    stop: list[Callable[[], object]] = []

    async def answer() -> None:
        front = Front(listener, [], seats, limits, clock, agent=agent)
        accepting = asyncio.create_task(front.accept())
        loop = asyncio.get_running_loop()
        stop.append(lambda: loop.call_soon_threadsafe(accepting.cancel))
        began.set()
        with suppress(asyncio.CancelledError):
            await accepting

    def run() -> None:
        try:
            asyncio.run(answer())
        finally:
            began.set()  # or it could not begin, as without a descriptor

    thread = threading.Thread(target=run, name="turngap-loading")
    thread.start()
    began.wait()
    try:
        yield
    finally:
        for each in stop:
            with suppress(RuntimeError):  # it has ended by itself
                each()
        thread.join()
