"""What every answer over HTTP says to the browser: load nothing from elsewhere, tell nobody."""

import re

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HOST = re.compile(r"[A-Za-z0-9._\-:\[\]]{1,255}")

FIXED = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # With the one above: the page is isolated, and its timers are exact to 5 microseconds.
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "microphone=(self), autoplay=(self), camera=(), geolocation=(), "
    "display-capture=(), usb=(), payment=()",
    "x-frame-options": "DENY",
    # A page of an older server with the scripts of a newer one is nobody's bug to find.
    "cache-control": "no-cache",
}


def content_security_policy(host: str) -> str:
    """Scripts, styles and sockets of this server only; nothing inline, nothing framed."""
    # 'self' covers the page's own WebSocket by CSP 3; Safari before 15.4 wants it spelt out.
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
    """An ASGI layer that puts them on every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the layer below."""
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
