"""The socket between a client and the agent's pipeline, in uvicorn and above it.

uvicorn limits a request's head and a message. Beyond that, it waits for ever for a request and for
a client that reads nothing, counts no pings, and takes a pong behind a backlog for none. `Http`,
`WebSockets` and `Sweeper` add these limits. A `Guard` checks a client's messages (pipecat's
protobuf with RTVI in it) before pipecat sees them. Messages outside the limits close the connection
with a code and a reason.
"""

import asyncio
import json
import math
import socket
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

import h11
import numpy as np
from loguru import logger
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from turngap.agent import access as of
from turngap.agent.access import TEXT_CHARS, HangUpError, Limits
from turngap.clocks import MonotonicClock
from turngap.core.audio import AUDIBLE_DBFS, Pcm, rms_dbfs
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import parse_json, printable
from turngap.core.wire import LLM, SAY, Frame, frame_in, message_frame

# What RTVI clients may send. pipecat's processor takes more: files that the server would fetch from
# a URL, audio past every check, results of functions that were not called. These are dropped.
RTVI_TYPES = frozenset({"client-ready", "client-message", "send-text", "disconnect-bot"})

# Messages that mean that a side speaks. The agent's voice itself is audio.
SPEECH_TYPES = frozenset({"user-started-speaking", "user-transcription", "bot-llm-text"})


@dataclass(frozen=True, slots=True)
class Taken:
    """A client's message after its check.

    Attributes:
        passes: whether the agent's pipeline gets it.
        pcm: the audio in it.
        asks: whether it makes the agent work, as a typed turn does.
        asked: an RTVI client message: its type and its data.
        answer: the reply that the client gets at once.
    """

    passes: bool = False
    pcm: Pcm | None = None
    asks: bool = False
    asked: tuple[str, Any] | None = None
    answer: bytes | None = None


def take(message: Message, rate: int) -> Taken:
    """Check a client's message, whose audio must have the sample rate `rate`.

    Raises:
        HangUpError: the message does not belong to the protocol.
    """
    frame = _parsed(message)
    kind = frame.WhichOneof("frame")
    if kind == "audio":
        return Taken(passes=True, pcm=_pcm_of(frame.audio, rate))
    if kind != "message":
        raise HangUpError(
            of.CODE_NOT_ALLOWED, f"expected audio or an RTVI message, got a frame of {kind}"
        )
    try:
        payload = parse_json(frame.message.data)
    except ValueError as e:
        raise HangUpError(of.CODE_MALFORMED, "expected JSON in a message frame") from e
    if not isinstance(payload, dict) or payload.get("label") != "rtvi-ai":
        return Taken()
    return _rtvi(payload)


def is_speech(data: bytes) -> bool:
    """Return whether a message for the client is speech, or reports that a side speaks."""
    frame = Frame.FromString(data)
    if frame.WhichOneof("frame") == "audio":
        # An agent that is relayed may send silence for as long as the line is open.
        pcm = np.frombuffer(frame.audio.audio, dtype="<i2")
        return rms_dbfs(pcm) >= AUDIBLE_DBFS
    if frame.WhichOneof("frame") != "message":
        return False
    payload = json.loads(frame.message.data)
    return isinstance(payload, dict) and payload.get("type") in SPEECH_TYPES


def _parsed(message: Message) -> Any:
    data = message.get("bytes")
    if data is None:
        raise HangUpError(
            of.CODE_NO_TEXT, "expected pipecat's protobuf in binary messages, got text"
        )
    frame = frame_in(data)
    if frame is None:
        raise HangUpError(
            of.CODE_MALFORMED,
            f"expected pipecat's protobuf, got {len(data)} bytes that are no frame of it",
        )
    return frame


def _pcm_of(audio: Any, rate: int) -> Pcm:
    if audio.sample_rate != rate or audio.num_channels != 1 or len(audio.audio) % 2:
        channels = "mono" if audio.num_channels == 1 else f"{audio.num_channels} channels"
        raise HangUpError(
            of.CODE_MALFORMED,
            f"expected PCM16 mono at {rate} Hz, got {len(audio.audio)} bytes, "
            f"{channels}, {audio.sample_rate} Hz",
        )
    return np.frombuffer(audio.audio, dtype="<i2")


