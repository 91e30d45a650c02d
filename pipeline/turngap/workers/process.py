"""A worker's process on this machine: `python -m turngap.workers.process FD`, and its messages.

A message is its length in 8 bytes, then as many of pickle. What breaks off in the middle of one is
therefore never taken for a message.
"""

import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections import deque
from typing import Any

from turngap.children import PARENT_HOLDS_STDIN, end_with_parent
from turngap.core.errors import TurngapError
from turngap.workers import Done, Lost, OnResult, Result, be

LENGTH = struct.Struct(">Q")

# The bytes that a worker holds for a parent that reads slowly. A caller reports about 10 kB a turn,
# so that this lasts for minutes in which the parent does nothing else.
MOST_HELD_BYTES = 64 * 2**20

# Of an error's text.
MOST_WHY = 500


def packed(message: Any) -> bytes:
    """Return a message as it is sent.

    Raises:
        Exception: whatever pickle raises of what it cannot take.
    """
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


def why(error: BaseException) -> str:
    """Return an exception in one line: what a `TurngapError` says, or its type as well."""
    text = " ".join(str(error).split())[:MOST_WHY]
    if isinstance(error, TurngapError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class Mouth:
    """Sends messages without waiting for the one who reads them.

    What the socket does not take at once is sent by a thread, which otherwise sleeps. Only where
    more than `MOST_HELD_BYTES` are held does `send` wait.
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
    """Do a pickled pair of a work and its input; report how it ended."""
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
    """Work for the process at the other end of this socket until it closes its end."""
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


if __name__ == "__main__":
    main(int(sys.argv[1]))
