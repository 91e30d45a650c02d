"""Who may talk to a served agent. No I/O: a request's head goes in, a refusal or None comes out.

On loopback anybody on this machine may, but no web page from elsewhere: the Origin that browsers
send must be that of our own page, and the Host must name this machine (otherwise a hostile name
that resolves to 127.0.0.1 would pass as ours). On other addresses a token is needed, too.
"""

import hmac
import re
import secrets
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from turngap.agent.limits import CODE_ORIGIN, CODE_TOKEN
from turngap.core.errors import InputError
from turngap.core.untrusted import is_loopback

# 128 bits: at one guess a nanosecond, finding it takes longer than the age of the universe.
TOKEN_BYTES = 16


class Refusal(NamedTuple):
    """Why a request is not served: HTTP status, WebSocket close code, and words."""

    status: int
    code: int
    kind: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Access:
    """What a request must show.

    Attributes:
        loopback: the server can only be reached from its own machine.
        token: what a caller must know, if anything.
        origins: allowed origins (`https://talk.example.org`) besides the server's own, as behind a
            proxy.
    """

    loopback: bool = True
    token: str | None = field(default=None, repr=False)
    origins: frozenset[str] = frozenset()

    @classmethod
    def for_host(cls, host: str, token: str | None = None, origins: tuple[str, ...] = ()) -> Self:
        """Return the access to a server bound to `host`, with a new token if it needs one.

        Raises:
            InputError: the token is too short to be safe, or an origin is not one.
        """
        if token is not None and not re.fullmatch(r"[A-Za-z0-9_-]{16,256}", token):
            raise InputError(
                "serve.token",
                f"the token has {len(token)} characters; expected 16 to 256 letters, digits, '-' "
                "or '_'",
                hint="leave it out, and turngap makes and prints one",
            )
        loopback = is_loopback(host)
        if token is None and not loopback:
            token = secrets.token_urlsafe(TOKEN_BYTES)
        return cls(loopback, token, frozenset(map(_origin, origins)))

    def refusal(self, request: HTTPConnection) -> Refusal | None:
        """Return why this request is refused, or None if it may pass."""
        host = request.headers.get("host", "").lower()
        origin = request.headers.get("origin", f"http://{host}").lower()
        if self.loopback and not (_is_here(host) or self._is_allowed(host)):
            message = f"this agent listens on loopback and was asked for as {host[:80]!r}"
            hint = "open it as 127.0.0.1 or localhost; behind a proxy, name its origin: --origin"
            return Refusal(403, CODE_ORIGIN, "access.host", message, hint)
        if origin not in {*self.origins, f"http://{host}", f"https://{host}"}:
            message = f"a page from {origin[:80]!r} may not talk to this agent"
            hint = "open the page that the agent serves, or allow that one with --origin"
            return Refusal(403, CODE_ORIGIN, "access.origin", message, hint)
        if self.token is not None and not any(map(self.knows, _offered(request))):
            hint = "open the URL that `turngap serve` printed, with ?token=… in it"
            return Refusal(401, CODE_TOKEN, "access.token", "this agent needs its token", hint)
        return None

    def _is_allowed(self, host: str) -> bool:
        return not self.origins.isdisjoint({f"http://{host}", f"https://{host}"})

    def knows(self, offered: str) -> bool:
        """Return whether that is the token, compared in constant time."""
        return self.token is not None and hmac.compare_digest(offered.encode(), self.token.encode())


def cookie_name(request: HTTPConnection) -> str:
    """Return the name of the token's cookie, by port, as browsers keep cookies by host only."""
    return f"turngap-{(request.scope.get('server') or ('', 0))[1]}"


def _offered(request: HTTPConnection) -> list[str]:
    """Return a request's tokens: from a cookie (the page), a header or the URL."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    found = [bearer.strip()] if scheme.lower() == "bearer" else []
    found += filter(None, [request.cookies.get(cookie_name(request))])
    return found + request.query_params.getlist("token")


def _is_here(host: str) -> bool:
    """Return whether a Host header names this machine's loopback."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _origin(text: str) -> str:
    if (found := re.fullmatch(r"(https?://[^/?#\s]+)/*", text, re.IGNORECASE)) is None:
        raise InputError(
            "serve.origin",
            f"--origin {text!r} is not an origin",
            hint="expected scheme and host, such as https://talk.example.org",
        )
    return found[1].lower()
