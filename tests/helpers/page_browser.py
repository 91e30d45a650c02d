"""The live page in a real headless Chromium: a server for it, a microphone, a browser."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import soundfile
import soxr
from playwright.async_api import Browser, Page, async_playwright
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from turngap.caller.dialects.pipecat import parse, payload_of
from turngap.caller.dialects.rtvi import rtvi
from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, dbfs_to_amplitude
from turngap.core.wire import message_frame
from turngap.testing.agent import Script, script_to_json

PAGE = Path(str(resources.files("turngap.live"))) / "page"
CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"),
    reason="no Chromium here; on Debian or Ubuntu: apt-get install chromium",
)

# Nothing here depends on how long this takes; it only ends a test that hangs.
PATIENCE_S = 60.0
MIC_RATE = 48_000
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # It knows no host but this one, so that none of its own services is looked up. `lan.test` is a
    # name for it that Chromium does not take for this machine's own.
    "--host-resolver-rules="
    "MAP lan.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
    "--autoplay-policy=no-user-gesture-required",
)
# As strict as the real server's, for servers of tests that are not it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class PageServer:
    """Serves the page under a strict policy, and hands its WebSocket on to an agent's port."""

    def __init__(self, agent_port: int = 0) -> None:
        self.agent_port = agent_port
        self.asked: list[str] = []  # what was asked for, with its query
        about = {"agent": "test", "in_sample_rate": 16_000, "say": "Ask for tea.", "examples": []}
        self.answers: dict[str, Any] = {"/api/about": about}
        self._lines: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/"

    def cut(self) -> None:
        """Lose every line, without a closing handshake."""
        for writer in self._lines:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            target = head.split(b" ", 2)[1].decode()
            self.asked.append(target)
            if b"upgrade: websocket" in head.lower():
                await self._hand_on(head, reader, writer)
            else:
                writer.write(self._answer(target.split("?")[0]))
                await writer.drain()
        writer.close()

    def _answer(self, path: str) -> bytes:
        name = "index.html" if path == "/" else path.removeprefix("/page/")
        status, body, kind = HTTPStatus.NOT_FOUND, b"", "text/plain"
        if path in self.answers:
            status, body = HTTPStatus.OK, json.dumps(self.answers[path]).encode()
            kind = "application/json"
        elif "/" not in name and (PAGE / name).is_file():
            status, body = HTTPStatus.OK, (PAGE / name).read_bytes()
            kind = KINDS[Path(name).suffix]
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nContent-Security-Policy: {POLICY}\r\n"
            "X-Content-Type-Options: nosniff\r\nCross-Origin-Opener-Policy: same-origin\r\n"
            "Cross-Origin-Embedder-Policy: require-corp\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    async def _hand_on(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, to_agent = await asyncio.open_connection("127.0.0.1", self.agent_port)
        to_agent.write(head)
        self._lines |= {writer, to_agent}
        await asyncio.gather(_pump(reader, to_agent), _pump(there, writer))
        self._lines -= {writer, to_agent}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


class Puppet:
    """An agent whose strings the test pulls: ready when asked, it says what it is told to."""

    def __init__(self, *greeting: dict[str, Any]) -> None:
        self.greeting = greeting  # server messages that follow on its readiness
        self.refusal: tuple[int, str] | None = None
        self.told: list[dict[str, Any]] = []  # the page's client messages, pings left out
        self.audio: list[Any] = []
        self._changed = asyncio.Condition()
        self._sockets: list[ServerConnection] = []

    async def __aenter__(self) -> Self:
        self._server = await serve(self._session, "127.0.0.1", 0)
        self.port: int = next(iter(self._server.sockets)).getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _session(self, socket: ServerConnection) -> None:
        if self.refusal is not None:
            await socket.close(*self.refusal)
            return
        self._sockets.append(socket)
        with suppress(ConnectionClosed):
            async for message in socket:
                await self._on(socket, parse(message))

    async def _on(self, socket: ServerConnection, frame: Any) -> None:
        if frame.WhichOneof("frame") == "audio":
            self.audio.append(frame.audio)
            return
        payload = payload_of(frame)
        if payload["type"] == "client-ready":
            await socket.send(message_frame(rtvi("bot-ready", {"version": "2.2.0"})))
            for message in self.greeting:
                await self.tell(message)
        elif payload["data"]["t"] == "turngap.ping":
            pong = {"turngap": "pong", "ping": payload["data"]["d"]["ping"], "agent_ns": 5_000_000}
            await self.tell(pong)
        else:
            async with self._changed:
                self.told.append(payload["data"])
                self._changed.notify_all()

    async def say(self, kind: str, data: Any = None) -> None:
        """Send an RTVI message to the page that came last."""
        await self._sockets[-1].send(message_frame(rtvi(kind, data)))

    async def send(self, message: bytes | str) -> None:
        await self._sockets[-1].send(message)

    async def tell(self, data: dict[str, Any]) -> None:
        await self.say("server-message", data)

    async def close(self, code: int, reason: str) -> None:
        await self._sockets[-1].close(code, reason)

    async def left(self) -> int | None:
        """The code with which the page that came last has closed, once it has."""
        await self._sockets[-1].wait_closed()
        return self._sockets[-1].close_code

    async def heard(self, kind: str) -> dict[str, Any]:
        """The details of the page's next message of that kind."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            while not (found := [m for m in self.told if m["t"] == kind]):
                await self._changed.wait()
        self.told.remove(found[0])
        return found[0]["d"]


@asynccontextmanager
async def process(*command: str) -> AsyncIterator[dict[str, Any]]:
    """A child that says in one line of JSON that it is ready."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", *command, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    try:
        line = await child.stdout.readline()
        assert line, f"{command} did not start"
        yield json.loads(line)
    finally:
        with suppress(ProcessLookupError):
            child.terminate()
        await child.wait()


