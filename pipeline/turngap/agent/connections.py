"""uvicorn's connections within `Limits`: no client can hold one for nothing.

uvicorn limits a request's head, a message, and the wait for an answer to a ping. Beyond that, it
waits for ever for a request and for a client that reads nothing, and counts no pings.
"""

from collections.abc import Iterable
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from turngap.agent.limits import CODE_TOO_FAST, Limits, Meter
from turngap.core.clock import NS_PER_S

# In asyncio's own 256 KiB there can be 37,000 messages, which take half a second to parse.
READ_BYTES = 2048
# What the kernel holds for a client that does not read: five seconds of the agent's voice.
SEND_BYTES = 256 * 1024
CLOSE_S = 2.0  # for a client's answer to a close
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Http(H11Protocol):
    """A connection until it becomes a WebSocket."""

    config: Any  # of `Server`

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # asyncio's own, of all it reads at once
        # Writing is paused as soon as the kernel takes no more, so that nothing is held here.
        transport.set_write_buffer_limits(high=0)
        if len(self.connections) > self.config.most_connections:
            transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request; uvicorn fails to if its answer has begun, or has no body."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(BAD_REQUEST)
        self.transport.close()


class WebSockets(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket. No frame is free, a ping as little as a message."""

    config: Any  # of `Server`

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.close_timeout = CLOSE_S
        limits = self.config.limits
        self._frames = Meter(limits.messages_per_s, limits.burst_s, self._now_ns())

    def data_received(self, data: bytes) -> None:
        if self.conn.parser_exc is None:
            super().data_received(data)
        if not self.handshake_initiated:  # websockets takes less than h11 does, as no body
            self.transport.write(BAD_REQUEST)
            self.transport.close()

    def handle_events(self) -> None:
        if self.close_sent or self._frames.take(len(self.conn.events), self._now_ns()):
            super().handle_events()
            return
        self.conn.events.clear()
        most = self.config.limits.messages_per_s
        self.conn.fail(CODE_TOO_FAST, f"more than {most:g} messages, pings or fragments a second")
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """Send the reason, and drop what comes until the client is gone.

        To close at once, with unread bytes, would reset the connection, and the reason be lost.
        """
        if (closed := self.conn.close_sent) is None or self.close_sent:
            return
        self.close_sent = True
        gone = {"type": "websocket.disconnect", "code": closed.code, "reason": closed.reason}
        self.queue.put_nowait(cast("Any", gone))
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        self.close_timer = self.loop.call_later(CLOSE_S, self.transport.close)
        self.transport.resume_reading()

    def _now_ns(self) -> int:
        return round(self.loop.time() * NS_PER_S)


class Sweeper:
    """Cuts off, at each call, whoever sends no complete request or reads nothing for too long."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Since when a request is awaited, or what was written is unread, and how much of it.
        self._stuck: dict[Any, tuple[int, int]] = {}

    def __call__(self, connections: Iterable[Any], now_ns: int) -> None:
        stuck: dict[Any, tuple[int, int]] = {}
        for each in connections:
            unread = each.transport.get_write_buffer_size()
            http = isinstance(each, Http)
            if unread or (http and each.conn.their_state in (h11.IDLE, h11.SEND_BODY)):
                key = each, each.cycle if http else None
                since_ns, before = self._stuck.get(key, (now_ns, unread))
                if unread < before:
                    since_ns = now_ns
                stuck[key] = since_ns, unread
                most_s = self._limits.vanished_s if unread else self._limits.request_s
                if now_ns - since_ns > most_s * NS_PER_S:
                    each.transport.abort()
        self._stuck = stuck
