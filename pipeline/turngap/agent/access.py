"""Who may talk to a served agent. No I/O: a request's head goes in, a refusal or None comes out.

On loopback anybody on this machine may, but no web page from elsewhere: the Origin that browsers
send must be that of our own page, and the Host must name this machine (otherwise a hostile name
that resolves to 127.0.0.1 would pass as ours). On other addresses a token is needed, too.
"""

import hmac
import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Self
from urllib.parse import parse_qs, urlsplit

from starlette.requests import HTTPConnection

from turngap.core.errors import InputError

# Application codes of RFC 6455, after the HTTP status that says the same.
CODE_TOKEN = 4401
CODE_ORIGIN = 4403

# 128 bits: at one guess a nanosecond, finding it takes longer than the age of the universe.
TOKEN_BYTES = 16
TOKEN_LENGTHS = range(16, 257)


@dataclass(frozen=True, slots=True)
class Refusal:
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
        if token is not None and (len(token) not in TOKEN_LENGTHS or not _is_plain(token)):
            raise InputError(
                "serve.token",
                f"the token has {len(token)} characters; expected {TOKEN_LENGTHS.start} to "
                f"{TOKEN_LENGTHS.stop - 1} letters, digits, '-' or '_'",
                hint="leave it out, and turngap makes and prints one",
            )
        loopback = is_loopback(host)
        if token is None and not loopback:
            token = secrets.token_urlsafe(TOKEN_BYTES)
        return cls(loopback, token, frozenset(map(_origin, origins)))

    def refusal(self, request: HTTPConnection) -> Refusal | None:
        """Return why this request is refused, or None if it may pass."""
        host = request.headers.get("host", "")
        if self.loopback and not (is_loopback(_name(host)) or self._is_host_of_an_origin(host)):
            return Refusal(
                403,
                CODE_ORIGIN,
                "access.host",
                f"this agent listens on loopback and was asked for as {_shown(host)}",
                "open it as 127.0.0.1 or localhost; behind a proxy, name its origin with --origin",
            )
        origin = request.headers.get("origin")
        if origin is not None and not self._is_ours(origin, host):
            return Refusal(
                403,
                CODE_ORIGIN,
                "access.origin",
                f"a page from {_shown(origin)} may not talk to this agent",
                "open the page that the agent serves, or allow that one with --origin",
            )
        if self.token is None or any(map(self.knows, _offered(request))):
            return None
        return Refusal(
            401,
            CODE_TOKEN,
            "access.token",
            "this agent needs its token",
            "open the URL that `turngap serve` printed, with ?token=… in it",
        )

    def knows(self, offered: str) -> bool:
        """Return whether that is the token, compared in constant time."""
        return self.token is not None and hmac.compare_digest(offered.encode(), self.token.encode())

    def _is_ours(self, origin: str, host: str) -> bool:
        if origin.lower() in self.origins:
            return True
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() != ""

    def _is_host_of_an_origin(self, host: str) -> bool:
        return any(urlsplit(origin).netloc == host.lower() for origin in self.origins)


def cookie_name(request: HTTPConnection) -> str:
    """Return the name of the token's cookie, by port, as browsers keep cookies by host only."""
    return f"turngap-{request.url.port or 0}"


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is this machine's loopback."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _offered(request: HTTPConnection) -> list[str]:
    """Return a request's tokens: from a cookie (the page), a header or the URL."""
    found: list[str] = []
    try:
        cookies = SimpleCookie(request.headers.get("cookie", ""))
        if (morsel := cookies.get(cookie_name(request))) is not None:
            found.append(morsel.value)
    except CookieError:
        pass
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found.append(bearer.strip())
    return found + parse_qs(request.url.query).get("token", [])


def _name(host: str) -> str:
    """Return the name or address in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        raise InputError(
            "serve.origin",
            f"--origin {text!r} is not an origin",
            hint="expected scheme and host, such as https://talk.example.org",
        )
    return f"{parts.scheme}://{parts.netloc}".lower()


def _is_plain(token: str) -> bool:
    return token.isascii() and all(c.isalnum() or c in "-_" for c in token)


def _shown(text: str) -> str:
    return repr(text[:80]) if text else "nothing"
