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

import numpy as np
from fastapi import Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse
from loguru import logger
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.background import BackgroundTask
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from turngap.agent.access import (
    CODE_DONE,
    CODE_FAILED,
    TEXT_CHARS,
    Limits,
    Seats,
    cookie_name,
)
from turngap.agent.guard import Asgi, Guard
from turngap.agent.server import Endpoint, ServeSettings, seated
from turngap.caller import said
from turngap.caller.dialects.pipecat import PipecatSession, payload_of
from turngap.caller.dialects.rtvi import rtvi
from turngap.core import __version__
from turngap.core.audio import Pcm
from turngap.core.budget import DEFAULT_BUDGET_MS, NATURAL_MS
from turngap.core.clock import NS_PER_S, ms_to_ns
from turngap.core.errors import InputError, TurngapError
from turngap.core.stages import MARKS
from turngap.core.wire import SAY, Frame, message_frame, refusal
from turngap.live import wire
from turngap.live.answering import Answering
from turngap.live.conversation import SETTLE_MS
from turngap.live.keeping import Conversations, Held, Keeping, zipped
from turngap.live.saving import checked_name

# Seconds of turns that a page may report in a second: its clock and the server's may differ.
TURNS_RATE = 1.25


class LiveSession(Guard):
    """The socket of a live conversation, which records both sides while the agent talks.

    It copies messages where they enter and leave the server. So the recording has the audio of the
    line, and the agent's pipeline is the same as for any other caller.

    Args:
        answering: the agent that answers the page.
        about: returns the facts about the agent that the page gets when it is ready.
    """

    def __init__(
        self,
        held: Held,
        answering: Answering,
        *,
        limits: Limits,
        about: Callable[[], dict[str, Any]],
    ) -> None:
        self._connection = held.conversation.connection
        clock = answering.clock
        super().__init__(limits, clock, self._connection.in_rate)
        self._answering = answering
        # Reads what the agent says, as a caller does: the same text may come by several names.
        self._read = PipecatSession()
        self._held = held
        self._about = about
        self._turns_due_ns = 0.0  # when the turns that were reported would be over
        self._noticed = False
        self._in_order = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken = {wire.TURN: self._turn, wire.PLAYED: self._played}
        self._taken[wire.CALIBRATED] = self._calibrated

    async def talk(self, asgi: Asgi) -> None:
        async def converse(socket: WebSocket) -> None:
            try:
                await self._answering.converse(socket, self._held)
            finally:
                await asyncio.gather(*self._tasks, return_exceptions=True)

        await self.run(converse, asgi)

    async def failed(self, error: BaseException) -> None:
        if not isinstance(error, TurngapError):
            await super().failed(error)
            return
        # A close has no room for all of it.
        await self._tell({"turngap": "failed", "message": error.message, "hint": error.hint})
        await self.end(CODE_FAILED, error.message)

    def heard(self, pcm: Pcm) -> None:
        self._connection.hear(pcm)

    def asked(self, kind: str, data: Any) -> bool:
        if kind == SAY and isinstance(data, dict):
            text, turn = data.get("text"), data.get("turn")
            if isinstance(text, str) and isinstance(turn, int):
                self._held.conversation.typed(turn, text[:TEXT_CHARS])
                self.active()
        if kind not in self._taken:
            return False
        try:
            self._taken[kind](data)
        except TurngapError as e:
            self._in_background(self._tell(refusal(kind, e)))
        return kind not in self._answering.seen

    def silence_s(self) -> float:
        return self.limits.vanished_s if self.spoken_to else self.limits.request_s

    def active(self) -> None:
        super().active()
        self._noticed = False

    def _turn(self, data: Any) -> None:
        report = wire.parsed(wire.TurnReport, data)
        now_ns = self.clock.now_ns()
        length_ns = max(wire.LEAST_TURN_S * NS_PER_S, report.ended_ns - report.start_ns)
        due_ns = max(self._turns_due_ns, now_ns) + length_ns / TURNS_RATE
        if due_ns > now_ns + wire.MOST_TURN_NS:
            raise InputError("live.turn_length", "the turns are longer than the conversation")
        self._turns_due_ns = due_ns
        self.active()
        report = self._widened(report)
        wait_ms = SETTLE_MS if report.ended == "interrupted" else 0.0
        self._in_background(self._report(report, now_ns + ms_to_ns(wait_ms)))

    def _widened(self, report: wire.TurnReport) -> wire.TurnReport:
        """Return a report with the additions of the relay to a foreign agent, if there is one."""
        held, offset = self._held, report.offset
        if (relay_ms := held.delays.ms) is None:
            return report
        bound = offset.model_copy(update={"bound_ns": offset.bound_ns + held.line_bound_ns})
        view = report.view | {"relay_ms": relay_ms}
        return report.model_copy(update={"offset": bound, "view": view})

    def _played(self, data: Any) -> None:
        self._held.conversation.sounded(wire.parsed(wire.Played, data))

    def _calibrated(self, data: Any) -> None:
        message = wire.parsed(wire.Calibrated, data)
        self._held.settings["page_loopback"] = message.model_dump()

    async def _report(self, report: wire.TurnReport, due_ns: int) -> None:
        """Store a reported turn, after the turns before it and once the agent's marks are in."""
        async with self._in_order:
            await self.clock.sleep_until_ns(due_ns)
            try:
                turn = self._held.conversation.report(report)
                record = await self._held.keep(turn, report.offset.record())
                path, figures = self._held.path, await self._held.figures()
                run = path.name if path else ""
                relay_ms = report.view.get("relay_ms")
                await self._tell(wire.kept_message(record, run, figures, relay_ms))
            except InputError as e:
                logger.warning(e.message)
                await self._tell(refusal(wire.TURN, e))

    async def sent(self, data: bytes) -> None:
        frame = Frame.FromString(data)
        if frame.WhichOneof("frame") == "audio":
            pcm: Pcm = np.frombuffer(frame.audio.audio, dtype="<i2")
            self._connection.send(pcm, frame.audio.sample_rate)
            return
        if frame.WhichOneof("frame") != "message":
            return
        own = payload_of(frame).get("data")
        for fact in self._read.receive_data(data):
            match fact:
                case said.Ready():
                    await self._tell({"turngap": "session", "id": self._held.id, **self._about()})
                case said.Fault() | said.Transcript() | said.ReplyText() | said.NoReply():
                    self._connection.note(self.clock.now_ns(), fact)
                case said.Marks(turn):
                    if isinstance(own, dict) and isinstance(own.get("llm"), str):
                        self._connection.llm_of[turn] = own["llm"]
                    self._connection.note(self.clock.now_ns(), fact)
                case _:
                    pass
        self._switched(own)

    def _switched(self, data: Any) -> None:
        if not isinstance(data, dict) or data.get("turngap") != "llm":
            return
        at_ns = self.clock.now_ns()
        if data.get("switched"):
            self.active()
            at_ns = int(data["switched"]["at_ns"])
            self._connection.switched_ns.append(at_ns)
        self._connection.llms.append((at_ns, data["current"]))

    async def notice(self, in_s: float) -> None:
        if not self._noticed:
            self._noticed = True
            message = f"The server hangs up in {in_s:.0f} s unless you speak"
            notice = {"kind": "idle_soon", "in_s": round(in_s), "message": message}
            await self._tell({"turngap": "notice", **notice})

    async def _tell(self, data: dict[str, Any]) -> None:
        if self.ended is None:
            await self.tell(message_frame(rtvi("server-message", data)))

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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
        app.router.routes.append(WebSocketRoute(LIVE_PATH, Endpoint(self._socket)))
        for path, answer, method in (
            ("/", self._index, "GET"),
            ("/api/about", self._about, "GET"),
            ("/api/runs/{id_}.zip", self._run_zip, "GET"),
            ("/api/runs/{id_}/scenario", self._save, "POST"),
            ("/api/runs/{id_}/scenario/{name}.zip", self._scenario_zip, "GET"),
        ):
            app.add_api_route(path, answer, methods=[method], include_in_schema=False)
        app.mount("/page", StaticFiles(directory=PAGE))
        app.add_exception_handler(InputError, _bad_input)
        app.middleware("http")(self._guarded)
        self.app: ASGIApp = SecureHeaders(app)

    async def close(self) -> None:
        await self.conversations.close()

    async def _guarded(
        self, request: Request, answer: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        """Refuse callers without access, except for health checks."""
        if request.url.path in ("/healthz", "/readyz"):
            return await answer(request)
        if refusal := self._serve.access.refusal(request):
            status = refusal.code - 4000
            if request.url.path != "/":
                content = _error(refusal.kind, refusal.message, refusal.hint)
                return JSONResponse(content, status_code=status)
            page = _REFUSED.format(message=escape(refusal.message), hint=escape(refusal.hint))
            return HTMLResponse(page, status_code=status)
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
        path = saved.path if record else f"{saved.name}.yaml"
        return JSONResponse(
            {
                "name": saved.name,
                "turns": saved.turns,
                "left_out": [dataclasses.asdict(turn) for turn in saved.left_out],
                "zip": f"/api/runs/{held.id}/scenario/{saved.name}.zip",
                "folder": str(record) if record else None,
                "replay": f"turngap replay {shlex.quote(str(path))} {held.flags}".rstrip(),
            }
        )

    async def _scenario_zip(self, id_: str, name: str) -> Response:
        held = self.conversations.get(id_)
        with tempfile.TemporaryDirectory(prefix="turngap-scenario-") as folder:
            await held.saved(name, Path(folder))
            file = await asyncio.to_thread(zipped, Path(folder))
        return _download(file, f"{name}.zip")

    async def _socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        asgi = scope, receive, send
        await seated(self._serve.access, self._seats, asgi, partial(self._talk, asgi))

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


def _download(file: Path, name: str) -> FileResponse:
    remove = BackgroundTask(file.unlink, missing_ok=True)
    return FileResponse(file, media_type="application/zip", filename=name, background=remove)


async def _bad_input(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, InputError)
    content = _error(error.kind, error.message, error.hint)
    return JSONResponse(content, status_code=_STATUS.get(error.kind, 422))


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
