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
from dataclasses import dataclass
from typing import Any

_LENGTH_BYTES = 4
# A request's head of 16 KiB as JSON, in which a byte takes six at most.
MOST_BYTES = 256 * 1024
_DESCRIPTORS = 64
_LOST = -1

# A worker that reads nothing of what waits for it for so long hangs. One whose interpreter is held
# by a library does so for a second or two.
STUCK_S = 10.0

Message = dict[str, Any]


def packed(message: Message) -> bytes:
    """Return a message as it is sent."""
    data = json.dumps(message).encode()
    return len(data).to_bytes(_LENGTH_BYTES) + data


@dataclass(slots=True, eq=False)
class _Unsent:
    """What the kernel has not taken yet; the descriptor goes with the first byte."""

    data: memoryview
    connection: socket.socket | None
    begun: bool = False


class Channel:
    """One end of the line between the front and a worker; to be made inside a running loop.

    Args:
        end: the socket; closed with this.
        patience_s: how long the other end may read nothing of what waits for it, before the line
            counts as ended; None: for ever.
    """

    def __init__(self, end: socket.socket, patience_s: float | None = None) -> None:
        end.setblocking(False)
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._came = bytearray()
        self._descriptors: deque[int] = deque()
        self._messages: deque[tuple[Message, socket.socket | None]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._unsent: deque[_Unsent] = deque()
        self._unsent_state: _Unsent | None = None
        self._patience_s = patience_s
        self._giving_up: asyncio.TimerHandle | None = None
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
        if self.closed or self.ended:
            if connection is not None:
                connection.close()
            return
        waits = bool(self._unsent)
        self._unsent.append(_Unsent(memoryview(packed(message)), connection))
        if not waits:
            self._write()

    def tell_state(self, message: Message) -> None:
        """Send how things stand, in the place of what this has said of that and is still unsent."""
        waits = self._unsent_state
        if waits is not None and not waits.begun:
            waits.data = memoryview(packed(message))
            return
        self.send(message)
        # Only what waits can be replaced; what was just sent has no place in the queue any more.
        self._unsent_state = self._unsent[-1] if self._unsent else None

    def close(self) -> None:
        """Close this end, and whatever is on its way."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self._end)
        self._loop.remove_writer(self._end)
        self._end.close()
        self._drop_unsent()
        self._be_patient()
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
            first = self._unsent[0]
            try:
                if first.connection is None:
                    sent = self._end.send(first.data)
                else:
                    sent = socket.send_fds(self._end, [first.data], [first.connection.fileno()])
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._end, self._write)
                if self._giving_up is None and self._patience_s is not None:
                    self._giving_up = self._loop.call_later(self._patience_s, self._give_up)
                return
            except OSError:
                # The other end is gone, which the reader finds, after what was sent before.
                self._drop_unsent()
                break
            self._be_patient()
            if first.connection is not None:
                first.connection.close()
            first.begun, first.connection, first.data = True, None, first.data[sent:]
            if not first.data:
                self._unsent.popleft()
        self._loop.remove_writer(self._end)

    def _be_patient(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _give_up(self) -> None:
        self._loop.remove_writer(self._end)
        self._drop_unsent()
        self._end_of_line()

    def _drop_unsent(self) -> None:
        for unsent in self._unsent:
            if unsent.connection is not None:
                unsent.connection.close()
        self._unsent.clear()
        self._unsent_state = None

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
            self._end_of_line()
            return
        self._came += data
        while (message := self._next()) is not None:
            brought = None
            if message.get("brings"):
                brought = _opened(self._descriptors.popleft())
            self._messages.append((message, brought))
        self._wake()

    def _end_of_line(self) -> None:
        self._loop.remove_reader(self._end)
        self.ended = True
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
