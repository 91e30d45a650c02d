"""The HTTP request that makes a WebRTC call: an offer is sent, and its answer comes back.

pipecat's form is JSON (`POST /api/offer`), OpenAI's the SDP itself (`POST /v1/realtime/calls`). At
a path that ends in `/start`, pipecat's cloud and runner first start a session, which takes it.
"""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlsplit, urlunsplit

from aiortc import RTCIceServer

from turngap.caller.opening import NOT_OPEN, Request, in_words
from turngap.caller.rtc.peer import NO_SDP, RtcPeer, offering
from turngap.caller.starting import MOST_ANSWER_BYTES, ask, takes_sdp
from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap.core.untrusted import MOST_SENTENCE, is_loopback, parse_json, printable

OFFER_PATH, START_PATH = "/api/offer", "/start"
# Where pipecat's runner shows the page of its browser client.
_PAGES = ("", "/", "/client", "/client/")
# Statuses of a server that takes no offers at this path, and of one that lets not everyone in.
_NO_OFFERS = (404, 405, 501)
_NOT_LET_IN = (401, 403)


@asynccontextmanager
async def calling(request: Request, settings: Any, clock: Clock) -> AsyncIterator[RtcPeer]:
    """Make a call, and hang up in the end; `settings` are those of the dialect.

    Raises:
        AgentError: nothing listens there, it takes no calls of this kind, or cannot be reached.
    """
    async with offering(
        partial(exchanged, request, getattr(settings, "model", None)),
        clock,
        label="oai-events" if takes_sdp(request.url) else "chat",
        servers=servers_of(settings),
        loopback=is_loopback(urlsplit(request.url).hostname or ""),
        timeout_s=request.timeout_s,
        line=request.line,
        call=request.call,
    ) as peer:
        yield peer


def servers_of(settings: Any) -> list[RTCIceServer]:
    """Return the STUN and TURN servers of the settings; none by default."""
    name, password = settings.turn_username or None, settings.turn_password or None
    stun = [RTCIceServer(settings.stun)] if settings.stun else []
    return [*stun, *([RTCIceServer(settings.turn, name, password)] if settings.turn else [])]


def offer_url(url: str) -> str:
    """Return the URL to which an offer is sent."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=OFFER_PATH)) if parts.path in _PAGES else url


async def exchanged(request: Request, model: str | None, offer: str) -> str:
    """Send an offer (SDP) and return the answer; `model` is for OpenAI's form.

    Raises:
        AgentError: nothing listens there, or what listens takes no offers, or not this one.
    """
    url = offer_url(request.url)
    if urlsplit(url).path.endswith(START_PATH):
        url = await _started(request, url)
    form, data = _body(url, model, offer)
    answer = await _post(request, url, form, data)
    return answer if takes_sdp(url) else _text_in(request, answer, "sdp")


async def _started(request: Request, url: str) -> str:
    """Start a session, as pipecat's cloud and its runner do, and return where it takes offers."""
    form, data = "application/json", json.dumps({"transport": "webrtc"}).encode()
    session = _text_in(request, await _post(request, url, form, data), "sessionId")
    parts = urlsplit(url)
    path = f"{parts.path.removesuffix(START_PATH)}/sessions/{quote(session, safe='')}{OFFER_PATH}"
    return urlunsplit(parts._replace(path=path))


async def _post(request: Request, url: str, form: str, data: bytes) -> str:
    headers = {"Content-Type": form, **request.headers}
    with in_words(request):
        try:
            asked = ("POST", url, data, headers, request.timeout_s)
            return (await asyncio.to_thread(ask, *asked)).decode(errors="replace")
        except HTTPError as e:
            with e:
                body = e.read(MOST_ANSWER_BYTES).decode(errors="replace")
            raise _refused(request, url, e.code, body) from e
        except URLError as e:  # of the connection, with the cause in it
            raise e.reason if isinstance(e.reason, OSError) else e from None
        except TimeoutError as e:
            raise AgentError(
                NOT_OPEN,
                f"{request.shown} took the offer, and did not answer it within "
                f"{request.timeout_s:g} s",
                hint="it may still be starting: try again, or wait longer with "
                "--dialect webrtc,open_s=60",
            ) from e
        except HTTPException as e:
            raise _no_webrtc(request, f"it is no HTTP server: {printable(str(e), 80)}") from e


def _text_in(request: Request, answer: str, name: str) -> str:
    """Return a text of an answer in JSON."""
    try:
        told: Any = parse_json(answer)
        return str(told[name])
    except (ValueError, KeyError, TypeError) as e:
        why = f"not with the `{name}` of a call: {printable(answer, 80)!r}"
        raise _no_webrtc(request, why) from e


def _body(url: str, model: str | None, offer: str) -> tuple[str, bytes]:
    """Return the content type and the body that carry an offer."""
    if not takes_sdp(url):
        return "application/json", json.dumps({"sdp": offer, "type": "offer"}).encode()
    if model is None:
        return "application/sdp", offer.encode()
    # With an API key, and not a token made for one session, the model must be named here.
    mark = secrets.token_hex(16)
    parts = {"sdp": offer, "session": json.dumps({"type": "realtime", "model": model})}
    lines = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in parts.items()
    ]
    return f"multipart/form-data; boundary={mark}", f"{''.join(lines)}--{mark}--\r\n".encode()


def _no_webrtc(request: Request, why: str, kind: str = NO_SDP) -> AgentError:
    return AgentError(
        kind,
        f"{request.shown} answers, but {why}",
        hint="is this the agent's port and path? A call over WebRTC is offered at /api/offer "
        "(pipecat) or /v1/realtime/calls (OpenAI); an agent behind a WebSocket has a ws:// URL",
    )


def _refused(request: Request, url: str, status: int, body: str) -> AgentError:
    """Explain an HTTP status that came instead of an answer."""
    path, said = urlsplit(url).path, printable(_detail(body), MOST_SENTENCE)
    told = f"HTTP status {status}{f' ({said})' if said else ''}"
    if status in _NOT_LET_IN:
        key = (
            f"is {request.key_env} set, and to a valid key?"
            if request.key_env
            else "give the key as a header, from the environment: "
            "--header 'Authorization: Bearer ${API_KEY}'"
        )
        return AgentError("agent.key", f"{request.shown} wants a key: {told}", hint=key)
    if status in _NO_OFFERS:
        return _no_webrtc(request, f"takes no WebRTC calls at {path}: {told}", "agent.path")
    if 300 <= status < 400:
        return AgentError(
            "agent.redirected",
            f"{request.shown} points elsewhere, and redirects are not followed",
            hint="give the URL that it points to, if you trust it with your keys",
        )
    return AgentError(
        "agent.refused", f"{request.shown} refused the call: {told}", hint="its log may say why"
    )


def _detail(body: str) -> str:
    """Return what a server says of an error, out of FastAPI's or OpenAI's form of it."""
    try:
        told: Any = parse_json(body)
        error = told.get("detail") or told.get("error") or body
        return str(error.get("message") or error) if isinstance(error, Mapping) else str(error)
    except (ValueError, AttributeError):
        return body
