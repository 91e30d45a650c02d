"""Connections that no client can hold for nothing: uvicorn's protocols within `Limits`.

uvicorn has no time limit for a request's head, counts no pings, reads 256 KiB at once, and waits
for ever for a client that takes nothing. What is limited here is what no ASGI application sees.
"""

import asyncio
from http import HTTPStatus
from typing import Any, cast

import h11
import uvicorn
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from turngap.agent.limits import CODE_TOO_FAST, Limits, Meter, Meters, address_of
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S

# What is read at once. In asyncio's own 256 KiB there can be 37,000 messages, and to parse them
# takes half a second in which nobody else is served.
READ_BYTES = 2048

# What the kernel holds for a client that does not read: five seconds of the agent's voice.
SEND_BYTES = 256 * 1024

# The head of a request; browsers send 1 or 2 KiB. websockets takes no line beyond 8 KiB and no more
# than 128 headers.
HEAD_BYTES = 16 * 1024
LINE_BYTES = 8000
HEADERS = 100

# How many seconds' worth of requests may come at once: a few pages that are opened.
REQUESTS_AT_ONCE_S = 4.0

# New connections that wait in the kernel, or are accepted in one round of the event loop.
BACKLOG = 32

# How long a client may take to answer a close, and how much of what it sent before is read.
CLOSE_S = 2.0
AFTER_CLOSE_BYTES = 256 * 1024


