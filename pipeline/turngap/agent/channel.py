"""What the front of a server and its workers tell each other, and how they pass connections on.

A message is a JSON object behind its length, on a Unix stream socket. It may bring a descriptor,
which the kernel delivers with the message's first byte, in order.
"""

import asyncio
import json
import os
import socket
from collections import deque
from contextlib import suppress
from typing import Any

_LENGTH_BYTES = 4
# A request's head of 16 KiB as JSON, in which a byte takes six at most.
MOST_BYTES = 256 * 1024
_DESCRIPTORS = 64
_LOST = -1

Message = dict[str, Any]


def packed(message: Message) -> bytes:
    """Return a message as it is sent."""
    data = json.dumps(message).encode()
    return len(data).to_bytes(_LENGTH_BYTES) + data


class Channel:
    """One end of the line between the front and a worker; to be made inside a running loop."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._came = bytearray()
        self._descriptors: deque[int] = deque()
        self._messages: deque[tuple[Message, socket.socket | None]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        # What the kernel has not taken yet; the descriptor goes with the first byte.
        self._unsent: deque[tuple[memoryview, socket.socket | None]] = deque()
        self.closed = self.ended = False
        self._loop.add_reader(end, self._read)

    async def receive(self) -> tuple[Message, socket.socket | None] | None:
        """Return the next message and the connection that it brings; None at the line's end."""
        while not self._messages:
            if self.ended or self.closed:
                return None
            self._waiting = self._loop.create_future()
            await self._waiting
        return self._messages.popleft()

    def send(self, message: Message, connection: socket.socket | None = None) -> None:
        """Send a message, and a connection that is closed here once it is on its way."""
        if self.closed:
            if connection is not None:
                connection.close()
            return
        waits = bool(self._unsent)
        self._unsent.append((memoryview(packed(message)), connection))
        if not waits:
            self._write()

    def close(self) -> None:
        """Close this end, and whatever is on its way."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        self._drop_unsent()
        while self._descriptors:
            if (connection := _opened(self._descriptors.popleft())) is not None:
                connection.close()
        for _, connection in self._messages:
            if connection is not None:
                connection.close()
        self._messages.clear()
        self._wake()

    def _write(self) -> None:
        while self._unsent:
            data, connection = self._unsent[0]
            try:
                if connection is None:
                    sent = self._end.send(data)
                else:
                    sent = socket.send_fds(self._end, [data], [connection.fileno()])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._end, self._write)
                return
            except OSError:
                # The other end is gone, which the reader finds, after what was sent before.
                self._drop_unsent()
                break
            if connection is not None:
                connection.close()
            if sent < len(data):
                self._unsent[0] = (data[sent:], None)
            else:
                self._unsent.popleft()
        self._loop.remove_writer(self._end)

    def _drop_unsent(self) -> None:
        for _, connection in self._unsent:
            if connection is not None:
                connection.close()
        self._unsent.clear()

    def _read(self) -> None:
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._end, 65_536, _DESCRIPTORS)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data, descriptors, flags = b"", list[int](), 0
        for descriptor in descriptors:
            with suppress(OSError):
                os.set_inheritable(descriptor, False)
            self._descriptors.append(descriptor)
        if flags & socket.MSG_CTRUNC:  # this process has no descriptor left for it
            self._descriptors.append(_LOST)
        if not data:
            self._loop.remove_reader(self._end)
            self.ended = True
            self._wake()
            return
        self._came += data
        while (message := self._next()) is not None:
            brought = None
            if message.get("brings"):
                brought = _opened(self._descriptors.popleft())
            self._messages.append((message, brought))
        self._wake()

    def _next(self) -> Message | None:
        length = int.from_bytes(self._came[:_LENGTH_BYTES])
        if length > MOST_BYTES:
            raise AssertionError(f"a message of {length} bytes: not ours")
        end = _LENGTH_BYTES + length
        if len(self._came) < max(end, _LENGTH_BYTES + 1):
            return None
        message = json.loads(self._came[_LENGTH_BYTES:end])
        del self._came[:end]
        return message

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _opened(descriptor: int) -> socket.socket | None:
    if descriptor == _LOST:
        return None
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(False)
    return connection