def _rtvi(payload: dict[str, Any]) -> Taken:
    kind, data = payload.get("type"), payload.get("data")
    if not isinstance(kind, str) or kind not in RTVI_TYPES:
        error = f"not taken: {printable(str(kind))[:50]}; taken: {sorted(RTVI_TYPES)}"
        refused = {"label": "rtvi-ai", "type": "error-response", "data": {"error": error}}
        return Taken(answer=message_frame({**refused, "id": str(payload.get("id"))[:100]}))
    if kind == "send-text":
        content = data.get("content") if isinstance(data, dict) else None
        if isinstance(content, str) and len(content) > TEXT_CHARS:
            why = f"a text has {len(content)} characters, and {TEXT_CHARS} are allowed"
            raise HangUpError(of.CODE_NOT_ALLOWED, why)
        return Taken(passes=True, asks=True)
    if kind == "client-message" and isinstance(data, dict):
        named = str(data.get("t"))
        return Taken(passes=True, asks=named in (SAY, LLM), asked=(named, data.get("d")))
    return Taken(passes=True)


# In asyncio's own 256 KiB there can be 37,000 messages, which take half a second to parse.
READ_BYTES = 2048
FRAME_BYTES = 512  # this many, of a bigger frame, count as one
# What the kernel holds for a client that does not read: as much as a line of 2G has in flight.
SEND_BYTES = 256 * 1024
# The agent speaks at most this far into a line that has stalled, besides what is always in flight.
# What is still here when the person interrupts is dropped.
HELD_MS = 300.0
ROOM = "turngap.room"  # in a WebSocket's scope: waits until less than that is held
ROOM_MS = 10.0  # how often it looks
CLOSE_S = 2.0  # for a client's answer to a close
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
REASON_BYTES = 123  # a WebSocket's control frame holds 125, two of them the code
WATCH_MS = 500.0  # how often a guard looks at the time
# How long a pipeline may take to come down once its client is gone, which takes 25 ms, and how long
# after it was cancelled; pipecat itself waits 20 s for a part that does not answer.
COMES_DOWN_S, CANCELLED_S = 30.0, 3.0
GONE = (RuntimeError, OSError)  # raised by sending when the client leaves at the same moment


@dataclass(frozen=True, slots=True)
class Kernel:
    """A connection as Linux's `tcp_info` has it; elsewhere, all is 0.

    After 3 s without a network, at a round trip of 1.3 s, TCP handed over nothing for up to 10 s,
    but no 6.5 s passed in which no segment came. So segments are the signs of life.
    """

    LAYOUT: ClassVar = struct.Struct("=68xI48xQ16xI4xI36xI4xQQ")

    rtt_us: int = 0
    acked: int = 0  # bytes
    unsent: int = 0  # bytes
    came: int = 0  # segments with data
    delivered: int = 0  # segments
    sent: int = 0  # bytes, with those sent again
    sent_again: int = 0

    @classmethod
    def of(cls, transport: Any) -> Self:
        if not (option := getattr(socket, "TCP_INFO", 0)):
            return cls()
        own = transport.get_extra_info("socket")
        info = own.getsockopt(socket.IPPROTO_TCP, option, cls.LAYOUT.size)
        return cls(*cls.LAYOUT.unpack(info.ljust(cls.LAYOUT.size, b"\0")))

    def held_ms(self, bytes_per_ms: float) -> float:
        """Return how much audio has not been received, beyond what a round trip takes."""
        in_flight = self.sent - self.sent_again - self.acked
        return (self.unsent + in_flight) / bytes_per_ms - self.rtt_us / 1000


