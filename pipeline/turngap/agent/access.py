"""Who may talk to a served agent, and how many at once. No I/O.

On loopback anybody on this machine may, but no web page from elsewhere: the Origin that browsers
send must be that of our own page, and the Host must name this machine (otherwise a hostile name
that resolves to 127.0.0.1 would pass as ours). On other addresses a token is needed, too.
"""

import hmac
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from turngap.agent.limits import CODE_FULL, CODE_ORIGIN, CODE_RESTART, CODE_TOKEN, HangUpError
from turngap.core.errors import InputError
from turngap.core.untrusted import is_loopback


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
            token = secrets.token_urlsafe(16)
        return cls(loopback, token, frozenset(map(_origin, origins)))

    def refusal(self, request: HTTPConnection) -> Refusal | None:
        """Return why this request is refused, or None if it may pass."""
        host = request.headers.get("host", "").lower()
        origin = request.headers.get("origin", f"http://{host}").lower()
        own = {f"http://{host}", f"https://{host}"}
        if self.loopback and not _is_here(host) and self.origins.isdisjoint(own):
            message = f"this agent listens on loopback and was asked for as {host[:80]!r}"
            hint = "open it as 127.0.0.1 or localhost; behind a proxy, name its origin: --origin"
            return Refusal(403, CODE_ORIGIN, "access.host", message, hint)
        if origin not in self.origins | own:
            message = f"a page from {origin[:80]!r} may not talk to this agent"
            hint = "open the page that the agent serves, or allow that one with --origin"
            return Refusal(403, CODE_ORIGIN, "access.origin", message, hint)
        if self.token is not None and not any(map(self.knows, _offered(request))):
            hint = "open the URL that `turngap serve` printed, with ?token=… in it"
            return Refusal(401, CODE_TOKEN, "access.token", "this agent needs its token", hint)
        return None

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


class Seats:
    """The conversations that may run at the same time.

    A seat is free as soon as its client is gone, while as many pipelines as there are seats may
    still come down.

    Attributes:
        most: conversations at once.
        drains: no new ones are taken; to be set by whoever ends the server.
        taken: conversations that run.
        coming_down: those whose client is gone while their pipeline still comes down.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.drains = False
        self.taken = self.coming_down = 0

    @property
    def why_none(self) -> str:
        """The reason why no call is taken; empty if one is."""
        if self.drains:
            return "this agent is shutting down and takes no new calls"
        if self.taken < self.most and self.taken + self.coming_down < 2 * self.most:
            return ""
        ending = f", and {self.coming_down} still ending" if self.coming_down else ""
        full = f"full: {self.taken} of {self.most} conversations{ending}"
        return f"{full}; try again later, or serve with a higher --max-sessions"

    @contextmanager
    def seat(self) -> Iterator[Callable[[], None]]:
        """Take a seat for as long as this lasts; call what it gives once the client is gone.

        Raises:
            HangUpError: there is none.
        """
        if why := self.why_none:
            raise HangUpError(CODE_RESTART if self.drains else CODE_FULL, why)
        self.taken += 1
        client = ExitStack()  # which is closed once, however often that is called
        client.callback(self._left)
        try:
            yield client.close
        finally:
            client.close()
            self.coming_down -= 1

    def _left(self) -> None:
        self.taken -= 1
        self.coming_down += 1
