"""The processes behind a front: started, replaced when one is gone, and ended together."""

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Protocol

from loguru import logger

from turngap.agent.channel import STUCK_S, Channel, Message
from turngap.agent.drain import Drain
from turngap.agent.front import Front, Hand
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.errors import AgentError, ExitCode, InputError, TurngapError

TICK_S = 0.1

# How long a worker may take to end: its lines close within 2 s, and its page's runs are written. It
# is killed then, as is one whose line to the front has ended while it has not.
STOP_S = 10.0

# A worker that ends again and again must not take the machine from the others, which it does by
# loading its models: the pause doubles up to this, and begins anew after as long without an end.
FIRST_PAUSE_MS = 500.0
MOST_PAUSE_MS = 30_000.0


class Started(Protocol):
    """A worker's process; an asyncio `Process` is one."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Wait for its end; return its exit code, negative for a signal."""
        ...

    def kill(self) -> None:
        """End it at once.

        Raises:
            ProcessLookupError: it has ended.
        """
        ...


# Starts the worker of this number with its end of the line to the front.
Start = Callable[[int, socket.socket], Awaitable[Started]]


class Crew:
    """Keeps a worker in each of a front's places, from the first that loads to the end of all.

    `gone` is called with the process id of each that ended by itself.
    """

    def __init__(
        self,
        front: Front,
        start: Start,
        drain: Drain,
        clock: Clock,
        gone: Callable[[int], None] = lambda pid: None,
    ) -> None:
        self._front = front
        self._start = start
        self._drain = drain
        self._clock = clock
        self._gone = gone
        self._processes: dict[Hand, Started] = {}
        self._ends = asyncio.Event()
        self._stops = False

    def end(self, sign: int) -> None:
        """Take a signal: the first SIGTERM drains, any other ends the server, then one kills."""
        drains = sign == signal.SIGTERM and self._front.open and not self._stops
        if drains and self._drain.begin():
            self._front.tell_seats()
            return
        self._ends.set()

    async def serve(self, announce: Callable[[Message], None]) -> None:
        """Start the workers, `announce` what the first says when all are ready, and serve.

        Returns when a signal has ended it, or it has drained and the last call is over.

        Raises:
            TurngapError: a worker could not begin, with its own error.
        """
        tasks = [
            asyncio.create_task(self._front.accept()),
            asyncio.create_task(self._all(announce)),
        ]
        ends = asyncio.create_task(self._ended())
        try:
            while not (ends.done() or self._drain.over()):
                done, _ = await asyncio.wait(
                    {ends, *tasks}, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done - {ends}:
                    task.result()  # an error, or nobody is hired any more
                    tasks.remove(task)
        finally:
            for task in (*tasks, ends):
                task.cancel()
            await asyncio.wait({*tasks, ends})
            self._front.close()
            await self._stop()

    async def _all(self, announce: Callable[[Message], None]) -> None:
        """Keep all workers. The first loads alone: it may fetch weights, and compile for all."""
        first, *others = self._front.hands
        said = await self._hire(first)

        def keep(hand: Hand) -> None:
            group.create_task(self._keep(hand), name=f"keeps worker {hand.number}")

        async def hire(hand: Hand) -> None:
            await self._hire(hand)
            keep(hand)

        try:
            async with asyncio.TaskGroup() as group:
                keep(first)
                for hires in [group.create_task(hire(hand)) for hand in others]:
                    await hires
                self._front.open = True
                announce(said)
        except ExceptionGroup as e:
            raise e.exceptions[0] from None  # the others were cancelled for it

    async def _hire(self, hand: Hand) -> Message:
        """Start a worker and wait until it takes connections; return what it says of itself.

        Raises:
            TurngapError: its own error, that it ended, or that it could not be started.
        """
        hand.channel = Channel(await self._begin(hand), STUCK_S)
        said = await self._front.listen_to(hand)
        if said is not None and said["kind"] == "ready":
            hand.ready = True
            self._front.tell_seats()
            return said
        self._front.lost(hand)
        code = await _end(self._processes[hand])
        self._gone(self._processes[hand].pid)
        raise _own_error(said) or AgentError(
            "serve.worker",
            f"process {hand.number + 1} of the agent {_ended(code)} before it was ready",
            hint="its last words are above; with fewer --workers less memory is needed",
        )

    async def _begin(self, hand: Hand) -> socket.socket:
        """Start a worker's process; return our end of the line to it."""
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._processes[hand] = await self._start(hand.number, theirs)
                except BaseException:
                    ours.close()
                    raise
        except OSError as e:
            raise AgentError(
                "serve.worker",
                f"process {hand.number + 1} of the agent cannot be started: {e.strerror or e}",
                hint="with fewer --workers less memory and fewer descriptors are needed",
            ) from e
        return ours

    async def _keep(self, hand: Hand) -> None:
        """Have another take a worker's place whenever it is gone."""
        pause_ms = FIRST_PAUSE_MS
        while True:
            since_ns = self._clock.now_ns()
            if hand.ready:
                await self._front.listen_to(hand)
                calls = self._front.lost(hand)
                self._tell_lost(hand, calls, await _end(self._processes[hand]))
            if self._drain.begun:
                return
            if self._clock.now_ns() - since_ns > ms_to_ns(MOST_PAUSE_MS):
                pause_ms = FIRST_PAUSE_MS
            await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(pause_ms))
            pause_ms = min(MOST_PAUSE_MS, 2 * pause_ms)
            if self._drain.begun:
                return
            try:
                await self._hire(hand)
            except TurngapError as e:
                logger.error(f"process {hand.number + 1} of the agent cannot be replaced: {e}")
            else:
                logger.warning(f"process {hand.number + 1} of the agent takes calls again")

    def _tell_lost(self, hand: Hand, calls: int, code: int) -> None:
        self._gone(self._processes[hand].pid)
        then = "the server ends" if self._drain.begun else "another process takes its place"
        logger.error(
            f"process {hand.number + 1} of the agent {_ended(code)}: {calls} of its calls are "
            f"lost, the others go on, and {then}"
        )

    async def _stop(self) -> None:
        """End all workers; kill those that do not end, and at once those that still load."""
        self._stops = True
        self._ends.clear()  # a further signal kills
        for hand, process in self._processes.items():
            if hand.ready:
                hand.send({"kind": "stop"})
            else:
                _kill(process)
        waits = [asyncio.create_task(process.wait()) for process in self._processes.values()]
        again = asyncio.create_task(self._ended())
        ended = asyncio.gather(*waits)
        await asyncio.wait({ended, again}, timeout=STOP_S, return_when=asyncio.FIRST_COMPLETED)
        again.cancel()
        if not ended.done():
            for process in self._processes.values():
                _kill(process)
            await ended
        for hand in self._front.hands:
            self._front.lost(hand)

    async def _ended(self) -> None:
        await self._ends.wait()


async def _end(process: Started) -> int:
    """Return a process's exit code once it has ended, for which it has `STOP_S`."""
    try:
        async with asyncio.timeout(STOP_S):
            return await process.wait()
    except TimeoutError:
        _kill(process)
    return await process.wait()


def _kill(process: Started) -> None:
    with suppress(ProcessLookupError):
        process.kill()


def _own_error(said: Message | None) -> TurngapError | None:
    if said is None:
        return None
    kind: Any = InputError if said["exit_code"] == ExitCode.BAD_INPUT else AgentError
    return kind(said["error"], said["message"], hint=said["hint"])


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}"
