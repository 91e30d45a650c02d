"""Who may talk to a served agent. No I/O: what a request's head says in, a refusal or None out.

On loopback anybody on this machine may, but no web page from elsewhere: the Origin that browsers
send must be our own page's, and the Host must name this machine (or a hostile name that resolves to
127.0.0.1 would count as our own). Bound elsewhere, a token is needed too.
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

# 128 bits: what a guess a nanosecond does not find in the age of the universe.
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
        loopback: the server can be reached from its own machine only.
        token: what a caller must know; None: nothing.
        origins: origins (`https://talk.example.org`) beside the server's own, as behind a proxy.
    """

    loopback: bool = True
    token: str | None = field(default=None, repr=False)
    origins: frozenset[str] = frozenset()

    @classmethod
    def for_host(cls, host: str, token: str | None = None, origins: tuple[str, ...] = ()) -> Self:
        """Access to a server bound to `host`; a token is made where one is needed and not given.

        Raises:
            InputError: the token is too short to be safe, or an origin is none.
        """
        if token is not None and (len(token) not in TOKEN_LENGTHS or not _is_plain(token)):
            raise InputError(
                "serve.token",
                f"the token has {len(token)} characters; expected {TOKEN_LENGTHS.start} to "
                f"{TOKEN_LENGTHS.stop - 1} letters, digits, '-' or '_'",
                hint="leave it out, and one is made and printed",
            )
        loopback = is_loopback(host)
        if token is None and not loopback:
            token = secrets.token_urlsafe(TOKEN_BYTES)
        return cls(loopback, token, frozenset(map(_origin, origins)))

    def refusal(self, request: HTTPConnection) -> Refusal | None:
        """Why this request is refused; None where it may pass."""
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
        """Whether that is the token, compared in constant time."""
        return self.token is not None and hmac.compare_digest(offered.encode(), self.token.encode())

    def _is_ours(self, origin: str, host: str) -> bool:
        if origin.lower() in self.origins:
            return True
        parts = urlsplit(origin)
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower() != ""

    def _is_host_of_an_origin(self, host: str) -> bool:
        return any(urlsplit(origin).netloc == host.lower() for origin in self.origins)


def cookie_name(request: HTTPConnection) -> str:
    """The token's cookie; browsers keep cookies by host and not by port."""
    return f"turngap-{request.url.port or 0}"


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine's loopback."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _offered(request: HTTPConnection) -> list[str]:
    """Tokens that a request brings: as a cookie (the page), a header or in the URL (scripts)."""
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
    """The name or address in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _origin(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/"):
        raise InputError(
            "serve.origin",
            f"--origin {text!r} is no origin",
            hint="expected scheme and host, such as https://talk.example.org",
        )
    return f"{parts.scheme}://{parts.netloc}".lower()


def _is_plain(token: str) -> bool:
    return token.isascii() and all(c.isalnum() or c in "-_" for c in token)


def _shown(text: str) -> str:
    return repr(text[:80]) if text else "nothing"