Asgi = tuple[Scope, Receive, Send]


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
        """Refuse a malformed request; uvicorn fails if its answer has begun, or has no body."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(BAD_REQUEST)
        self.transport.close()


class Corked:
    """A transport that writes what comes in one step of the event loop as one piece.

    A reply begins with some small messages and the first audio. Each alone would be a packet, and
    TCP sends ten packets before it waits for a round trip.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._held)) + self._transport.get_write_buffer_size()

    def writelines(self, data: Iterable[bytes]) -> None:
        self.write(b"".join(data))

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held and not self._transport.is_closing():
            self._transport.write(b"".join(held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class WebSockets(WebSocketsSansIOProtocol):
    """A connection that has become a WebSocket. Every frame counts towards limits, pings too.

    uvicorn's own pings want a pong in time, which a backlog of audio delays, or a lost packet. Here
    every segment that reaches the kernel is a sign of life.
    """

    config: Any  # of `Server`

    def connection_made(self, transport: Any) -> None:
        super().connection_made(cast("Any", Corked(transport, self.loop)))
        self.close_timeout = CLOSE_S
        self._due_s = 0.0  # when what came would be due at the average rate
        self._bytes = 0
        self._pinged_s = 0.0
        self._alive_s = self.loop.time()
        self._came = 0

    async def run_asgi(self) -> None:
        cast("Any", self.scope)[ROOM] = self._room
        await super().run_asgi()

    async def _room(self, bytes_per_ms: float) -> None:
        """Wait until the kernel holds little audio; cut off a client that takes nothing."""
        clock, before, since_ns = MonotonicClock(), -1, 0
        while not self.transport.is_closing():
            kernel, now_ns = Kernel.of(self.transport), clock.now_ns()
            if kernel.held_ms(bytes_per_ms) < HELD_MS:
                return
            if kernel.delivered != before:
                before, since_ns = kernel.delivered, now_ns
            elif now_ns - since_ns > self.config.limits.unread_s * NS_PER_S:
                self.transport.abort()
            await clock.sleep_until_ns(now_ns + ms_to_ns(ROOM_MS))

    def keep_alive(self) -> None:
        """Ping a client that has been quiet; close the connection to one that stays silent."""
        limits, now_s = self.config.limits, self.loop.time()
        if not self.handshake_complete or self.close_sent or self.transport.is_closing():
            return
        if (came := Kernel.of(self.transport).came) != self._came:
            self._came, self._alive_s = came, now_s
        if self._pinged_s <= self._alive_s:
            if now_s - self._alive_s > limits.ping_s:
                self._pinged_s = now_s
                self.conn.send_ping(b"")
                self.transport.write(b"".join(self.conn.data_to_send()))
        elif now_s - self._pinged_s > limits.pong_s:
            silent_s = limits.ping_s + limits.pong_s
            self.conn.fail(of.CODE_FAILED, f"no sign of life for {silent_s:g} seconds")
            self.close_sent = True
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
            if self.transport.get_write_buffer_size():  # it would wait for the client to read
                self.transport.abort()

    def data_received(self, data: bytes) -> None:
        self._alive_s = self.loop.time()
        self._bytes = len(data)
        if self.conn.parser_exc is None:
            super().data_received(data)
        if not self.handshake_initiated:  # websockets takes less than h11 does, as no body
            self.transport.write(BAD_REQUEST)
            self.transport.close()

    def handle_events(self) -> None:
        limits, now_s = self.config.limits, self.loop.time()
        frames = max(len(self.conn.events), self._bytes / FRAME_BYTES)
        self._due_s = max(self._due_s, now_s) + frames / limits.messages_per_s
        if self.close_sent or self._due_s <= now_s + limits.burst_s:
            super().handle_events()
            return
        self.conn.events.clear()
        most = f"{limits.messages_per_s:g} messages, pings or fragments a second"
        self.conn.fail(of.CODE_TOO_FAST, f"more than {most}, each of up to {FRAME_BYTES} bytes")
        self.handle_parser_exception()

    def handle_parser_exception(self) -> None:
        """Send the reason, and drop everything that arrives until the client is gone.

        Closing at once, with unread bytes, would reset the connection and lose the reason.
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


class Sweeper:
    """A check, run regularly, that pings, and cuts off clients that are gone or read nothing."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Since when a request is awaited, or what was written is unread, and how much of it.
        self._stuck: dict[Any, tuple[int, int]] = {}

    def __call__(self, connections: Iterable[Any], now_ns: int) -> None:
        stuck: dict[Any, tuple[int, int]] = {}
        for each in connections:
            unread = each.transport.get_write_buffer_size()
            if not (http := isinstance(each, Http)):
                each.keep_alive()
            if unread or (http and each.conn.their_state in (h11.IDLE, h11.SEND_BODY)):
                key = each, each.cycle if http else None
                since_ns, before = self._stuck.get(key, (now_ns, unread))
                if unread < before:
                    since_ns = now_ns
                stuck[key] = since_ns, unread
                most_s = self._limits.unread_s if unread else self._limits.request_s
                if now_ns - since_ns > most_s * NS_PER_S:
                    each.transport.abort()
        self._stuck = stuck


async def close(send: Send, code: int, reason: str) -> None:
    """Close a WebSocket with as much of a readable reason as its frame holds."""
    fits = printable(reason).encode()[:REASON_BYTES].decode(errors="ignore")
    await send({"type": "websocket.close", "code": code, "reason": fits})


class Guard:
    """One accepted WebSocket and the pipeline behind it.

    Recordings derive from this class and override `heard`, `asked` and `sent`.
    """

    def __init__(self, limits: Limits, clock: Clock, in_rate: int) -> None:
        self.limits = limits
        self.clock = clock
        self.ended: tuple[int, str] | None = None  # why the server closed the socket, if it did
        self.left_code: int | None = None  # the client's closing code, once it has left
        self.spoken_to = False  # whether the client has sent a message
        self._in_rate = in_rate
        self._active_ns = self._asks_due_ns = clock.now_ns()
        # Since when a message has been waited for; None while the agent is busy with one.
        self._waiting_ns: int | None = None
        self._gone = asyncio.Event()

    async def run(self, converse: Callable[[WebSocket], Any], asgi: Asgi) -> None:
        """Let `converse` serve the client until it leaves or is closed; wait for its end."""
        scope, self._receive, self._send = asgi
        socket = WebSocket(scope, self._checked_receive, self._checked_send)
        socket.client_state = socket.application_state = WebSocketState.CONNECTED
        works = converse(socket), self._gone.wait(), self._watch()
        tasks = talking, gone, _ = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait({talking, gone}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({talking}, timeout=COMES_DOWN_S)
            if not talking.done():
                logger.error(f"a conversation did not end within {COMES_DOWN_S:g} s: cancelled")
            elif talking.cancelled():
                await self.failed(asyncio.CancelledError("from inside"))
            elif error := talking.exception():
                await self.failed(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCELLED_S)

    async def tell(self, data: bytes) -> None:
        """Send the client a message of the server's own, if it is still connected."""
        with suppress(*GONE):
            await self._send({"type": "websocket.send", "bytes": data})

    async def end(self, code: int, reason: str) -> None:
        """Close the connection, unless it is closed already."""
        if self.ended is None:
            # An error's words may name what was reached, with its key.
            self.ended = (code, text_without_secrets(reason))
            with suppress(*GONE):
                await close(self._send, *self.ended)
            self._gone.set()

    async def failed(self, error: BaseException) -> None:
        """End a connection whose conversation failed."""
        logger.opt(exception=error).error("a conversation failed")
        await self.end(of.CODE_FAILED, f"the agent failed: {type(error).__name__}: {error}")

    def heard(self, pcm: Pcm) -> None:
        """Note audio of the client."""

    def asked(self, kind: str, data: Any) -> bool:
        """Take an RTVI client message; return whether the agent must not see it."""
        return False

    async def sent(self, data: bytes) -> None:
        """Note that a message of the agent was sent."""

    async def notice(self, in_s: float) -> None:
        """Warn the client that it will be closed soon unless there is speech."""

    def silence_s(self) -> float:
        """Return how long a client may send nothing; a client that is gone answers no ping."""
        return math.inf if self.spoken_to else self.limits.first_s

    def active(self) -> None:
        """Note speech or text from either side."""
        self._active_ns = self.clock.now_ns()

    async def _checked_receive(self) -> Message:
        while True:
            self._waiting_ns = self.clock.now_ns()
            message = await self._receive()
            self._waiting_ns = None
            if message["type"] != "websocket.receive" or self.ended is not None:
                self.left_code = message.get("code")
                self._gone.set()
                return {"type": "websocket.disconnect", "code": self.left_code or of.CODE_DONE}
            try:
                if await self._passes(message):
                    return message
            except HangUpError as e:
                await self.end(*e.args)
            except Exception as e:
                await self.failed(e)

    async def _passes(self, message: Message) -> bool:
        """Check a message; return whether the agent gets it."""
        self.spoken_to = True
        taken = take(message, self._in_rate)
        if taken.asks:
            self.active()
            limits, now_ns = self.limits, self._active_ns
            self._asks_due_ns = max(self._asks_due_ns, now_ns) + int(NS_PER_S / limits.asks_per_s)
            if self._asks_due_ns > now_ns + limits.burst_s * NS_PER_S:
                most = f"more than {limits.asks_per_s:g} typed turns a second"
                raise HangUpError(of.CODE_TOO_FAST, most)
        if taken.pcm is not None:
            self.heard(taken.pcm)
        if taken.answer is not None:
            await self.tell(taken.answer)
        if taken.asked is not None:
            return not self.asked(*taken.asked)
        return taken.passes

    async def _checked_send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        with suppress(OSError):  # the client has left, which its next message says, too
            await self._send(message)
            if data := message.get("bytes"):
                if is_speech(data):
                    self.active()
                await self.sent(data)

    async def _watch(self) -> None:
        """End a connection that is quiet or has vanished."""
        limits, looks = self.limits, 0
        while self.ended is None:
            await self.clock.sleep_until_ns(self.clock.now_ns() + ms_to_ns(WATCH_MS))
            now_ns, silent_s = self.clock.now_ns(), self.silence_s()
            waited_ns = 0 if self._waiting_ns is None else now_ns - self._waiting_ns
            # Twice, because after a moment in which nothing ran here, a message may be there.
            looks = looks + 1 if waited_ns > silent_s * NS_PER_S else 0
            idle_s = limits.idle_s - (now_ns - self._active_ns) / NS_PER_S
            if looks > 1:
                await self.end(of.CODE_IDLE, f"no message came for {silent_s:g} seconds")
            elif idle_s < 0:
                await self.end(of.CODE_IDLE, f"no one spoke for {limits.idle_s / 60:g} minutes")
            elif idle_s < limits.warn_s:
                await self.notice(idle_s)
