"""Clients that do to a server what none should: each names what it does and what must come of it.

They speak raw TCP, so that they can do what a WebSocket library would not.
"""

import asyncio
import os
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pipecat.frames.protobufs import frames_pb2

from turngap.agent.access import Limits
from turngap.caller.dialects.pipecat import audio_frame, interruption_frame
from turngap.caller.dialects.rtvi import rtvi
from turngap.clocks import MonotonicClock
from turngap.core.wire import message_frame

CLOCK = MonotonicClock()
RATE = 16_000
PATIENCE_S = 20.0
TEXT, BINARY, CLOSE, PING = 0x1, 0x2, 0x8, 0x9
CONTINUATION = 0x0


def framed(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A frame of RFC 6455 from a client, masked with noughts."""
    first = (0x80 if fin else 0) | opcode
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + bytes(4) + payload


@dataclass
class Client:
    """One raw connection.

    `came` is what the server ended it with: a close code and reason, or an HTTP status and body;
    (0, "") if it just went.
    """

    port: int
    path: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: list["Client"] = field(default_factory=list["Client"])

    @classmethod
    async def connect(cls, port: int, path: str) -> "Client":
        return cls(port, path, *await asyncio.open_connection("127.0.0.1", port))

    async def another(self) -> "Client":
        client = await Client.connect(self.port, self.path)
        self.left.append(client)
        return client

    async def write(self, data: bytes) -> None:
        """Send what the server takes before it hangs up."""
        try:
            self.writer.write(data)
            await self.writer.drain()
        except OSError:
            return

    async def write_unread(self, data: bytes) -> None:
        """Send this over and over and read nothing, until the server gives up."""
        transport = self.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        async with asyncio.timeout(PATIENCE_S):
            while not transport.is_closing():
                if transport.get_write_buffer_size() < 1 << 20:
                    transport.write(data)
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)

    def head(self, *more: str, path: str = "", method: str = "GET") -> bytes:
        lines = [
            f"{method} {path or self.path} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            *more,
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n"

    async def upgrade(self) -> "Client":
        await self.write(self.head())
        answer = await self.reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 101"), answer
        return self

    async def send(self, *messages: bytes | str) -> None:
        for message in messages:
            text = isinstance(message, str)
            data = message.encode() if isinstance(message, str) else message
            await self.write(framed(TEXT if text else BINARY, data))

    async def came(self) -> tuple[int, str]:
        """Read until the server has said what it ends this with."""
        data = b""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    piece = await self.reader.read(1 << 16)
                except OSError:
                    piece = b""
                data += piece
                if data.startswith(b"HTTP"):
                    if not piece:
                        return _answer(data)
                elif (closed := _close_frame(data)) or not piece:
                    return closed or (0, "")

    async def leave(self) -> None:
        for client in (self, *self.left):
            client.writer.transport.abort()


def _close_frame(data: bytes) -> tuple[int, str] | None:
    while len(data) >= 4:
        size, start = data[1] & 0x7F, 2
        if size == 126:
            size, start = struct.unpack("!H", data[2:4])[0], 4
        payload = data[start : start + size]
        if len(payload) == size and data[0] & 0x0F == CLOSE:
            return struct.unpack("!H", payload[:2])[0], payload[2:].decode()
        data = data[start + size :]
    return None


def _answer(data: bytes) -> tuple[int, str]:
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


Script = Callable[[Client], Awaitable[Any]]


@dataclass(frozen=True)
class Hostile:
    """A client's actions, the limits, and the expected result.

    Attributes:
        code: a WebSocket's close code or an HTTP status; 0: the connection just ends.
        words: what the reason says.
    """

    does: Script
    code: int = 0
    words: str = ""
    limits: Limits = field(default_factory=Limits)
    path: str = "/ws"
    max_sessions: int = 8


QUICK = Limits(request_s=0.3)
PINGED = Limits(ping_s=0.2, pong_s=0.4)
AUDIO = audio_frame(bytes(640), RATE)


def raw(*data: bytes) -> Script:
    """Write these bytes to a fresh connection."""

    async def does(client: Client) -> None:
        for piece in data:
            await client.write(piece)

    return does


def head(*more: str, **other: str) -> Script:
    """Ask for an upgrade with this changed in its head."""

    async def does(client: Client) -> None:
        await client.write(client.head(*more, **other))

    return does


def frames(*data: bytes) -> Script:
    """Write these frames to a WebSocket."""

    async def does(client: Client) -> None:
        await client.upgrade()
        await client.write(b"".join(data))

    return does


def messages(*sent: bytes | str) -> Script:
    """Send these messages over a WebSocket."""

    async def does(client: Client) -> None:
        await client.upgrade()
        await client.send(*sent)

    return does


def post(method: str = "POST") -> bytes:
    return f"{method} /healthz HTTP/1.1\r\nHost: localhost\r\n".encode()


def typed(text: str) -> bytes:
    return message_frame(rtvi("send-text", {"content": text, "options": {}}))


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
NONSENSE = CHUNKED + b"hello\n\r\n"
READY = message_frame(rtvi("client-ready", {"version": "2.2.0", "about": {"library": "x"}}))
SMALL = framed(BINARY, message_frame(rtvi("client-message", {"t": "x"})))
PONG_ME = framed(PING, bytes(125))
ENDLESS = framed(BINARY, b"", fin=False), framed(CONTINUATION, b"", fin=False) * 10_000
HUGE = struct.pack("!BBQ", 0x82, 0xFF, 2**62) + bytes(4)
DEEP = frames_pb2.Frame()  # type: ignore[attr-defined]  # made by protoc at import
DEEP.message.data = "[" * 20_000
TWILIO = '{"event": "connected", "protocol": "Call", "version": "1.0.0"}'
HEADERS = [f"X-{n}: {n}" for n in range(5000)]
MANY = "\r\n".join(["GET / HTTP/1.1", "Host: 127.0.0.1", *HEADERS]).encode() + b"\r\n\r\n"


async def is_silent(client: Client) -> None:
    await client.upgrade()
    for _ in range(7):
        await (await client.another()).upgrade()


async def ends_its_body_in_nonsense(client: Client) -> None:
    await client.write(post() + CHUNKED)
    answer = await client.reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405"), answer
    await client.write(b"hello\n\r\n")


async def trickles_its_head(client: Client) -> None:
    for byte in b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ":
        await client.write(bytes([byte]))


async def never_reads(client: Client) -> None:
    await client.upgrade()
    await client.write_unread(PONG_ME * 1000)


async def opens_too_many(client: Client) -> None:
    for _ in range(5):
        client.reader = (await client.another()).reader


async def comes_and_goes(client: Client) -> None:
    for _ in range(12):
        client.reader = (await (await client.another()).upgrade()).reader


async def vanishes(client: Client) -> None:
    await client.upgrade()
    await client.send(READY, AUDIO)
    await client.leave()


async def never_reads_answers(client: Client) -> None:
    await client.write_unread((post("GET") + b"\r\n") * 1000)


async def without_a_key(client: Client) -> None:
    await client.write(client.head().replace(b"Sec-WebSocket-Key", b"X-Key"))


async def a_body_with_its_upgrade(client: Client) -> None:
    await client.write(client.head("Content-Length: 5") + b"hello")


async def half_a_head(client: Client) -> None:
    await client.write(client.head()[:40])


SLOWLY = Limits(messages_per_s=20, burst_s=0.5)

HOSTILE: dict[str, Hostile] = {
    "is silent on all seats": Hostile(
        is_silent, 4408, "no message came for 0.3 s", Limits(first_s=0.3)
    ),
    "falls silent": Hostile(messages(AUDIO), 1011, "no sign of life for 0.6", PINGED),
    "sends half a head": Hostile(half_a_head, limits=QUICK),
    "trickles its head": Hostile(trickles_its_head, limits=QUICK),
    "sends half a body": Hostile(raw(post() + b"Content-Length: 100\r\n\r\nhalf"), 405, "", QUICK),
    "ends its body in nonsense": Hostile(ends_its_body_in_nonsense),
    "sends a request and nonsense": Hostile(raw(post() + NONSENSE), 400),
    "asks for a head and sends nonsense": Hostile(raw(post("HEAD") + NONSENSE), 400),
    "floods": Hostile(frames(SMALL * 30_000), 4429, "more than 20 messages", SLOWLY),
    "floods with audio": Hostile(
        frames(framed(BINARY, audio_frame(bytes(32_000), RATE)) * 40), 4429, "", Limits(burst_s=1)
    ),
    "floods with text": Hostile(
        frames(framed(TEXT, b"x") * 30_000), 1003, "expected pipecat's protobuf"
    ),
    "floods with typed turns": Hostile(
        messages(READY, *[typed("and?")] * 40), 4429, "typed turns a second"
    ),
    "types a book": Hostile(messages(READY, typed("x" * 9000)), 1008, "2000 are allowed"),
    "sends a huge message": Hostile(messages(bytes(1 << 20)), 1009, "65536"),
    "announces a huge message": Hostile(frames(HUGE), 1009, "65536"),
    "sends half a frame": Hostile(
        frames(framed(BINARY, AUDIO), framed(BINARY, AUDIO)[:50]), 1011, "no sign of life", PINGED
    ),
    "never ends a message": Hostile(frames(*ENDLESS), 4429, "fragments a second", SLOWLY),
    "begins a message twice": Hostile(
        frames(framed(BINARY, b"x", fin=False), framed(BINARY, b"x")), 1002, "continuation"
    ),
    "floods with pings": Hostile(frames(PONG_ME * 10_000), 4429, "pings", SLOWLY),
    "never reads": Hostile(never_reads, 0, "", Limits(messages_per_s=1e6, unread_s=1.0)),
    "never reads answers": Hostile(never_reads_answers, limits=Limits(unread_s=1.0)),
    "speaks another protocol": Hostile(messages(TWILIO), 1003, "got text"),
    "sends no protobuf": Hostile(messages(b"\xff\xfe\xfd"), 1007, "3 bytes that are no frame"),
    "sends nothing": Hostile(messages(b""), 1007, "0 bytes that are no frame"),
    "sends no JSON": Hostile(
        messages(message_frame({}).replace(b"{}", b"{[")), 1007, "expected JSON"
    ),
    "sends deep JSON": Hostile(messages(DEEP.SerializeToString()), 1007, "expected JSON"),
    "sends another rate": Hostile(
        messages(audio_frame(bytes(640), 48_000)), 1007, "expected PCM16 mono at 16000 Hz"
    ),
    "interrupts": Hostile(messages(interruption_frame()), 1008, "got a frame of interruption"),
    "upgrades to nowhere": Hostile(head(path="/nowhere"), 403),
    "upgrades by POST": Hostile(head(method="POST"), 405, "unsupported HTTP method"),
    "upgrades without a key": Hostile(without_a_key, 400),
    "sends a body with its upgrade": Hostile(a_body_with_its_upgrade, 400),
    "sends thousands of headers": Hostile(head(*HEADERS), 400),
    "sends many headers": Hostile(head(*HEADERS[:150]), 400),
    "sends a long header": Hostile(head(f"X-Long: {'x' * 12_000}"), 400),
    "asks with thousands of headers": Hostile(raw(MANY), 400),
    "sends no HTTP": Hostile(raw(os.urandom(64) + b"\r\n\r\n"), 400),
    "opens too many": Hostile(opens_too_many, limits=Limits(connections=4), max_sessions=1),
    "comes and goes": Hostile(comes_and_goes, 1013, "try again", max_sessions=3),
    "vanishes": Hostile(vanishes),
}
