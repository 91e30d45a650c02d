"""Workers that are processes of this machine: `python -m turngap.workers.local FD`.

A message is its length in 8 bytes, then that many bytes of pickle. So a message that breaks off is
never taken for a whole one.
"""

import asyncio
import os
import pickle
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from turngap.children import PARENT_HOLDS_STDIN, end_with_parent
from turngap.core.errors import AgentError, TurngapError
from turngap.core.secrets import text_without_secrets
from turngap.workers.pool import Done, Lost, OnResult, Pool, Result, be

LENGTH = struct.Struct(">Q")

# The bytes that a worker holds for a parent that reads slowly. A caller reports about 10 kB a turn,
# so that this lasts for minutes in which the parent does nothing else.
MOST_HELD_BYTES = 64 * 2**20

# Of an error's text.
MOST_WHY = 500


def packed(message: Any) -> bytes:
    """Return a message as it is sent.

    Raises:
        Exception: any error of pickle about the object.
    """
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def why(error: BaseException) -> str:
    """Return an exception in one line: its text, with its type unless it is a `TurngapError`."""
    text = " ".join(str(error).split())[:MOST_WHY]
    if isinstance(error, TurngapError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Mouth:
    """A sender of messages that does not wait for their reader.

    A thread, which otherwise sleeps, sends what the socket does not take at once. `send` waits only
    while more than `MOST_HELD_BYTES` are held.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._held: deque[bytes] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._gone = False
        threading.Thread(target=self._send_held, name="turngap-reports", daemon=True).start()

    def send(self, message: Any) -> None:
        """Send a message, or hold it until it can be sent.

        Raises:
            BrokenPipeError: the parent is gone.
        """
        data = packed(message)
        with self._changed:
            self._changed.wait_for(lambda: self._gone or self._bytes < MOST_HELD_BYTES)
            if self._gone:
                raise BrokenPipeError("the process that started this worker is gone")
            if not self._held:
                data = data[self._sent_at_once(data) :]
            if data:
                self._held.append(data)
                self._bytes += len(data)
                self._changed.notify_all()

    def flush(self) -> None:
        """Wait until nothing is held."""
        with self._changed:
            self._changed.wait_for(lambda: self._gone or not self._held)

    def _sent_at_once(self, data: bytes) -> int:
        try:
            return self._line.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0

    def _send_held(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._held)
                data = self._held[0]
            try:
                self._line.sendall(data)
            except OSError:
                with self._changed:
                    self._gone = True
                    self._changed.notify_all()
                return
            with self._changed:
                # Not taken out before it is sent: `send` would put its message in front of it.
                self._held.popleft()
                self._bytes -= len(data)
                self._changed.notify_all()


def do(piece: int, task: bytes, mouth: Mouth) -> None:
    """Unpickle a work and its input and run it; report how it ended."""
    try:
        work, given = pickle.loads(task)
        on_result: OnResult = lambda value: mouth.send(Result(piece, value))  # noqa: E731
        work(given, on_result)
    except BaseException as e:
        mouth.send(Lost(piece, why(e)))
    else:
        mouth.send(Done(piece))


def _received(line: socket.socket, count: int) -> bytes | None:
    got = bytearray()
    while len(got) < count:
        if not (data := line.recv(min(count - len(got), 2**20))):
            return None
        got += data
    return bytes(got)


def _message(line: socket.socket) -> Any:
    """Receive the next message; None if there are no more."""
    if (length := _received(line, LENGTH.size)) is None:
        return None
    body = _received(line, LENGTH.unpack(length)[0])
    return None if body is None else pickle.loads(body)


def main(descriptor: int) -> None:
    """Work for the process at the other end of this socket until that closes it."""
    end_with_parent(signal.SIGKILL)  # its reports have no reader any more
    os.environ.pop(PARENT_HOLDS_STDIN, None)  # what the work starts has a stdin of its own
    with socket.socket(fileno=descriptor) as line:
        name, path = _message(line)
        be(name)
        sys.path[:] = path
        mouth = Mouth(line)
        mouth.send(name)
        while (message := _message(line)) is not None:
            piece, task = message
            do(piece, task, mouth)
        mouth.flush()


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
                        *(sys.executable, "-P", "-m", "turngap.workers.local"),
                        str(theirs.fileno()),
                        stdin=asyncio.subprocess.PIPE,
                        stdout=printed,
                        stderr=printed,
                        pass_fds=[theirs.fileno()],
                        # Each works on one processor; more threads take 1.6 times the CPU.
                        env={"OPENBLAS_NUM_THREADS": "1", **os.environ, PARENT_HOLDS_STDIN: "1"},
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
            return "its process was killed, perhaps because memory ran out"
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


if __name__ == "__main__":
    main(int(sys.argv[1]))
