"""The agent's server: one WebSocket endpoint for a limited number of conversations."""

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import uvicorn
from fastapi import FastAPI, WebSocket
from loguru import logger
from starlette.types import ASGIApp

from turngap.agent.access import Access
from turngap.agent.session import Assembly, converse
from turngap.core.errors import AgentError, InputError

PATH = "/ws"
LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")

# A WebSocket's control frame holds 125 bytes, two of them the code.
REASON_BYTES = 123

# 1013: try again later.
CODE_FULL = 1013


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where to listen, and who may connect."""

    host: str = "127.0.0.1"
    port: int = 7860
    access: Access = field(default_factory=Access)


class Seats:
    """Limits the conversations that run at the same time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    @contextmanager
    def seat(self) -> Iterator[bool]:
        """Take a seat for as long as this lasts; yields False if none is free."""
        if self.taken >= self.most:
            yield False
            return
        self.taken += 1
        try:
            yield True
        finally:
            self.taken -= 1

    def full(self) -> str:
        """Return what a caller is told who finds no seat."""
        return (
            f"full: {self.taken} of {self.most} conversations are running; try again later, "
            "or serve with a higher --max-sessions"
        )


def create_app(assembly: Assembly, settings: ServeSettings, seats: Seats) -> FastAPI:
    """Make the ASGI application."""
    app = FastAPI(
        title=f"turngap agent {assembly.stack.name}",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )

    @app.get("/healthz")
    async def health() -> dict[str, object]:  # pyright: ignore[reportUnusedFunction]
        return {"agent": assembly.stack.name, "sessions": seats.taken}

    @app.websocket(PATH)
    async def endpoint(websocket: WebSocket) -> None:  # pyright: ignore[reportUnusedFunction]
        await websocket.accept()
        if refusal := settings.access.refusal(websocket):
            await close(websocket, refusal.code, f"{refusal.message}: {refusal.hint}")
            return
        with seats.seat() as seated:
            if not seated:
                await close(websocket, CODE_FULL, seats.full())
                return
            await converse(assembly, websocket)

    return app


async def close(websocket: WebSocket, code: int, reason: str) -> None:
    """Close a WebSocket with as much of a readable reason as its frame holds."""
    await websocket.close(code, reason.encode()[:REASON_BYTES].decode(errors="ignore"))


def bind(settings: ServeSettings) -> socket.socket:
    """Return a listening socket, so that a port in use is found before anything is loaded.

    Raises:
        AgentError: the port is in use or may not be used.
    """
    # asyncio turns Nagle's algorithm off only for sockets whose protocol is given as TCP. With it
    # on, the first audible chunk waited 4 to 16 ms for the caller to acknowledge the one before.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen()
    except OSError as e:
        listener.close()
        raise AgentError(
            "serve.port",
            f"cannot listen on {settings.host}:{settings.port}: {e.strerror}",
            hint="choose another with --port, or --port 0 for any free one",
        ) from e
    listener.set_inheritable(False)
    return listener


def set_log_level(level: str) -> None:
    """Set the log's level on stderr; at debug level pipecat logs what becomes of every frame.

    Raises:
        InputError: there is no such level.
    """
    if level.upper() not in LOG_LEVELS:
        raise InputError(
            "serve.log_level", f"no log level {level!r}", hint=f"known: {', '.join(LOG_LEVELS)}"
        )
    logger.remove()
    logger.add(sys.stderr, level=level.upper(), format="{time:HH:mm:ss.SSS} {level} {message}")


def create_server(app: ASGIApp) -> uvicorn.Server:
    """Make the server, which listens on the sockets given to its `serve`."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            ws_max_size=1 << 20,
            log_level="warning",
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
    )


async def _nothing() -> None:
    return


def serve(
    app: ASGIApp,
    listener: socket.socket,
    announce: Callable[[str, int], None],
    at_end: Callable[[], Awaitable[None]] = _nothing,
) -> None:
    """Call `announce` with host and port, serve until a signal ends it, then await `at_end`."""
    server = create_server(app)
    host, port = listener.getsockname()[:2]
    announce(host, port)

    async def run() -> None:
        try:
            await server.serve(sockets=[listener])
        finally:
            await at_end()

    asyncio.run(run())


def announce_json(url: str, *, page: str) -> None:
    """Tell a parent process, in one line on stdout, that the agent is ready."""
    sys.stdout.write(json.dumps({"ready": True, "url": url, "page": page}) + "\n")
    sys.stdout.flush()
