"""Workers that are processes of this machine."""

import asyncio
import os
import pickle
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from turngap.children import PARENT_HOLDS_STDIN
from turngap.core.errors import AgentError
from turngap.core.secrets import text_without_secrets
from turngap.workers import Done, Lost, Pool, Result
from turngap.workers.process import LENGTH, packed, why

# Python and this package take a tenth of a second, on a machine that is busy many times that.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 2.0
# Of what a process wrote before it ended, for the reason.
_LAST_BYTES = 2_000


class _GoneError(Exception):
    """The process has ended, for this reason."""


class LocalWorker:
    """A process that works, and the line to it."""

    def __init__(
        self,
        name: str,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        printed: IO[bytes],
    ) -> None:
        self._name = name
        self._process = process
        self._reader = reader
        self._writer = writer
        self._printed = printed

    @classmethod
    async def start(cls, name: str, path: Sequence[str]) -> "LocalWorker":
        """Start a process and wait until it can work.

        Args:
            name: what the work finds in `turngap.workers.here()`.
            path: its `sys.path`.

        Raises:
            AgentError: it cannot be started.
        """
        ours, theirs = socket.socketpair()
        # What it prints must not come between what this process prints, and is only looked at if
        # it ends: so it goes to a file, which never blocks the process as a pipe would.
        printed = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the worker ends
        with ExitStack() as undo:
            undo.callback(printed.close)
            undo.callback(ours.close)
            try:
                with theirs:
                    process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-P", "-m", "turngap.workers.process"),
                        str(theirs.fileno()),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=printed,
                        stderr=printed,
                        pass_fds=[theirs.fileno()],
                        env={**os.environ, PARENT_HOLDS_STDIN: "1"},
                        start_new_session=True,  # a Ctrl-C in the terminal is the parent's
                    )
            except OSError as e:
                raise _not_started(e.strerror or str(e)) from e
            undo.callback(process.kill)
            worker = cls(name, process, *await asyncio.open_connection(sock=ours), printed)
            undo.pop_all()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await worker._send(packed((name, list(path))))
                await worker._receive()
        except BaseException as e:
            await worker.end()
            if isinstance(e, _GoneError | TimeoutError):
                reason = str(e) or f"it did not answer within {START_TIMEOUT_S:g} s"
                raise _not_started(reason) from e
            raise
        return worker

    async def do(self, piece: int, task: bytes) -> AsyncGenerator[Result | Done | Lost, None]:
        """See `Worker.do`."""
        await self._send(packed((piece, task)))
        said: Any = None
        while not isinstance(said, Done | Lost):
            try:
                said = await self._receive()
            except _GoneError as e:
                said = Lost(piece, f"{self._name} is lost: {e}")
                await self.end(signal.SIGKILL)
            yield said

    async def _send(self, data: bytes) -> None:
        """Send a packed message. If the process is gone, `_receive` will say so."""
        with suppress(ConnectionError):
            self._writer.write(data)
            await self._writer.drain()

    async def _receive(self) -> Any:
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
            raise _GoneError(f"its report cannot be read: {why(e)}") from e

    async def _reason(self) -> str:
        await self.end(signal.SIGKILL, after_s=STOP_TIMEOUT_S)
        code = self._process.returncode
        if code == -signal.SIGKILL:
            return "its process was killed, as a system that is out of memory does"
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return f"its process ended ({how}){self._last_words}"

    async def end(self, sign: int = signal.SIGTERM, *, after_s: float = 0.0) -> None:
        """End the process, if it has not ended by itself by then. Takes a few seconds at most."""
        try:
            for each, patience_s in (
                (None, after_s),
                (sign, STOP_TIMEOUT_S),
                (signal.SIGKILL, None),
            ):
                if each is not None:
                    with suppress(ProcessLookupError):
                        self._process.send_signal(each)
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience_s):
                        await self._process.wait()
                        break
        finally:
            if not self.ended:  # who waited for it was cancelled
                with suppress(ProcessLookupError):
                    self._process.kill()
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


class LocalWorkers(Pool):
    """An `Executor` whose workers are processes of this machine.

    They end with this process, however it ends, and neither read its stdin nor write to its stdout.
    """

    name = "local"

    async def _start(self, slot: int) -> LocalWorker:
        return await LocalWorker.start(f"worker {slot + 1}", sys.path)
