"""The live page in a real headless Chromium, for tests: a server for it, a microphone, a browser."""

import asyncio
import functools
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import resources
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Browser, Page, sync_playwright

from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, dbfs_to_amplitude
from turngap.testing.agent import Script, script_to_json

PAGE = Path(str(resources.files("turngap.live"))) / "page"
CHROMIUM = next(
    (c for n in ("chromium", "chromium-browser", "google-chrome") if (c := shutil.which(n))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium; on Debian: apt-get install chromium"
)

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
    "--autoplay-policy=no-user-gesture-required",
)
# What a strict server sends: the page has to work under it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


class PageServer:
    """Serves the page under a strict policy, and hands its WebSocket on to an agent's port.

    Runs on a loop of its own. `agent_port` may change; `cut` loses every line.
    """

    def __init__(self, agent_port: int = 0) -> None:
        self.agent_port = agent_port
        self.answers: dict[str, Any] = {}
        self._loop = asyncio.new_event_loop()
        self._lines: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/"

    def cut(self) -> None:
        """Lose the lines, without a closing handshake."""

        async def abort() -> None:
            for writer in self._lines:
                writer.transport.abort()

        self._call(abort())

    def _call(self, course: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(course, self._loop).result(10)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode().split("?")[0]
            if b"upgrade: websocket" in head.lower():
                await self._hand_on(head, reader, writer)
            else:
                writer.write(self._answer(path))
                await writer.drain()
        writer.close()

    def _answer(self, path: str) -> bytes:
        name = "index.html" if path == "/" else path.removeprefix("/page/")
        file = PAGE / name
        status, body, kind = HTTPStatus.NOT_FOUND, b"", "text/plain"
        if path in self.answers:
            status, body = HTTPStatus.OK, json.dumps(self.answers[path]).encode()
            kind = "application/json"
        elif "/" not in name and file.is_file():
            status, body, kind = HTTPStatus.OK, file.read_bytes(), KINDS[file.suffix]
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


@contextmanager
def scripted_agent(script: Script) -> Iterator[int]:
    """A scripted agent in a process of its own; yields its port."""
    command = [sys.executable, "-m", "turngap.testing.agent", script_to_json(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url: str = json.loads(process.stdout.readline())["url"]
            yield int(url.rsplit(":", 1)[1])
        finally:
            process.terminate()


@dataclass
class Microphone:
    """What a person says into the microphone: speech with pauses, over a room's noise."""

    pieces: list[Pcm] = field(default_factory=list[Pcm])

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
        import soxr

        pcm, rate = soundfile.read(file, dtype="int16")
        self.pieces.append(np.asarray(soxr.resample(pcm, rate, MIC_RATE), np.int16))
        return self

    def write(self, file: Path) -> Path:
        pcm = np.concatenate(self.pieces).astype(np.float64)
        noise = np.random.default_rng(0).standard_normal(len(pcm))
        heard = np.clip(pcm + noise * dbfs_to_amplitude(LINE_FLOOR_DBFS), -32768, 32767)
        soundfile.write(file, np.rint(heard).astype(np.int16), MIC_RATE)
        return file


@contextmanager
def chromium(
    *flags: str, microphone: Path | None = None, allowed: bool = True
) -> Iterator[Browser]:
    """A browser; with a file as its microphone, with none, or one that refuses it."""
    assert CHROMIUM is not None
    more = list(flags)
    if microphone is not None:
        more.append("--use-fake-device-for-media-stream")
        more.append(f"--use-file-for-fake-audio-capture={microphone}%noloop")
    more.append("--use-fake-ui-for-media-stream" if allowed else "--deny-permission-prompts")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=[*FLAGS, *more]
        )
        yield browser
        browser.close()


def opened(browser: Browser, url: str, **context: Any) -> Page:
    """The page, opened in a new profile; errors on it fail whoever asks `page.problems`."""
    page = browser.new_context(**context).new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None
    )
    page.problems = problems  # type: ignore[attr-defined]
    page.goto(url)
    return page
