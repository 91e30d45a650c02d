"""An agent of fake engines behind a front, with its workers as tasks of the test's event loop."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from fake_engines import Served, fake_assembly

from turngap.agent.access import Access
from turngap.agent.channel import packed
from turngap.agent.crew import Crew
from turngap.agent.drain import Drain
from turngap.agent.front import Front, Hand
from turngap.agent.limits import Limits
from turngap.agent.seats import Seats
from turngap.agent.server import ServeSettings, bind, create_app
from turngap.agent.worker import SharedSeats, Worker, tell_failure
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap.core.errors import TurngapError

CLOCK = MonotonicClock()
PATIENCE_S = 30.0


Fate = TurngapError | OSError | str


async def _nothing() -> None:
    return


@dataclass
class FakeProcess:
    """A worker in this process; to kill it cuts its line to the front."""

    pid: int
    end: socket.socket
    serving: asyncio.Task[None] | None = None
    killed: bool = False
    stuck: bool = False

    async def wait(self) -> int:
        if self.serving is not None:
            await asyncio.wait({self.serving})
        return -signal.SIGKILL if self.killed else 0

    def kill(self) -> None:
        if self.killed or self.serving is None or self.serving.done():
            raise ProcessLookupError
        self.killed = True
        if self.stuck:
            self.serving.cancel()
        else:
            self.end.shutdown(socket.SHUT_RDWR)

    async def hang(self, *, loaded: bool) -> None:
        """Say that it is ready, if it has `loaded`, and do nothing more."""
        with self.end:
            if loaded:
                self.end.send(packed({"kind": "ready"}))
            await asyncio.Event().wait()


@dataclass
class Workers:
    """What starts them.

    Attributes:
        fails: with which errors the next ones end instead, in order; those of the system keep them
            from being started. One that "loads" does so for ever, and one that "hangs" has loaded.
    """

    settings: ServeSettings
    most: int
    fails: list[Fate] = field(default_factory=list["Fate"])
    started: list[FakeProcess] = field(default_factory=list[FakeProcess])

    async def start(self, number: int, end: socket.socket) -> FakeProcess:
        fate = self.fails.pop(0) if self.fails else "serves"
        if isinstance(fate, OSError):
            raise fate
        process = FakeProcess(len(self.started), end.dup(), stuck=fate in ("loads", "hangs"))
        self.started.append(process)
        if isinstance(fate, TurngapError):
            with process.end as failing:
                tell_failure(failing, fate)
            return process
        if process.stuck:
            process.serving = asyncio.create_task(process.hang(loaded=fate == "hangs"))
            return process
        seats = SharedSeats(self.most)
        app = create_app(fake_assembly(), self.settings, seats)
        worker = Worker(app, self.settings.limits, seats, _nothing)
        process.serving = asyncio.create_task(worker.serve(process.end, {"worker": number}))
        return process


@dataclass(frozen=True)
class Fronted(Served):
    """Where it listens, what is behind it, and which calls the front has refused itself."""

    front: Front
    crew: Crew
    workers: Workers
    serving: asyncio.Task[None]
    refused: list[str]

    @property
    def calls(self) -> list[int]:
        """How many each worker has."""
        return [self.front.calls_of(hand) for hand in self.front.hands]

    async def calls_become(self, *wanted: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.calls != list(wanted):
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(20))

    async def all_are_ready(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not (self.front.open and all(hand.ready for hand in self.front.hands)):
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + ms_to_ns(20))


@asynccontextmanager
async def fronted(
    *,
    count: int = 2,
    max_sessions: int = 8,
    limits: Limits | None = None,
    drain_s: float = 0.0,
    access: Access | None = None,
    fails: tuple[Fate, ...] = (),
    ready: bool = True,
) -> AsyncIterator[Fronted]:
    """Serve from `count` workers; wait until they are `ready`, unless that is not wanted."""
    settings = ServeSettings(port=0, access=access or Access(), limits=limits or Limits())
    with bind(settings) as listener:
        seats = Seats(max_sessions, settings.limits, CLOCK)
        workers = Workers(settings, max_sessions, list(fails))
        hands, refused = [Hand(n) for n in range(count)], list[str]()
        front = Front(
            *(listener, hands, seats, settings.limits, CLOCK), agent="fake", refused=refused.append
        )
        crew = Crew(front, workers.start, Drain(seats, CLOCK, drain_s), CLOCK)
        announced = asyncio.Event()
        serving = asyncio.create_task(crew.serve(lambda said: announced.set()))
        try:
            if ready:
                async with asyncio.timeout(PATIENCE_S):
                    await announced.wait()
            port = listener.getsockname()[1]
            yield Fronted(port, seats, front, crew, workers, serving, refused)
        finally:
            crew.end(signal.SIGINT)
            await asyncio.wait({serving})
