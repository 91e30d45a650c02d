"""The agent's server: a WebSocket for pipecat's clients, and a limited number of conversations."""

import asyncio
import json
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from loguru import logger
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from turngap.agent.access import Access, HangUpError, Limits, Seats
from turngap.agent.guard import SEND_BYTES, Asgi, Guard, Http, Sweeper, WebSockets, close
from turngap.agent.stack import Chosen
from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S
from turngap.core.errors import AgentError, InputError
from turngap.core.secrets import cut_without_secrets, text_without_secrets
from turngap.core.untrusted import harmless, inert

if TYPE_CHECKING:
    from turngap.agent.session import Assembly

PATH = "/ws"

HEAD_BYTES = 16 * 1024  # of a request; browsers send 1 or 2 KiB
BACKLOG = 32  # new connections that wait in the kernel

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR")
ENTRY_CHARS = 20_000  # of the log

# As long as most calls last. Orchestrators have a limit of their own (30 s in Kubernetes), after
# which they kill: docs/serving.md.
DRAIN_S = 300.0

# How soon the event loop hands the GIL to a thread that waits for it. The LLM and the voice in the
# process need it for each token and each piece of sound. With Python's 5 ms and an event loop that
# is half busy, a reply of 7 tokens took 50 ms (p90 118); with this 37 (p90 58): n=30 each.
SWITCH_S = 0.0005


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The address to listen at, the clients that may connect, and their permissions."""

    host: str = "127.0.0.1"
    port: int = 7860
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)


def plain_app(agent: str, seats: Seats) -> FastAPI:
    """Make an ASGI application with only the health checks."""
    app = FastAPI(
        title=f"turngap agent {agent}",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        # FastAPI's own spans would be of every request, also of those that ask for no trace.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False},
    )

    @app.get("/healthz")
    async def health() -> dict[str, object]:  # pyright: ignore[reportUnusedFunction]
        return {"agent": agent, "sessions": seats.taken}

    @app.get("/readyz")
    async def ready() -> JSONResponse:  # pyright: ignore[reportUnusedFunction]
        why = seats.why_none
        said = {"agent": agent, "ready": not why, "sessions": seats.taken}
        return JSONResponse({**said, "reason": why} if why else said, 503 if why else 200)

    return app


def create_app(assembly: "Assembly", settings: ServeSettings, seats: Seats) -> FastAPI:
    """Make the ASGI application."""
    from turngap.agent.session import converse  # and pipecat, which a relay does without

    app = plain_app(assembly.stack.name, seats)

    async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
        async def talk() -> None:
            guard = Guard(settings.limits, assembly.clock, assembly.stack.audio.in_sample_rate)
            await guard.run(partial(converse, assembly), asgi)

        asgi = scope, receive, send
        await seated(settings.access, seats, asgi, talk)

    app.router.routes.append(WebSocketRoute(PATH, Endpoint(endpoint)))
    return app


class Endpoint:
    """A plain ASGI endpoint; Starlette would wrap a function in its own WebSocket."""

    def __init__(self, serve: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)


async def seated(
    access: Access, seats: Seats, asgi: Asgi, talk: Callable[[], Awaitable[None]]
) -> None:
    """Accept a WebSocket and let `talk` serve it in a seat; close it if no seat is free."""
    websocket = WebSocket(*asgi)
    await websocket.accept()
    try:
        if refusal := access.refusal(websocket):
            raise HangUpError(refusal.code, f"{refusal.message}: {refusal.hint}")
        async with seats.seat():
            await talk()
    except HangUpError as e:
        await close(asgi[2], *e.args)


def bind(settings: ServeSettings) -> socket.socket:
    """Return a listening socket, to find a port in use before anything is loaded.

    Raises:
        AgentError: the port is in use or may not be used.
    """
    # asyncio turns Nagle's algorithm off only for sockets whose protocol is given as TCP. With it
    # on, the first audible chunk waited 4 to 16 ms for the caller to acknowledge the one before.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # of each connection
    if timeout := getattr(socket, "TCP_USER_TIMEOUT", 0):  # the kernel forgets who is gone, too
        listener.setsockopt(socket.IPPROTO_TCP, timeout, round(settings.limits.unread_s * 2000))
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        raise AgentError(
            "serve.port",
            f"cannot listen on {settings.host}:{settings.port}: {e.strerror}",
            hint="choose another with --port, or --port 0 for any free one",
        ) from e
    listener.set_inheritable(False)
    return listener


class Config(uvicorn.Config):
    """uvicorn's settings, with turngap's own."""

    def __init__(self, app: ASGIApp, limits: Limits, seats: int) -> None:
        super().__init__(
            cast("Any", app),
            http=Http,
            ws=WebSockets,
            ws_per_message_deflate=False,
            ws_max_size=limits.message_bytes,
            ws_ping_interval=None,  # `WebSockets` pings
            h11_max_incomplete_event_size=HEAD_BYTES,
            backlog=BACKLOG,
            log_config=None,
            log_level="error",  # a warning of each malformed request would fill the log
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        self.limits = limits
        self.most_connections = seats + limits.connections


class Server(uvicorn.Server):
    """uvicorn's server for `app`, which listens on the sockets given to its `serve`.

    At the first SIGTERM it takes no new calls, and ends when the last call has ended or after
    `drain_s`. Any other signal ends it at once.
    """

    def __init__(self, app: ASGIApp, limits: Limits, seats: Seats, drain_s: float = 0.0) -> None:
        super().__init__(Config(app, limits, seats.most))
        sys.setswitchinterval(SWITCH_S)
        self._seats = seats
        self._drain_s = drain_s
        self._clock = MonotonicClock()
        self._sweep = Sweeper(limits)
        self._until_ns = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig != signal.SIGTERM or self._drain_s <= 0 or self._seats.drains:
            super().handle_exit(sig, frame)
            return
        self._seats.drains = True  # and nothing that a signal's handler may not do, as logging

    async def on_tick(self, counter: int) -> bool:
        self._sweep(self.server_state.connections, self._clock.now_ns())
        return await super().on_tick(counter) or (self._seats.drains and self._is_drained())

    def _is_drained(self) -> bool:
        left = self._seats.taken
        now_ns = self._clock.now_ns()
        if left and not self._until_ns:
            self._until_ns = now_ns + round(self._drain_s * NS_PER_S)
            logger.warning(
                f"shutting down: waiting up to {self._drain_s:g} s for the calls that run ({left}) "
                "to end; new ones are refused. A second SIGTERM, or Ctrl-C, ends at once"
            )
        elif left and now_ns >= self._until_ns:
            logger.error(f"calls that did not end within {self._drain_s:g} s are cut off: {left}")
            return True
        return not left


def serve(
    server: uvicorn.Server, listener: socket.socket, at_end: Callable[[], Awaitable[None]]
) -> None:
    """Serve until a signal ends it, then await `at_end`."""

    async def run() -> None:
        try:
            await server.serve(sockets=[listener])
        finally:
            await at_end()

    asyncio.run(run())


def _write(entry: object) -> None:
    """Write an entry of the log to stderr, without secrets and in printable lines."""
    lines = text_without_secrets(cut_without_secrets(str(entry), ENTRY_CHARS)).splitlines()
    sys.stderr.write(inert("".join(harmless(line) + "\n" for line in lines)))


class _ToLoguru(logging.Handler):
    """A handler that sends Python's own log to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelname if record.levelname in LOG_LEVELS else record.levelno
        logger.opt(exception=record.exc_info).log(level, "{}", record.getMessage())


def set_log_level(level: str) -> None:
    """Set the log's level; at debug level pipecat logs the path of every frame.

    Raises:
        InputError: the level is unknown.
    """
    if level.upper() not in LOG_LEVELS:
        known = f"known: {', '.join(LOG_LEVELS)}"
        raise InputError("serve.log_level", f"no log level {level!r}", hint=known)
    logger.remove()
    # `diagnose` would print the values of variables below a traceback, keys among them.
    form = "{time:HH:mm:ss.SSS} {level} {message}"
    logger.add(_write, level=level.upper(), format=form, diagnose=False)
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)


def announce_json(url: str, *, page: str, chosen: Chosen) -> None:
    """Print one line on stdout that tells a parent process that the agent is ready."""
    said = {"ready": True, "url": url, "page": page, "chosen": chosen.model_dump(mode="json")}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
