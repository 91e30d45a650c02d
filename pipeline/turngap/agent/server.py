"""The agent's server: one WebSocket endpoint, as many conversations as it says."""

import asyncio
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI, WebSocket
from loguru import logger

from turngap.agent.session import Assembly, converse
from turngap.core.errors import AgentError, InputError

PATH = "/ws"
LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where to listen and how much to take on."""

    host: str = "127.0.0.1"
    port: int = 7860
    max_sessions: int = 8


def create_app(assembly: Assembly, settings: ServeSettings) -> FastAPI:
    """The ASGI application."""
    app = FastAPI(title=f"turngap agent {assembly.stack.name}", docs_url=None, redoc_url=None)
    running: set[WebSocket] = set()

    @app.get("/healthz")
    async def health() -> dict[str, object]:  # pyright: ignore[reportUnusedFunction]
        return {"agent": assembly.stack.name, "sessions": len(running)}

    @app.websocket(PATH)
    async def endpoint(websocket: WebSocket) -> None:  # pyright: ignore[reportUnusedFunction]
        await websocket.accept()
        if len(running) >= settings.max_sessions:
            # 1013: try again later.
            await websocket.close(1013, f"full: {settings.max_sessions} conversations are running")
            return
        running.add(websocket)
        try:
            await converse(assembly, websocket)
        finally:
            running.discard(websocket)

    return app


def bind(settings: ServeSettings) -> socket.socket:
    """A listening socket, so that a port in use is known before anything is loaded.

    Raises:
        AgentError: the port is in use or may not be used.
    """
    # asyncio turns Nagle's algorithm off only for sockets that say that they are TCP. With it on,
    # the first audible chunk waited 4 to 16 ms for the caller to acknowledge the one before.
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
    """Pipecat logs every frame's fate at debug level to stderr; keep what matters.

    Raises:
        InputError: there is no such level.
    """
    if level.upper() not in LOG_LEVELS:
        raise InputError(
            "serve.log_level", f"no log level {level!r}", hint=f"known: {', '.join(LOG_LEVELS)}"
        )
    logger.remove()
    logger.add(sys.stderr, level=level.upper(), format="{time:HH:mm:ss.SSS} {level} {message}")


def create_server(assembly: Assembly, settings: ServeSettings) -> uvicorn.Server:
    """The server, which listens on the sockets given to its `serve`."""
    return uvicorn.Server(
        uvicorn.Config(
            create_app(assembly, settings),
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            ws_max_size=1 << 20,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=2,
        )
    )


def serve(
    assembly: Assembly,
    settings: ServeSettings,
    listener: socket.socket,
    announce: Callable[[str], None],
) -> None:
    """Load the engines, call `announce` with the URL, and serve until a signal ends it."""
    assembly.prepare()
    server = create_server(assembly, settings)
    host, port = listener.getsockname()[:2]
    announce(f"ws://{host}:{port}{PATH}")
    asyncio.run(server.serve(sockets=[listener]))


def announce_json(url: str) -> None:
    """Tell a parent process, in one line on stdout, that the agent is ready."""
    sys.stdout.write(json.dumps({"ready": True, "url": url}) + "\n")
    sys.stdout.flush()
