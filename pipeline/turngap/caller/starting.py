"""Ask a server that starts calls for the URL of one: `POST http://HOST/start`.

pipecat's runner and hosted services give out a URL or a token for each call in answer to an HTTP
request.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from turngap.core.errors import NOTHING_THERE, AgentError, InputError
from turngap.core.secrets import remember, remember_arguments, text_without_secrets
from turngap.core.untrusted import MOST_SENTENCE, is_loopback, parse_json, printable

MOST_ANSWER_BYTES = 1_000_000
# Values of an answer that are looked at for a URL.
MOST_VALUES = 1_000

_START = re.compile(r"(GET|POST)\s+http(s?://\S+)(?:\s+(.+))?", re.DOTALL)
_PHONES = ("twilio", "telnyx", "plivo", "exotel")


def is_start(agent: str) -> bool:
    """Return whether an agent is given as a request for the URL of each call."""
    return _START.fullmatch(agent) is not None


def body_of(agent: str) -> str:
    """Return the JSON in `POST URL JSON`; empty if there is none."""
    found = _START.fullmatch(agent)
    return (found and found[3]) or ""


def place_of(agent: str) -> str:
    """Return the `http(s)://` URL of an agent, or in `POST URL JSON`, as a WebSocket's.

    Any other agent is returned as it is.
    """
    found = _START.fullmatch(agent)
    url = agent if found is None else f"http{found[2]}"
    return f"ws{url[4:]}" if url[:7].lower() == "http://" or url[:8].lower() == "https://" else url


def takes_sdp(url: str) -> bool:
    """Return whether a URL takes offers of WebRTC calls in OpenAI's form: the SDP alone."""
    return urlsplit(url).path.rstrip("/").endswith("/realtime/calls")


async def start_call(
    agent: str, dialect: str, headers: Mapping[str, str], timeout_s: float
) -> tuple[str, dict[str, str]]:
    """Ask for a call; return the URL to open and the headers that open it.

    `headers` go with the request; the call gets them too if it is on the same host.

    Raises:
        AgentError: the server does not answer, or gives no URL.
    """
    found = _START.fullmatch(agent)
    assert found is not None
    method, asked, body = found[1], f"http{found[2]}", found[3]
    where = text_without_secrets(asked).partition("?")[0]
    if method == "POST":
        body = body or json.dumps({"transport": dialect if dialect in _PHONES else "websocket"})
        headers = {"Content-Type": "application/json", **headers}
    try:
        data = body.encode() if body else None
        answer = await asyncio.to_thread(ask, method, asked, data, headers, timeout_s)
        told = parse_json(answer, MOST_ANSWER_BYTES)
    except HTTPError as e:
        said = printable(e.read(MOST_ANSWER_BYTES).decode(errors="replace"), MOST_SENTENCE)
        raise AgentError(
            "agent.start", f"{where} starts no call: HTTP status {e.code} {said}".strip()
        ) from e
    except (OSError, HTTPException) as e:
        why = printable(str(getattr(e, "reason", e)), MOST_SENTENCE)
        raise AgentError("agent.unreachable", f"{NOTHING_THERE} at {where}: {why}") from e
    except ValueError as e:
        raise AgentError("agent.start", f"{where} starts no call: its answer is not JSON") from e
    url = next((text for text in _texts(told) if text.startswith(("ws://", "wss://"))), None)
    if url is None:
        names = ", ".join(map(printable, told)) if isinstance(told, dict) else "no object"
        hint = 'give the JSON to send: --agent \'POST http://HOST/start {"KEY": "VALUE"}\''
        if isinstance(told, dict) and "sessionId" in told:  # pipecat's, in its answer for WebRTC
            hint = f"if its calls are over WebRTC: --agent {where}\n  or {hint}"
        why = f"{where} answers without a ws:// URL (it has {names or 'nothing'})"
        raise AgentError("agent.start", why, hint=hint)
    return _opening(url, told, asked, headers)


def _opening(
    url: str, told: Any, asked: str, headers: Mapping[str, str]
) -> tuple[str, dict[str, str]]:
    """Return the URL and the headers of the call; its credentials are never shown."""
    here, there = urlsplit(asked), urlsplit(url)
    if here.scheme == "http" and (here.port, there.scheme) == (there.port, "wss") and here.port:
        url = f"ws{url[3:]}"  # the port that has just answered without TLS
    given = {k: v for k, v in headers.items() if k.lower() != "content-type"}
    opens = given if here.hostname == there.hostname else {}
    token = told.get("token") if isinstance(told, dict) else None
    if isinstance(token, str) and token:
        remember(token)
        if token not in url:
            opens = {k: v for k, v in opens.items() if k.lower() != "authorization"}
            opens["Authorization"] = f"Bearer {token}"
    remember_arguments((url,))
    return url, opens


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts of a JSON value, the outermost first."""
    waiting = [value]
    for looked_at, each in enumerate(waiting):
        if looked_at == MOST_VALUES:
            return
        if isinstance(each, str):
            yield each
        waiting += (
            each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        )


def require_json(body: str) -> str:
    """Return the JSON to send after checking it.

    Raises:
        InputError: the body is not JSON.
    """
    try:
        json.loads(body)
    except ValueError as e:
        raise InputError(
            "agent.start",
            f"the body that starts a call is not JSON: {e}",
            hint='for example: --agent \'POST http://HOST/start {"transport": "websocket"}\'',
        ) from e
    return body


class _Stays(HTTPRedirectHandler):
    """Handler that follows no redirect: keys would go to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def ask(
    method: str, url: str, data: bytes | None, headers: Mapping[str, str], timeout_s: float
) -> bytes:
    """Ask an HTTP server and return its answer; this blocks.

    Raises:
        HTTPError: the answer's status is not 2xx.
        OSError, HTTPException: nothing listens there, or no HTTP server does.
    """
    direct = [ProxyHandler({})] if is_loopback(urlsplit(url).hostname or "") else []
    request = Request(url, data, dict(headers), method=method)
    with build_opener(_Stays, *direct).open(request, timeout=timeout_s) as answer:
        return answer.read(MOST_ANSWER_BYTES)
