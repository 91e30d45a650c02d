"""The agent's server: a WebSocket for each protocol, and a limited number of conversations."""

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from turngap.agent.access import Access
from turngap.agent.connections import BACKLOG, SEND_BYTES, Config
from turngap.agent.drain import Drain, Server
from turngap.agent.guard import Guard, close
from turngap.agent.limits import (
    CODE_NO_TEXT,
    HangUpError,
    Limits,
)
from turngap.agent.metrics import Metrics
from turngap.agent.protocols.base import WireProtocol
from turngap.agent.seats import Places, not_ready
from turngap.agent.stack import Chosen
from turngap.core.errors import AgentError

if TYPE_CHECKING:
    from turngap.agent.session import Assembly

# Where each protocol is answered: pipecat's (protobuf, and the JSON of its evals), and others'.
PATH = "/ws"
TWILIO_PATH = "/twilio"
OPENAI_PATH = "/v1/realtime"


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Where to listen, who may connect, and what they may do."""

    host: str = "127.0.0.1"
    port: int = 7860
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)


def plain_app(agent: str, seats: Places) -> FastAPI:
    """Make an ASGI application that tells nothing but whether it is up and takes calls."""
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
        why = not_ready(seats)
        said = {"agent": agent, "ready": not why, "sessions": seats.taken}
        return JSONResponse({**said, "reason": why} if why else said, 503 if why else 200)

    return app


def create_app(assembly: "Assembly", settings: ServeSettings, seats: Places) -> FastAPI:
    """Make the ASGI application."""
    # Here, as each brings pipecat, without which the live page's relay is served.
    from turngap.agent.protocols import pipecat_eval
    from turngap.agent.protocols.openai_realtime import OpenAIRealtime
    from turngap.agent.protocols.pipecat_protobuf import PipecatProtobuf
    from turngap.agent.protocols.twilio import TwilioStream

    app = plain_app(assembly.stack.name, seats)

    rate = assembly.stack.audio.in_sample_rate

    def pipecat(first: Message) -> WireProtocol:
        if (text := first.get("text")) is None:
            return PipecatProtobuf(assembly.clock, rate, traced=assembly.traced)
        if pipecat_eval.is_opening(text):
            return pipecat_eval.PipecatEval(rate, traced=assembly.traced)
        raise HangUpError(
            CODE_NO_TEXT,
            f"expected pipecat's protobuf in binary messages, got text; others: {TWILIO_PATH}, "
            f"{OPENAI_PATH}, evals' eval-connect here",
        )

    def at(
        path: str, spoken: Callable[[], WireProtocol | Callable[[Message], WireProtocol]]
    ) -> None:
        async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
            websocket = await admitted(settings.access, scope, receive, send, assembly.metrics)
            if websocket is None:
                return
            async with seats.seat(scope) as seat:
                if seat.refused:
                    await close(websocket, seat.code, seat.refused)
                    return
                guard = Guard(settings.limits, assembly.clock, spoken())
                await guard.run(assembly, scope, receive, send, leave=seat.leave)

        app.router.routes.append(WebSocketRoute(path, Endpoint(endpoint)))

    at(PATH, lambda: pipecat)
    at(TWILIO_PATH, TwilioStream)
    at(f"{TWILIO_PATH}/{{token}}", TwilioStream)  # Twilio sends no query and no header of ours
    at(OPENAI_PATH, lambda: OpenAIRealtime(rate, assembly.stack.name))
    return app


class Endpoint:
    """A plain ASGI endpoint; Starlette would wrap a function in its own WebSocket."""

    def __init__(self, serve: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)


async def admitted(
    access: Access, scope: Scope, receive: Receive, send: Send, metrics: Metrics | None = None
) -> WebSocket | None:
    """Accept a WebSocket; None if its client has no access, and was told so."""
    websocket = WebSocket(scope, receive, send)
    # Browsers drop a connection whose server takes none of the subprotocols that they offer.
    await websocket.accept(next(filter("realtime".__eq__, websocket["subprotocols"]), None))
    if refusal := access.refusal(websocket):
        if metrics is not None:
            metrics.refused("access")
        await close(websocket, refusal.code, f"{refusal.message}: {refusal.hint}")
        return None
    return websocket


def bind(settings: ServeSettings) -> socket.socket:
    """Return a listening socket, so that a port in use is found before anything is loaded.

    Raises:
        AgentError: the port is in use or may not be used.
    """
    # asyncio turns Nagle's algorithm off only for sockets whose protocol is given as TCP. With it
    # on, the first audible chunk waited 4 to 16 ms for the caller to acknowledge the one before.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)  # of each connection
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


def create_server(
    app: ASGIApp, limits: Limits, seats: Places, drain: Drain | None = None
) -> Server:
    """Make the server, which listens on the sockets given to its `serve`."""
    return Server(Config(app, limits, seats.most), drain)


async def _nothing() -> None:
    return


def serve(
    server: Server,
    listener: socket.socket,
    announce: Callable[[str, int], None],
    at_end: Callable[[], Awaitable[None]] = _nothing,
) -> None:
    """Call `announce` with host and port, serve until a signal ends it, then await `at_end`."""
    host, port = listener.getsockname()[:2]
    announce(host, port)

    async def run() -> None:
        try:
            await server.serve(sockets=[listener])
        finally:
            await at_end()

    asyncio.run(run())


def announce_json(url: str, *, page: str, chosen: Chosen) -> None:
    """Tell a parent process, in one line on stdout, that the agent is ready."""
    said = {"ready": True, "url": url, "page": page, "chosen": chosen.model_dump(mode="json")}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
