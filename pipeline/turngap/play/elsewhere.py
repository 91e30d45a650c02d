"""Whether a process that listens at another address than was asked for takes calls there."""

from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from turngap.play.listeners import Listener, shown_address

# Where bots serve, in the order of the tries: FastAPI's examples, the runner, websockets'.
USUAL_PATHS = ("/ws", "/ws-client", "/")
TIMEOUT_S = 1.0

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


async def taking_calls(found: Sequence[Listener], url: str) -> str | None:
    """Return the URL at which one of these opens a WebSocket; None if none does.

    Each is tried with the path of `url`, then with the usual ones. What is opened is closed again.
    """
    asked = urlsplit(url)
    for listener in found:
        host = _EVERY_ADDRESS.get(listener.host, listener.host)
        for path in dict.fromkeys((asked.path or "/", *USUAL_PATHS)):
            at = shown_address(host, listener.port)
            tried = urlunsplit(("ws", at, path, asked.query, ""))
            if await _opens(tried):
                return tried
    return None


async def _opens(url: str) -> bool:
    with suppress(OSError, EOFError, TimeoutError, WebSocketException):
        async with connect(url, proxy=None, open_timeout=TIMEOUT_S, close_timeout=TIMEOUT_S):
            return True
    return False
