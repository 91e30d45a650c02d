"""uvicorn's connections within `Limits`: no client can hold one for nothing.

uvicorn has no time limit for a request's head, counts no pings, reads 256 KiB at once, and waits
for ever for a client that takes nothing. What is limited here is what no ASGI application sees.
"""

import asyncio
from typing import Any, cast

import h11
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from turngap.agent.limits import CODE_TOO_FAST, Limits, Meter
from turngap.core.clock import NS_PER_S

# In asyncio's own 256 KiB there can be 37,000 messages, which take half a second to parse.
READ_BYTES = 2048
# What the kernel holds for a client that does not read: five seconds of the agent's voice.
SEND_BYTES = 256 * 1024
# Of a request. Browsers send 1 or 2 KiB; websockets takes no longer line, and few more headers.
HEAD_BYTES, LINE_BYTES, HEADERS = 16 * 1024, 8000, 100
TOO_MANY_HEADERS = f"expected at most {HEADERS} headers of {LINE_BYTES} bytes"
BACKLOG = 32  # new connections that wait in the kernel
# How long a client may take to answer a close.
CLOSE_S = 2.0


class Config(uvicorn.Config):
    """uvicorn's settings, with ours."""

    def __init__(self, app: ASGIApp, limits: Limits, seats: int) -> None:
        super().__init__(
            cast("Any", Requests(app, limits)),
            http=Http,
            ws=WebSockets,
            ws_per_message_deflate=False,
            ws_max_size=limits.message_bytes,
            ws_ping_interval=limits.pong_s,
            ws_ping_timeout=limits.pong_s,
            h11_max_incomplete_event_size=HEAD_BYTES,
            backlog=BACKLOG,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self.limits = limits
        self.most = seats + limits.connections
        self.most_of_one = seats + limits.connections // 2


class Requests:
    """An ASGI layer that answers no more HTTP requests a second than the limit."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._meter = Meter(limits.requests_per_s, limits.burst_s, 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._app
        if scope["type"] == "http" and len(scope["headers"]) > HEADERS:
            answer = PlainTextResponse(TOO_MANY_HEADERS, 431, {"connection": "close"})
        elif scope["type"] == "http" and not self._meter.take(1, _now_ns()):
            words = "too many requests: try again in a second"
            answer = PlainTextResponse(words, 429, {"connection": "close"})
        await answer(scope, receive, send)


def _now_ns() -> int:
    return round(asyncio.get_running_loop().time() * NS_PER_S)


class _Bounded(asyncio.Protocol):
    """Reads little at once, and gives a client up that takes nothing of what is written."""

    config: Config
    transport: asyncio.Transport
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast("Any", transport).max_size = READ_BYTES  # asyncio's own, of all it reads at once
        # Writing is paused as soon as the kernel takes no more, so that nothing is held here.
        self.transport.set_write_buffer_limits(high=0)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        loop = asyncio.get_running_loop()
        self._unread = loop.call_later(self.config.limits.vanished_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def _refuse(self, status: int, words: str) -> None:
        """Answer a request without the application, and close."""
        head = f"HTTP/1.1 {status} {STATUS_PHRASES[status].decode()}\r\nconnection: close\r\n"
        body = f"content-type: text/plain\r\ncontent-length: {len(words)}\r\n\r\n{words}"
        self.transport.write(f"{head}{body}".encode())
        self.transport.close()


class Http(_Bounded, H11Protocol):
    """A connection until it becomes a WebSocket. A request must come completely in time."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._await_request(self.config.limits.request_s)
        clients = [each.client for each in cast("Any", self.connections)]
        of_one = sum(each and each[0] == (self.client or [""])[0] for each in clients)
        if of_one > (most := self.config.most_of_one):
            self._refuse(503, f"more than {most} connections are open from one address")
        elif len(clients) > self.config.most:
            self._refuse(503, f"more than {self.config.most} connections are open")

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_request(None)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._await_request(self.config.limits.request_s)
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._await_request(None)
        lines = [len(event.target), *(len(name) + len(value) for name, value in self.headers)]
        if event.method != b"GET":
            self._refuse(405, "a WebSocket is opened with GET")
        elif len(lines) > HEADERS or max(lines) > LINE_BYTES:
            self._refuse(431, TOO_MANY_HEADERS)
        else:
            super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request, unless that has begun; the application sends no more."""
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(400, msg)  # h11 would give a HEAD no answer with words
        else:
            self.transport.close()

    def _await_request(self, seconds: float | None) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None if seconds is None else self.loop.call_later(seconds, self._too_late)

    def _too_late(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            seconds = self.config.limits.request_s
            self._refuse(408, f"no complete request came within {seconds:g} s")
        elif self.conn.their_state is h11.SEND_BODY:
            self.transport.abort()


class WebSockets(_Bounded, WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket. No frame is free, a ping as little as a message."""

    _deaf = False  # what comes is dropped unread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.close_timeout = CLOSE_S
        limits = self.config.limits
        self._frames = Meter(limits.messages_per_s, limits.burst_s, _now_ns())

    def data_received(self, data: bytes) -> None:
        if not self._deaf and not self.transport.is_closing():
            super().data_received(data)
        if not self.handshake_initiated:
            # websockets takes less than h11 does, as no body, and says nothing then.
            self._refuse(400, "this is no opening of a WebSocket")

    def handle_events(self) -> None:
        most = self.config.limits.messages_per_s
        if self.close_sent or self._frames.take(len(self.conn.events), _now_ns()):
            super().handle_events()
            return
        reason = f"more than {most:g} messages, pings or fragments a second"
        self.conn.send_close(CODE_TOO_FAST, reason)
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """Send the reason, and drop what comes until the client is gone.

        To close at once, with unread bytes, would reset the connection, and the reason be lost.
        """
        if (closed := self.conn.close_sent) is None:  # not even a handshake
            return
        self._deaf = self.close_sent = True
        gone = {"type": "websocket.disconnect", "code": closed.code, "reason": closed.reason}
        self.queue.put_nowait(cast("Any", gone))
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        self.close_timer = self.loop.call_later(CLOSE_S, self.transport.close)
        self.transport.resume_reading()
