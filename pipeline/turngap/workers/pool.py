"""Workers and the pool that hands out pieces of work to them, one at a time."""

import asyncio
import pickle
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

from turngap.core.errors import AgentError, InputError

# Called by the work with each report, as soon as there is one.
OnResult = Callable[[Any], None]
# A function of a module, so that another process finds it by its name. Its argument and its
# reports are pickled. Work that is asynchronous runs a loop of its own.
Work = Callable[[Any, OnResult], None]

_here = ""


def here() -> str:
    """Return the name of the worker that this process is; empty where it is not one."""
    return _here


def be(name: str) -> None:
    """Set the name that `here` returns; call this in a worker's process, before it works."""
    global _here  # noqa: PLW0603 - a process is one worker for as long as it lives
    _here = name


@dataclass(frozen=True, slots=True)
class Result:
    """A result of piece `piece` (counted from 0) of the work."""

    piece: int
    value: Any


@dataclass(frozen=True, slots=True)
class Done:
    """A piece of the work has ended by itself."""

    piece: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A piece ended before it was done: its worker is gone, or it raised. `why` is the reason."""

    piece: int
    why: str


class Executor(Protocol):
    """Processes that work for this one.

    Attributes:
        name: as people know it: `local`, `ray`.
        workers: how many pieces run at the same time, each in a process of its own.
    """

    name: str
    workers: int

    async def __aenter__(self) -> "Executor":
        """Start the workers.

        Raises:
            AgentError: they cannot be started, or the cluster cannot be reached.
        """
        ...

    async def __aexit__(self, *exception: object) -> None:
        """End the workers and their unfinished work."""
        ...

    def run(self, work: Work, pieces: Sequence[Any]) -> AsyncGenerator[Result | Done | Lost, None]:
        """Hand out the pieces and yield their reports, each piece in its own order.

        Every piece ends with one `Done` or one `Lost`. A lost worker is replaced for the pieces
        that have not begun; a piece that had begun is never begun again. Closing the iterator
        ends what still runs.
        """
        ...


MOST_WORKERS = 1024

# What has come and has not been asked for yet; more is held where it comes from.
MOST_QUEUED = 256


class Worker(Protocol):
    """A process that does one piece of work at a time."""

    @property
    def ended(self) -> bool:
        """Return whether the worker can do nothing more."""
        ...

    def do(self, piece: int, task: bytes) -> AsyncGenerator[Result | Done | Lost, None]:
        """Do a pickled pair of a `Work` and its argument. Ends with one `Done` or `Lost`."""
        ...

    async def end(self) -> None:
        """End the worker and its unfinished work, in a few seconds at most."""
        ...


class Pool(ABC):
    """Base of an `Executor`; a subclass starts its workers.

    They are started once and work for one `run` after the other.

    Args:
        workers: how many, 1 to `MOST_WORKERS`.

    Raises:
        InputError: the number is outside this range.
    """

    name: str

    def __init__(self, workers: int) -> None:
        if not 1 <= workers <= MOST_WORKERS:
            raise InputError(
                "workers.count", f"{workers} workers: expected 1 to {MOST_WORKERS} processes"
            )
        self.workers = workers
        self._slots: dict[int, Worker | None] = dict.fromkeys(range(workers))
        self._running = False

    @abstractmethod
    async def _start(self, slot: int) -> Worker:
        """Start a worker.

        Raises:
            AgentError: it cannot be started.
        """

    async def __aenter__(self) -> Self:
        try:
            results = await self._staff(self.workers)
            if error := next((each for each in results if each is not None), None):
                raise error
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        there = [worker for worker in self._slots.values() if worker is not None]
        self._slots = dict.fromkeys(self._slots)
        await asyncio.gather(*(worker.end() for worker in there))

    async def _staff(self, most: int) -> list[AgentError | None]:
        """Start a worker in each of the first slots that has none; return each slot's error."""

        async def staff(slot: int) -> AgentError | None:
            try:
                await self._ready_worker(slot)
            except AgentError as e:
                return e
            return None

        return await asyncio.gather(*(staff(slot) for slot in list(self._slots)[:most]))

    async def _ready_worker(self, slot: int) -> Worker:
        worker = self._slots[slot]
        if worker is not None and worker.ended:
            await worker.end()  # which closes what it held
            worker = None
        if worker is None:
            worker = self._slots[slot] = await self._start(slot)
        return worker

    async def run(
        self, work: Work, pieces: Sequence[Any]
    ) -> AsyncGenerator[Result | Done | Lost, None]:
        """Hand out the pieces and yield their reports, each piece in its own order.

        All workers are started before the first piece is handed out. A lost one that cannot be
        replaced stays missing, also from the count in `workers`. See `Executor.run`.

        Raises:
            AgentError: there is no worker left, and none can be started.
            ValueError: the work is defined in the running script, where no other process finds it.
            RuntimeError: another `run` has not ended.
        """
        if self._running:
            raise RuntimeError("these workers still do the work of another `run`")
        if getattr(work, "__module__", None) == "__main__":
            raise ValueError("the work must be a function of a module that can be imported")
        waiting = deque((n, pickle.dumps((work, piece))) for n, piece in enumerate(pieces))
        left, any_lost, busy = len(waiting), False, set[int]()
        queue: asyncio.Queue[Result | Done | Lost | Exception] = asyncio.Queue(MOST_QUEUED)
        self._running = True
        try:
            await self._restaff(left)
            hands = set(list(self._slots)[:left])
            running = [
                asyncio.create_task(self._work_off(slot, hands, waiting, queue, busy))
                for slot in sorted(hands)
            ]
            try:
                while left:
                    report = await queue.get()
                    if isinstance(report, Exception):
                        raise report
                    left -= not isinstance(report, Result)
                    any_lost |= isinstance(report, Lost)
                    yield report
            finally:
                for hand in running:
                    hand.cancel()
                await asyncio.gather(*running, return_exceptions=True)
                await asyncio.gather(*(w.end() for s in busy if (w := self._slots[s]) is not None))
            if any_lost:  # now, so that `workers` is true before the next pieces are made
                with suppress(AgentError):
                    await self._restaff(len(self._slots))
        finally:
            self._running = False

    async def _restaff(self, most: int) -> None:
        """Replace lost workers; do without those that cannot be replaced.

        Raises:
            AgentError: none is left.
        """
        while most:
            results = await self._staff(most)
            missing = {slot: e for slot, e in zip(self._slots, results, strict=False) if e}
            if not missing:
                return
            if len(missing) == len(self._slots):
                raise next(iter(missing.values()))
            for slot in missing:
                del self._slots[slot]
            self.workers = len(self._slots)

    async def _work_off(
        self,
        slot: int,
        hands: set[int],
        waiting: deque[tuple[int, bytes]],
        queue: asyncio.Queue[Result | Done | Lost | Exception],
        busy: set[int],
    ) -> None:
        """Let one worker do tasks until none are left; a lost worker leaves them to others."""
        try:
            while waiting:
                try:
                    worker = await self._ready_worker(slot)
                except AgentError as e:
                    hands.discard(slot)
                    while waiting and not hands:
                        await queue.put(Lost(waiting.popleft()[0], e.message))
                    return
                if waiting:
                    piece, task = waiting.popleft()
                    busy.add(slot)
                    async with aclosing(worker.do(piece, task)) as said:
                        async for each in said:
                            if not isinstance(each, Result):
                                busy.discard(slot)
                            await queue.put(each)
        except Exception as e:  # a fault of this package, for which `run` must not wait in vain
            await queue.put(e)