class Config(uvicorn.Config):
    """uvicorn's settings, with ours; `most` is the most connections, and `each` of one address."""

    def __init__(self, app: ASGIApp, limits: Limits, seats: int) -> None:
        super().__init__(
            cast("Any", Requests(app, limits.requests_per_s)),
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
        self.most, self.each = most_connections(limits, seats)


def most_connections(limits: Limits, seats: int) -> tuple[int, int]:
    """Return how many connections may be open: in all, and from one address."""
    return seats + limits.connections, seats + limits.connections // 2


def too_many(opened: tuple[int, int], most: tuple[int, int]) -> str:
    """Say why no further connection is taken; empty if one is. Both in all, and of one address."""
    if opened[0] > most[0]:
        return f"more than {most[0]} connections are open; try again later"
    if opened[1] > most[1]:
        return f"more than {most[1]} connections are open from one address"
    return ""


class Requests:
    """An ASGI layer that answers an address no more HTTP requests a second than the limit."""

    def __init__(self, app: ASGIApp, per_s: float) -> None:
        self._app = app
        self._clock = MonotonicClock()
        self._meters = Meters(per_s, REQUESTS_AT_ONCE_S)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if scope["type"] == "http":
            if len(scope["headers"]) > HEADERS:
                answer = _refusal(431, f"expected at most {HEADERS} headers")
            elif not self._meters.take(address_of(scope), self._clock.now_ns()):
                answer = _refusal(429, "too many requests: try again in a second")
        await answer(scope, receive, send)


def _refusal(status: int, words: str) -> Response:
    return PlainTextResponse(f"{words}\n", status, {"connection": "close", "retry-after": "1"})


class _Bounded(asyncio.BufferedProtocol):
    """Reads little at once, and gives a client up that takes nothing of what is written."""

    config: Config
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    _unread: asyncio.TimerHandle | None = None

    def _begin(self) -> None:
        self._piece = bytearray(READ_BYTES)
        # Writing is paused as soon as the kernel takes no more, so that nothing is held here.
        self.transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._piece

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_watching()
        super().connection_lost(exc)

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._piece[:nbytes]))

    def data_received(self, data: bytes) -> None:
        raise NotImplementedError

    def _watch_writing(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stop_watching()
        self._unread = self.loop.call_later(self.config.limits.vanished_s, self._check, left)

    def _check(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._watch_writing()
        else:
            self.transport.abort()

    def _stop_watching(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class Http(_Bounded, H11Protocol):
    """A connection until it becomes a WebSocket."""

    config: Config
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._begin()
        same = sum(_address(c) == _address(self) for c in self.connections)
        most = (self.config.most, self.config.each)
        if words := too_many((len(self.connections), same), most):
            self._refuse(503, words)
        else:
            self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_awaiting()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        return

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        H11Protocol.data_received(self, data)

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop_awaiting()
        lines = [len(name) + len(value) + 4 for name, value in self.headers]
        lines.append(len(event.target) + 20)
        if event.method != b"GET":
            self._refuse(405, "a WebSocket is opened with GET")
        elif len(lines) > HEADERS or max(lines) > LINE_BYTES:
            self._refuse(431, f"expected at most {HEADERS} headers of {LINE_BYTES} bytes")
        else:
            self._stop_watching()
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

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    def _await_request(self) -> None:
        """Give the client so long to send a request completely."""
        self._stop_awaiting()
        self._late = self.loop.call_later(self.config.limits.request_s, self._too_late)

    def _stop_awaiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._refuse(408, too_late(self.config.limits))
        elif self.conn.their_state is h11.SEND_BODY:
            self.transport.abort()

    def _refuse(self, status: int, words: str) -> None:
        """Answer without the application, and close."""
        self.transport.write(refusal(status, words))
        self.transport.close()


def _address(connection: Any) -> str:
    return connection.client[0] if connection.client else ""


def too_late(limits: Limits) -> str:
    """Say that a request took too long to come."""
    return f"no complete request came within {limits.request_s:g} s"


def refusal(status: int, words: str, kind: str = "text/plain; charset=utf-8") -> bytes:
    """Make a whole HTTP answer, after which the connection is closed."""
    return (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
        f"content-type: {kind}\r\ncontent-length: {len(words) + 1}\r\n"
        f"connection: close\r\n\r\n{words}\n"
    ).encode()


class WebSockets(_Bounded, WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket."""

    config: Config
    _deaf = False  # what comes is dropped unread
    _after_close = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._begin()
        self.close_timeout = CLOSE_S
        limits = self.config.limits
        # Frames that never reach the application: pings, pongs and pieces of a message.
        self._control = Meter(limits.messages_per_s, limits.burst_s, self._now_ns())

    def eof_received(self) -> None:
        return

    def data_received(self, data: bytes) -> None:
        if self.close_sent:
            self._after_close += len(data)
            self._deaf |= self._after_close > AFTER_CLOSE_BYTES
        if not (self._deaf or self.transport.is_closing()):
            WebSocketsSansIOProtocol.data_received(self, data)
        if not self.handshake_initiated:
            # websockets takes less than h11 does, as no body, and says nothing then.
            self.transport.write(refusal(400, "this is no opening of a WebSocket"))
            self.transport.close()

    def handle_ping(self) -> None:
        if self._counted():
            super().handle_ping()

    def handle_pong(self, event: Frame) -> None:
        if self._counted():
            super().handle_pong(event)

    def handle_cont(self, event: Frame) -> None:
        if self._counted():
            super().handle_cont(event)

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is None:  # not even a handshake
            self.transport.abort()
        else:
            self._leave(self.conn.close_sent.code, self.conn.close_sent.reason)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_watching()

    async def send(self, message: Any) -> None:
        if message["type"] == "websocket.close":
            # A client that takes nothing cannot delay that it is closed.
            self.writable.set()
        await super().send(message)

    def _leave(self, code: int, reason: str) -> None:
        """Send what says why, and read nothing more until the client is gone.

        To close at once, with unread bytes, would reset the connection, and the reason be lost.
        """
        self._deaf = self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.transport.write_eof()
        self.close_timer = self.loop.call_later(CLOSE_S, self.transport.close)
        self.transport.resume_reading()

    def _counted(self) -> bool:
        if self._control.take(1, self._now_ns()):
            return True
        most = self.config.limits.messages_per_s
        if not self.close_sent:
            reason = f"more than {most:g} pings or fragments a second"
            self.conn.send_close(CODE_TOO_FAST, reason)
            self._leave(CODE_TOO_FAST, reason)
        return False

    def _now_ns(self) -> int:
        return round(self.loop.time() * NS_PER_S)
