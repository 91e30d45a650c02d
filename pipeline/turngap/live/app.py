"""The live page's server: the page, its socket and downloads, and the socket of plain callers."""

import asyncio
import dataclasses
import re
import shlex
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.background import BackgroundTask
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turngap import __version__
from turngap.agent.access import CODE_DONE, CODE_FAILED, Refusal, Seats, cookie_name
from turngap.agent.guard import Asgi
from turngap.agent.server import Endpoint, ServeSettings, seated
from turngap.core.budget import DEFAULT_BUDGET_MS, NATURAL_MS
from turngap.core.errors import InputError
from turngap.core.stages import MARKS
from turngap.live.answering import Answering
from turngap.live.keeping import Conversations, Held, Keeping, zipped
from turngap.live.saving import Saved, checked_name
from turngap.live.session import LiveSession

PAGE = Path(__file__).parent / "page"
LIVE_PATH = "/live"

# Enough for a scenario's name in JSON.
BODY_BYTES = 4096
# More is read all the same, up to here: a close with unread bytes would reset the connection, and
# the answer be lost.
READ_BYTES = 64 * BODY_BYTES

_REFUSED = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>turngap</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"></head>
<body><h1>Not here, not now</h1><p>{message}.</p><p>{hint}.</p></body></html>
"""

_STATUS = {
    "live.unknown": 404,
    "live.too_big": 413,
    "live.nothing_kept": 409,
    "scenario.exists": 409,
}


class _Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=200)


class LiveServer:
    """The ASGI application of `turngap serve` and its conversations; `close` finishes them all."""

    def __init__(
        self,
        answering: Answering,
        serve: ServeSettings,
        keeping: Keeping,
        seats: Seats,
    ) -> None:
        self.answering = answering
        self._serve = serve
        self._keeping = keeping
        self._seats = seats
        self.conversations = Conversations(lambda: answering.begin(keeping))
        app = answering.app(serve, seats)
        app.router.routes.append(WebSocketRoute(LIVE_PATH, self._socket()))
        self._add_routes(app)
        app.middleware("http")(self._guarded)
        self.app: ASGIApp = SecureHeaders(app)

    async def close(self) -> None:
        await self.conversations.close()

    def _add_routes(self, app: FastAPI) -> None:
        app.add_api_route("/", self._index, include_in_schema=False)
        app.add_api_route("/api/about", self._about, include_in_schema=False)
        app.add_api_route("/api/runs/{id_}.zip", self._run_zip, include_in_schema=False)
        app.add_api_route(
            "/api/runs/{id_}/scenario", self._save, methods=["POST"], include_in_schema=False
        )
        app.add_api_route(
            "/api/runs/{id_}/scenario/{name}.zip", self._scenario_zip, include_in_schema=False
        )
        app.mount("/page", StaticFiles(directory=PAGE))
        app.add_exception_handler(InputError, _bad_input)

    async def _guarded(
        self, request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Refuse callers without access, except for the checks of its health."""
        if request.url.path in ("/healthz", "/readyz"):
            return await answer(request)
        if refusal := self._serve.access.refusal(request):
            return _refused(refusal, as_page=request.url.path == "/")
        return await answer(request)

    async def _index(self, request: Request) -> Response:
        access = self._serve.access
        offered = request.query_params.get("token", "")
        if access.token is None or not access.knows(offered):
            return FileResponse(PAGE / "index.html", media_type="text/html")
        # Remove the token from the address, where it would be seen, stored and copied.
        response = RedirectResponse("/", status_code=303)
        response.set_cookie(
            cookie_name(request),
            access.token,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
            path="/",
        )
        return response

    async def _about(self) -> dict[str, Any]:
        in_rate, out_rate = self.answering.rates
        return {
            "version": __version__,
            "agent": self.answering.name,
            "sessions": self._seats.taken,
            "max_sessions": self._seats.most,
            "in_sample_rate": in_rate,
            "out_sample_rate": out_rate,
            "kept": self._keeping.out is not None,
            "idle_s": self._serve.limits.idle_s,
            **self.answering.sayable(),
        }

    async def _run_zip(self, id_: str) -> Response:
        held = self.conversations.get(id_)
        file = await held.packed()
        return _download(file, f"{held.path.name if held.path else id_}.zip")

    async def _save(self, id_: str, request: Request) -> Response:
        held = self.conversations.get(id_)
        name = await _name_in(request)
        record = self._keeping.record
        if record is not None:
            saved = await held.saved(name, record)
        else:
            with tempfile.TemporaryDirectory(prefix="turngap-scenario-") as folder:
                saved = await held.saved(name, Path(folder))
        return JSONResponse(_saved(held, saved, record))

    async def _scenario_zip(self, id_: str, name: str) -> Response:
        held = self.conversations.get(id_)
        with tempfile.TemporaryDirectory(prefix="turngap-scenario-") as folder:
            await held.saved(name, Path(folder))
            file = await asyncio.to_thread(zipped, Path(folder))
        return _download(file, f"{name}.zip")

    def _socket(self) -> ASGIApp:
        async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
            asgi = scope, receive, send
            await seated(self._serve.access, self._seats, asgi, partial(self._talk, asgi))

        return Endpoint(endpoint)

    async def _talk(self, asgi: Asgi) -> None:
        held = self.conversations.new()
        session = LiveSession(
            held, self.answering, limits=self._serve.limits, about=self._session_facts
        )
        try:
            await session.talk(asgi)
        finally:
            if session.ended is not None:
                code, reason = session.ended
                self.conversations.end(held, reason, reason if code == CODE_FAILED else None)
            elif session.left_code == CODE_DONE:
                self.conversations.end(held, "the page ended it")
            else:
                self.conversations.end(held, "the line was lost")

    def _session_facts(self) -> dict[str, Any]:
        in_rate, out_rate = self.answering.rates
        limits = {**dataclasses.asdict(self._serve.limits), "max_sessions": self._seats.most}
        return {
            "kept": self._keeping.out is not None,
            "budget_ms": DEFAULT_BUDGET_MS,
            "natural_ms": list(NATURAL_MS),
            "stages": list(MARKS),
            "audio": {"in_rate": in_rate, "out_rate": out_rate},
            "foreign": self.answering.foreign,
            "limits": limits,
        }


