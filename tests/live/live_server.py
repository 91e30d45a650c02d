"""The live page's server with engines that need no models, and a stand-in for the page."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from turngap.agent.access import Access, Limits, Seats
from turngap.agent.server import Server, ServeSettings, bind
from turngap.caller.dialects.pipecat import audio_frame, parse, payload_of
from turngap.caller.dialects.rtvi import rtvi
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm
from turngap.core.wire import message_frame
from turngap.live.answering import Answering, OwnStack
from turngap.live.app import LiveServer
from turngap.live.keeping import Keeping

if TYPE_CHECKING:
    from turngap.agent.session import Assembly

RATE = 16_000
PACKET = 320
CLOCK = MonotonicClock()
PATIENCE_S = 20.0


def tone(ms: float, amplitude: float = 8000) -> Pcm:
    """Loud enough to be speech to the fake VAD and to the ear."""
    return (np.cos(np.arange(round(RATE * ms / 1000)) / 9) * amplitude).astype(np.int16)


def silence(ms: float) -> Pcm:
    return np.zeros(round(RATE * ms / 1000), np.int16)


@dataclass
class Page:
    """A page without a browser: it counts its own microphone and measures nothing.

    Attributes:
        told: the server messages that came, by what `turngap` names them.
        rtvi: the stock messages' types, in order, and among them the names of server messages.
        closed: code and reason, once the server has closed.
    """

    socket: ClientConnection
    told: list[dict[str, Any]] = field(default_factory=list)
    rtvi: list[str] = field(default_factory=list)
    audio: list[tuple[int, Pcm]] = field(default_factory=list)
    interruptions: list[int] = field(default_factory=list)
    sent_samples: int = 0
    offset_ns: int | None = None
    closed: tuple[int, str] | None = None
    _heard: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _listening: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._listening = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.socket.close()
        assert self._listening is not None
        await self._listening

    async def _listen(self) -> None:
        try:
            while True:
                data = await self.socket.recv()
                assert isinstance(data, bytes)
                self._take(parse(data))
                self._changed.set()
        except ConnectionClosed as e:
            if e.rcvd is not None:
                self.closed = (e.rcvd.code, e.rcvd.reason)
            self._changed.set()

    def _take(self, frame: Any) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "audio":
            self.audio.append((CLOCK.now_ns(), np.frombuffer(frame.audio.audio, "<i2")))
        elif kind == "interruption":
            self.interruptions.append(CLOCK.now_ns())
        elif kind == "message":
            payload = payload_of(frame)
            kind = payload["type"]
            if kind == "server-message":
                self.told.append(payload["data"])
                kind = payload["data"]["turngap"]
            self.rtvi.append(kind)

    async def until(self, there: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
        """Wait until something true has come; what it is."""
        async with asyncio.timeout(within_s):
            while not (found := there()):
                self._changed.clear()
                await self._changed.wait()
        return found

    def of(self, name: str) -> list[dict[str, Any]]:
        return [m for m in self.told if m["turngap"] == name]

    async def next(self, name: str, count: int = 1) -> dict[str, Any]:
        """The `count`-th message of that name."""
        return (await self.until(lambda: len(self.of(name)) >= count and self.of(name)))[count - 1]

    async def say(self, kind: str, data: Any) -> None:
        """Send a client message."""
        await self.socket.send(message_frame(rtvi("client-message", {"t": kind, "d": data})))

    async def ready(self) -> dict[str, Any]:
        """Shake hands; the session message."""
        about = {"version": "2.2.0", "about": {"library": "test"}}
        await self.socket.send(message_frame(rtvi("client-ready", about)))
        return await self.next("session")

    async def ping(self) -> int:
        """The offset of the agent's clock to this page's, which is the test's own clock."""
        await self.say("turngap.ping", {"ping": 1})
        await self.next("pong")
        return 0

    async def speak(self, *parts: Pcm) -> tuple[int, int]:
        """Send audio at once; the page clock before and after it."""
        begun = self.sent_samples
        pcm = np.concatenate(parts)
        for first in range(0, len(pcm), PACKET):
            packet = pcm[first : first + PACKET]
            await self.socket.send(audio_frame(packet.tobytes(), RATE))
            self.sent_samples += len(packet)
        return begun * 62_500, self.sent_samples * 62_500

    async def heard_all(self) -> None:
        """Wait until the agent calls its next reply done, and say meanwhile that this is here."""
        self._heard += 1
        async with asyncio.timeout(PATIENCE_S):
            while self.rtvi.count("bot-stopped-speaking") < self._heard:
                await self.say("turngap.ping", {"ping": 0})
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 100_000_000)

    @property
    def agent_samples(self) -> int:
        return sum(len(pcm) for _, pcm in self.audio)


@dataclass(frozen=True)
class Serving:
    """A live server that runs."""

    port: int
    live: LiveServer
    seats: Seats

    def url(self, path: str, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    @asynccontextmanager
    async def page(self, query: str = "", **more: Any) -> AsyncIterator[Page]:
        """A page's socket."""
        url = self.url(f"/live{query}", "ws")
        async with connect(url, max_size=None, **more) as socket, Page(socket) as page:
            yield page

    async def get(self, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Ask over HTTP: status, headers, body. Redirects are not followed."""
        return await self.ask("GET", path, None, **headers)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Post JSON; status and the answer's JSON."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, answer = await self.ask("POST", path, raw, **headers)
        return status, json.loads(answer)

    async def ask(
        self, method: str, path: str, body: bytes | None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        named = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"}
        named |= {key.replace("_", "-"): value for key, value in headers.items()}
        if body is not None:
            named["Content-Length"] = str(len(body))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = "".join(f"{key}: {value}\r\n" for key, value in named.items())
        writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + (body or b""))
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        top, _, content = answer.partition(b"\r\n\r\n")
        status, *lines = top.decode().split("\r\n")
        found = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
        return int(status.split()[1]), found, content

    async def becomes(self, sessions: int) -> None:
        """Wait until so many conversations run."""
        async with asyncio.timeout(PATIENCE_S):
            while self.seats.taken != sessions:
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 20_000_000)

    async def holds_at_most(self, conversations: int) -> None:
        """Wait until no more conversations are kept; those that are let go of end by and by."""
        async with asyncio.timeout(PATIENCE_S):
            while self.live.conversations.count > conversations:
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 20_000_000)


def _own(assembly: "Assembly | None") -> OwnStack:
    from fake_engines import fake_assembly  # and pipecat, which a foreign agent does without

    return OwnStack(assembly or fake_assembly())


@asynccontextmanager
async def serving(
    tmp_path: Path,
    assembly: "Assembly | None" = None,
    *,
    access: Access | None = None,
    limits: Limits | None = None,
    max_sessions: int = 8,
    keeping: Keeping | None = None,
    answering: Answering | None = None,
) -> AsyncIterator[Serving]:
    """Serve the live page on a free port of loopback; runs are kept in `tmp_path`/runs."""
    settings = ServeSettings(port=0, access=access or Access(), limits=limits or Limits())
    listener = bind(settings)
    answering = answering or _own(assembly)
    seats = Seats(max_sessions)
    keeping = keeping or Keeping(tmp_path / "runs")
    live = LiveServer(answering, settings, keeping, seats)
    server = Server(live.app, settings.limits, seats)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield Serving(listener.getsockname()[1], live, seats)
    finally:
        server.should_exit = True
        await task
        await live.close()
