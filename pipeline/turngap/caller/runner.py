"""Find out why the bot of a pipecat development runner cannot be called.

The runner serves WebRTC to browsers, telephony at `/ws`, and protobuf at `/ws-client` to bots that
have a `websocket` entry. A bot that lacks this entry, or its serializer, does not report that.
"""

import asyncio
from http.client import HTTPException
from urllib.parse import urlsplit, urlunsplit

from websockets.exceptions import ConnectionClosed

from turngap.caller.line import FIRST_OWN_CODE, LINE_LOST, NOT_READY
from turngap.caller.starting import ask
from turngap.core.errors import AgentError
from turngap.core.untrusted import parse_json

RUNNER_PATH = "/ws-client"
NO_TRANSPORT = "agent.no_transport"
STATUS_TIMEOUT_S = 2.0
# An HTTP status in place of a WebSocket: 403 and 404.
REFUSED = ("agent.key", "agent.path")

PASTE = """put this into the bot's file, the second part into its `transport_params`:

    from pipecat.serializers.protobuf import ProtobufFrameSerializer
    from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams

    "websocket": lambda: FastAPIWebsocketParams(
        audio_in_enabled=True, audio_out_enabled=True, serializer=ProtobufFrameSerializer()
    ),
"""


async def runner_error(url: str, error: AgentError) -> AgentError | None:
    """Return why a line to `url` could not be opened, if a runner is there; else None.

    Only a server that answers HTTP is asked for its status.
    """
    parts = urlsplit(url)
    there = urlunsplit(parts._replace(path=RUNNER_PATH, query=""))
    silent = parts.path.startswith(RUNNER_PATH) and error.kind in (LINE_LOST, NOT_READY)
    unsaid = error.kind in REFUSED or (silent and not _has_said_why(error))
    if not unsaid or not await is_runner(url):
        return None
    runner = f"pipecat's development runner answers at {parts.netloc.rpartition('@')[2]}"
    if error.kind == LINE_LOST:
        seen = "its bot ended the call before it was ready. So does one that has no `websocket` "
        seen += "entry in its `transport_params`; its log then says: Missing transport params for "
        return AgentError(NO_TRANSPORT, f"{runner}, and {seen}'websocket'", hint=PASTE)
    if error.kind == NOT_READY:
        seen = "its bot took the call and says nothing. So does one whose `websocket` entry in its "
        seen += "`transport_params` has no serializer"
        rtvi = "\n  if it is there, and RTVI is off: --dialect pipecat,rtvi=false"
        return AgentError(NO_TRANSPORT, f"{runner}, and {seen}", hint=f"{PASTE}{rtvi}")
    if parts.path.startswith("/ws"):
        seen = "lets in only calls with a token of its own"
        hint = f"get one for each call: --agent 'POST {_page(url, '/start')}'"
    else:
        seen = f"serves no WebSocket at {parts.path or '/'}: protobuf is at {RUNNER_PATH}"
        hint = f"give that URL: --agent {there}\n  and if the bot has no `websocket` entry, {PASTE}"
    return AgentError(NO_TRANSPORT, f"{runner}, and {seen}", hint=hint)


def _has_said_why(error: AgentError) -> bool:
    """Return whether the server closed with a reason, or with a code of its own."""
    frame = error.__cause__.rcvd if isinstance(error.__cause__, ConnectionClosed) else None
    return frame is not None and bool(frame.reason or frame.code >= FIRST_OWN_CODE)


def _page(url: str, path: str) -> str:
    """Return the HTTP URL of the server at a WebSocket's URL."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, path, "", ""))


async def is_runner(url: str) -> bool:
    """Return whether the server is a runner, judging by its status page."""
    asked = ("GET", _page(url, "/status"), None, {}, STATUS_TIMEOUT_S)
    try:
        told = parse_json(await asyncio.to_thread(ask, *asked))
    except (OSError, HTTPException, ValueError):
        return False
    return isinstance(told, dict) and isinstance(told.get("transports"), list)
