"""Workers that are processes of this machine."""

import asyncio
import os
import pickle
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

from turngap.children import PARENT_HOLDS_STDIN
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import text_without_secrets
from turngap.workers.base import Done, Lost, Told, Work
from turngap.workers.process import LENGTH, packed, why

# Python and this package take a tenth of a second, on a machine that is busy many times that.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 2.0
MOST_WORKERS = 256

# What has been received and not yet been asked for; then the worker holds it.
MOST_QUEUED = 256

# Of what a process wrote before it ended, for the reason.
_LAST_BYTES = 2_000


class _GoneError(Exception):
    """The process has ended, for this reason."""


class _Worker:
    """A process that works, and the line to it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        printed: IO[bytes],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._printed = printed

    @classmethod
    async def start(cls, name: str) -> "_Worker":
        """Start a process and wait until it can work.

        Raises:
            AgentError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        # What it prints must not come between what this process prints, and is only looked at if
        # it ends: so it goes to a file, which makes nobody wait as a pipe would.
        printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the worker ends
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",
                    "-m",
                    "turngap.workers.process",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=printed,
                    stderr=printed,
                    pass_fds=[theirs.fileno()],
                    env={**os.environ, PARENT_HOLDS_STDIN: "1"},
                    start_new_session=True,  # a Ctrl-C in the terminal is the parent's
                )
        except OSError as e:
            ours.close()
            printed.close()
            raise _not_started(e.strerror or str(e)) from e
        worker = cls(process, *await asyncio.open_connection(sock=ours), printed)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await worker.send(packed((name, sys.path)))
                await worker.receive()
        except (_GoneError, TimeoutError) as e:
            await worker.end()
            raise _not_started(str(e) or f"it said nothing for {START_TIMEOUT_S:g} s") from e
        except BaseException:
            await worker.end()
            raise
        return worker

    async def send(self, data: bytes) -> None:
        """Send a packed message. If the process is gone, `receive` will say so."""
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def receive(self) -> Any:
        """Return the next message.

        Raises:
            _GoneError: the process has ended, maybe in the middle of a message.
        """
        try:
            length = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _GoneError(await self._reason()) from None
        try:
            return pickle.loads(body)
        except Exception as e:
            raise _GoneError(f"what it told cannot be read: {why(e)}") from e

    async def _reason(self) -> str:
        await self.end(signal.SIGKILL, after_s=STOP_TIMEOUT_S)
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "its process was killed, as a system that is out of memory does"
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"its process ended ({how}){self._last_words}"

    async def end(self, sign: int = signal.SIGTERM, *, after_s: float = 0.0) -> None:
        """End the process, if it has not ended by itself by then. Takes a few seconds at most."""
        for each, patience_s in ((None, after_s), (sign, STOP_TIMEOUT_S), (signal.SIGKILL, None)):
            if each is not None:
                with suppress(ProcessLookupError):
                    self._process.send_signal(each)
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._process.wait()
                    break
        self._read_last_words()
        self._writer.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    _last_words = ""

    def _read_last_words(self) -> None:
        if self._printed.closed:
            return
        with self._printed as printed:
            printed.seek(max(0, printed.seek(0, 2) - _LAST_BYTES))
            lines = printed.read().decode(errors="replace").strip().splitlines()
        if lines:
            self._last_words = f": {text_without_secrets(lines[-1].strip())}"

    @property
    def ended(self) -> bool:
        return self._process.returncode is not None


def _not_started(reason: str) -> AgentError:
    return AgentError("workers.not_started", f"a worker process could not be started: {reason}")


class LocalWorkers:
    """An `Executor` whose workers are processes of this machine.

    They are started once and work for one `run` after the other. They end with this process,
    however it ends, and neither read its stdin nor write to its stdout.

    Args:
        workers: how many, 1 to `MOST_WORKERS`.

    Raises:
        InputError: it is another number.
    """

    name = "local"

    def __init__(self, workers: int) -> None:
        if not 1 <= workers <= MOST_WORKERS:
            raise InputError(
                "workers.count", f"{workers} workers: expected 1 to {MOST_WORKERS} processes"
            )
        self.workers = workers
        self._slots: list[_Worker | None] = [None] * workers
        self._running = False

    async def __aenter__(self) -> "LocalWorkers":
        try:
            await self._staff(self.workers)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        there = [worker for worker in self._slots if worker is not None]
        self._slots = [None] * self.workers
        await asyncio.gather(*(worker.end() for worker in there))

    async def _staff(self, slots: int) -> None:
        """Start a worker in each of the first slots that has none."""
        starts = (self._ready_worker(slot) for slot in range(slots))
        results = await asyncio.gather(*starts, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _ready_worker(self, slot: int) -> _Worker:
        worker = self._slots[slot]
        if worker is None or worker.ended:
            worker = self._slots[slot] = await _Worker.start(f"worker {slot + 1}")
        return worker

    async def run(
        self, work: Work, pieces: Sequence[Any]
    ) -> AsyncGenerator[Told | Done | Lost, None]:
        """Hand out the pieces and yield what they tell, each piece in its own order.

        All workers are there before the first piece is handed out. See `Executor.run`.

        Raises:
            AgentError: a worker is missing and cannot be started.
            ValueError: the work is of the script that runs, where no other process finds it.
            RuntimeError: another `run` has not ended.
        """
        if self._running:
            raise RuntimeError("these workers still work on something else")
        if getattr(work, "__module__", None) == "__main__":
            raise ValueError("the work must be a function of a module that can be imported")
        tasks = iter([(n, pickle.dumps((work, piece))) for n, piece in enumerate(pieces)])
        slots = range(min(self.workers, len(pieces)))
        queue: asyncio.Queue[Told | Done | Lost | Exception] = asyncio.Queue(MOST_QUEUED)
        busy: set[int] = set()
        self._running = True
        hands: list[asyncio.Task[None]] = []
        try:
            await self._staff(len(slots))
            hands += [asyncio.create_task(self._work_off(s, tasks, queue, busy)) for s in slots]
            left = len(pieces)
            while left:
                said = await queue.get()
                if isinstance(said, Exception):
                    raise said
                left -= not isinstance(said, Told)
                yield said
        finally:
            for hand in hands:
                hand.cancel()
            await asyncio.gather(*hands, return_exceptions=True)
            await asyncio.gather(*(w.end() for s in busy if (w := self._slots[s]) is not None))
            self._running = False

    async def _work_off(
        self,
        slot: int,
        tasks: Iterator[tuple[int, bytes]],
        queue: asyncio.Queue[Told | Done | Lost | Exception],
        busy: set[int],
    ) -> None:
        """Let one worker do tasks until there are none left."""
        try:
            for piece, task in tasks:
                busy.add(slot)
                await self._do(slot, piece, task, queue)
                busy.discard(slot)
        except Exception as e:
            await queue.put(e)

    async def _do(
        self,
        slot: int,
        piece: int,
        task: bytes,
        queue: asyncio.Queue[Told | Done | Lost | Exception],
    ) -> None:
        try:
            worker = await self._ready_worker(slot)
        except AgentError as e:
            await queue.put(Lost(piece, e.message))
            return
        await worker.send(packed((piece, task)))
        said: Any = None
        while not isinstance(said, Done | Lost):
            try:
                said = await worker.receive()
            except _GoneError as e:
                said = Lost(piece, f"worker {slot + 1} is lost: {e}")
                await worker.end(signal.SIGKILL)
            await queue.put(said)