async def _name_in(request: Request) -> str:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > READ_BYTES:
            break
    if len(body) > BODY_BYTES:
        raise InputError("live.too_big", f"expected at most {BODY_BYTES} bytes of JSON")
    try:
        return checked_name(_Wanted.model_validate_json(bytes(body)).name)
    except ValidationError as e:
        raise InputError(
            "live.message", f"not a name: {e.errors()[0]['msg']}", hint='send {"name": "my-talk"}'
        ) from e


def _saved(held: Held, saved: Saved, record: Path | None) -> dict[str, Any]:
    path = saved.path if record else f"{saved.name}.yaml"
    return {
        "name": saved.name,
        "turns": saved.turns,
        "left_out": [dataclasses.asdict(turn) for turn in saved.left_out],
        "zip": f"/api/runs/{held.id}/scenario/{saved.name}.zip",
        "folder": str(record) if record else None,
        "replay": f"turngap replay {shlex.quote(str(path))} {held.flags}".rstrip(),
    }


def _download(file: Path, name: str) -> FileResponse:
    remove = BackgroundTask(file.unlink, missing_ok=True)
    return FileResponse(file, media_type="application/zip", filename=name, background=remove)


async def _bad_input(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InputError)
    content = _error(error.kind, error.message, error.hint)
    return JSONResponse(content, status_code=_STATUS.get(error.kind, 422))


def _refused(refusal: Refusal, *, as_page: bool) -> Response:
    status = refusal.code - 4000
    if not as_page:
        content = _error(refusal.kind, refusal.message, refusal.hint)
        return JSONResponse(content, status_code=status)
    page = _REFUSED.format(message=escape(refusal.message), hint=escape(refusal.hint))
    return HTMLResponse(page, status_code=status)


def _error(kind: str, message: str, hint: str) -> dict[str, dict[str, str]]:
    return {"error": {"kind": kind, "message": message, "hint": hint}}


_HOST = re.compile(r"[A-Za-z0-9._\-:\[\]]{1,255}")

FIXED = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # Together with the line above, this isolates the page, so its timers are exact to 5 µs.
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "microphone=(self), autoplay=(self), camera=(), geolocation=(), "
    "display-capture=(), usb=(), payment=()",
    "x-frame-options": "DENY",
    # Otherwise a cached page could run with the scripts of a newer server.
    "cache-control": "no-cache",
}


def content_security_policy(host: str) -> str:
    """Allow only this server's scripts, styles and sockets, and nothing inline or framed."""
    # In CSP 3, 'self' covers the page's own WebSocket; Safari before 15.4 needs it spelt out.
    sockets = f" ws://{host} wss://{host}" if _HOST.fullmatch(host) else ""
    rules = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data:",
        "connect-src": f"'self'{sockets}",
        "worker-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{rule} {sources}" for rule, sources in rules.items())


class SecureHeaders:
    """An ASGI layer that puts security headers on every HTTP response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        policy = content_security_policy(HTTPConnection(scope).headers.get("host", ""))

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["content-security-policy"] = policy
                for name, value in FIXED.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, sealed)