@asynccontextmanager
async def scripted_agent(script: Script) -> AsyncIterator[int]:
    """A scripted agent in a process of its own; yields its port."""
    async with process("-m", "turngap.testing.agent", script_to_json(script)) as ready:
        yield int(ready["url"].rsplit(":", 1)[1])


@dataclass
class Microphone:
    """The person's sound at the microphone: speech with pauses, over a room's noise."""

    pieces: list[Pcm] = field(default_factory=list[Pcm])

    @property
    def ms(self) -> float:
        return sum(map(len, self.pieces)) * 1000 / MIC_RATE

    def pause(self, ms: float) -> Self:
        self.pieces.append(np.zeros(round(ms * MIC_RATE / 1000), np.int16))
        return self

    def tone(self, ms: float, dbfs: float = -12.0) -> Self:
        """Sound whose first and last samples are loud."""
        t = np.arange(round(ms * MIC_RATE / 1000)) / MIC_RATE
        tone = np.cos(2 * np.pi * 250.0 * t) * dbfs_to_amplitude(dbfs)
        self.pieces.append(np.rint(tone).astype(np.int16))
        return self

    def recording(self, file: Path) -> Self:
        pcm, rate = soundfile.read(file, dtype="int16")
        self.pieces.append(np.asarray(soxr.resample(pcm, rate, MIC_RATE), np.int16))
        return self

    def write(self, file: Path) -> Path:
        pcm = np.concatenate(self.pieces).astype(np.float64)
        noise = np.random.default_rng(0).standard_normal(len(pcm))
        heard = np.clip(pcm + noise * dbfs_to_amplitude(LINE_FLOOR_DBFS), -32768, 32767)
        soundfile.write(file, np.rint(heard).astype(np.int16), MIC_RATE)
        return file


@asynccontextmanager
async def chromium(*flags: str, microphone: Path | None = None) -> AsyncIterator[Browser]:
    """A browser whose microphone is a file, or a beeping one."""
    more = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", *flags]
    if microphone is not None:
        more.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=[*FLAGS, *more]
        )
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class Opened:
    """The page in a tab of its own."""

    page: Page
    problems: list[str]

    async def start(self) -> None:
        await self.page.click("#talk")
        await self.state("connected")

    async def state(self, text: str, timeout_s: float = PATIENCE_S) -> None:
        await self.text("#state", lambda shown: shown == text, timeout_s)

    async def text(
        self, selector: str, wanted: Callable[[str], bool], timeout_s: float = PATIENCE_S
    ) -> str:
        """Return an element's text, once it is the wanted one."""
        shown = ""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not wanted(shown := await self.page.inner_text(selector)):
                    await self.page.wait_for_timeout(50)
                return shown
        raise self._late(f"{selector} says {shown!r}")

    async def watch_drawing(self) -> None:
        """Note in each turn, as `drawnMs`, how long after its onset its waterfall was there."""
        await self.page.evaluate(_WATCH_DRAWING)

    async def turns(self) -> list[dict[str, Any]]:
        """The page's turns: fields and figures."""
        return await self.page.evaluate(_TURNS)

    async def finished(self, n: int, timeout_s: float) -> list[dict[str, Any]]:
        """The turns, once `n` have ended."""
        turns: list[dict[str, Any]] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    turns = await self.turns()
                    if len([turn for turn in turns if turn["ended"]]) >= n:
                        return turns
                    await self.page.wait_for_timeout(200)
        raise self._late(f"only {turns} have ended")

    def _late(self, said: str) -> Exception:
        """Build the error if nothing more came in time, by itself or after an error in the page."""
        if self.problems:
            return AssertionError(f"{said}; problems: {self.problems}")
        return TimeoutError(said)


# The page's clock is placed on the window's by the earliest of the ticks that tell it.
_WATCH_DRAWING = """async () => {
  const { tracker } = await import("/page/main.js"), { tick } = tracker;
  const cards = document.getElementById("turns");
  let offsetMs = Infinity;
  tracker.tick = (ns, drift) => {
    offsetMs = Math.min(offsetMs, performance.now() - ns / 1e6);
    tick.call(tracker, ns, drift);
  };
  new MutationObserver(() => {
    const turn = tracker.turns.at(-1);
    const bar = cards.querySelector("li:first-child div rect:not(.band)");
    if (turn?.onsetNs && bar) turn.drawnMs ??= performance.now() - offsetMs - turn.onsetNs / 1e6;
  }).observe(cards, { childList: true, subtree: true });
}"""
_TURNS = """async () => {
  const { tracker } = await import("/page/main.js");
  return tracker.turns.map((turn) => {
    const { gapMs, outcome, leftOut, whyNoGap, stages, agentMs } = turn;
    return { ...turn, gapMs, outcome, leftOut, whyNoGap, stages, agentMs };
  });
}"""


async def opened(browser: Browser, url: str, script: str = "", **context: Any) -> Opened:
    """The page, opened in a new profile; `script` runs before it."""
    tab = await browser.new_context(**context)
    if script:
        await tab.add_init_script(script)
    page = await tab.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None
    )
    await page.goto(url)
    return Opened(page, problems)


Call = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def modules() -> AsyncIterator[Call]:
    """Calls JavaScript with the page's modules: `await call("codec", "(m, x) => m.f(x)", x)`."""
    async with PageServer() as server, chromium() as browser:
        tab = await opened(browser, server.url)

        async def call(module: str, function: str, *values: Any) -> Any:
            program = (
                f"async (values) => ({function})(await import('/page/{module}.js'), ...values)"
            )
            return await tab.page.evaluate(program, list(values))

        yield call
        assert tab.problems == []
