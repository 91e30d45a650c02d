"""The rules of a served agent: which clients, how many conversations, which limits. No I/O.

docs/security.md lists the limits in a table, with what happens beyond each.

On loopback every program of this machine may connect, but no web page from elsewhere. The Origin
that browsers send must be that of our own page, and the Host must name this machine (otherwise a
hostile name that resolves to 127.0.0.1 would pass as ours). Other addresses also need a token.
"""

import asyncio
import hmac
import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from starlette.requests import HTTPConnection

from turngap.core.errors import InputError
from turngap.core.untrusted import is_loopback

# Codes with which the server closes a WebSocket. Those below 4000 are RFC 6455's; of the others,
# the last three digits are the HTTP status that says the same.
CODE_DONE = 1000
CODE_NO_TEXT = 1003
CODE_MALFORMED = 1007
CODE_NOT_ALLOWED = 1008
CODE_FAILED = 1011
CODE_RESTART = 1012
CODE_FULL = 1013
CODE_TOKEN = 4401
CODE_ORIGIN = 4403
CODE_IDLE = 4408
CODE_TOO_FAST = 4429

TEXT_CHARS = 2000  # of one typed turn: a page; an LLM's answer to more is of no use
SEAT_S = 1.0  # that a call waits for a seat: a pipeline comes down 25 ms after its client left


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one server, which are also sent to the page."""

    connections: int = 64  # open at once, besides the seats
    request_s: float = 10.0  # for a whole request, and for a page's first message
    first_s: float = 60.0  # for another client's first message: a person allows the microphone
    message_bytes: int = 64 * 1024  # 20 ms of audio take 700
    messages_per_s: float = 400.0  # on average; an AudioWorklet's blocks come at 375
    asks_per_s: float = 1.0  # typed turns and switches of the LLM, on average: each costs money
    burst_s: float = 15.0  # this much of both may come at once, as after a stall of the network
    idle_s: float = 300.0  # without speech or text from either side
    vanished_s: float = 15.0  # without a page's message
    # After 3 s without a network, TCP is silent for up to 6.5 s at a round trip of 1.3 s.
    ping_s: float = 2.0  # without a byte from a client until it is pinged
    pong_s: float = 7.0  # after a ping until the client counts as gone, unless a byte comes
    unread_s: float = 10.0  # without taking any of what is written
    warn_s: float = 30.0  # a page is warned this long before a conversation is ended


class HangUpError(Exception):
    """A client's action that closes its connection, with a code and a reason."""


class Refusal(NamedTuple):
    """A reason not to serve a request: a WebSocket close code and a sentence."""

    code: int
    kind: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class Access:
    """The rules by which a request is served or refused."""

    loopback: bool = True  # the server can only be reached from its own machine
    token: str | None = field(default=None, repr=False)  # what a caller must know, if anything
    origins: frozenset[str] = frozenset()  # allowed besides the server's own, as behind a proxy

    @classmethod
    def for_host(cls, host: str, token: str | None = None, origins: tuple[str, ...] = ()) -> Self:
        """Return the access to a server bound to `host`, with a new token if it needs one.

        Raises:
            InputError: the token is too short to be safe, or an origin is malformed.
        """
        if token is not None and not re.fullmatch(r"[A-Za-z0-9_-]{16,256}", token):
            raise InputError(
                "serve.token",
                f"the token has {len(token)} characters, not 16 to 256 letters, digits, - or _",
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
        here = is_loopback(re.sub(r":\d*$", "", host).strip("[]"))
        if self.loopback and not here and self.origins.isdisjoint(own):
            message = f"this agent listens on loopback, but the request is for {host[:80]!r}"
            hint = "open it as 127.0.0.1 or localhost; behind a proxy, name its origin: --origin"
            return Refusal(CODE_ORIGIN, "access.host", message, hint)
        if origin not in self.origins | own:
            message = f"a page from {origin[:80]!r} may not talk to this agent"
            hint = "open the page that the agent serves, or allow that one with --origin"
            return Refusal(CODE_ORIGIN, "access.origin", message, hint)
        if self.token is not None and not any(map(self.knows, _offered(request))):
            hint = "open the URL that `turngap serve` printed, with ?token=… in it"
            return Refusal(CODE_TOKEN, "access.token", "this agent needs its token", hint)
        return None

    def knows(self, offered: str) -> bool:
        """Return whether the token is the right one, compared in constant time."""
        return self.token is not None and hmac.compare_digest(offered.encode(), self.token.encode())


def cookie_name(request: HTTPConnection) -> str:
    """Return the name of the token's cookie, with the port: browsers keep cookies by host only."""
    return f"turngap-{(request.scope.get('server') or ('', 0))[1]}"


def _offered(request: HTTPConnection) -> list[str]:
    """Return a request's tokens: from a cookie (the page), a header or the URL."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    found = [bearer.strip()] if scheme.lower() == "bearer" else []
    found += filter(None, [request.cookies.get(cookie_name(request))])
    return found + request.query_params.getlist("token")


def _origin(text: str) -> str:
    if (found := re.fullmatch(r"(https?://[^/?#\s]+)/*", text, re.IGNORECASE)) is None:
        raise InputError(
            "serve.origin",
            f"--origin {text!r} is not an origin",
            hint="expected scheme and host, such as https://talk.example.org",
        )
    return found[1].lower()


class Seats:
    """The seats for conversations that run at the same time."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.drains = False  # no new ones are taken; set by the code that ends the server
        self.taken = 0  # those that run, or whose pipeline still comes down
        self._free = asyncio.Semaphore(most)

    @property
    def why_none(self) -> str:
        """Return why the next call is refused; empty if it can be taken."""
        if self.drains:
            return "this agent is shutting down and takes no new calls"
        if self.taken < self.most:
            return ""
        full = f"full: {self.taken} of {self.most} conversations"
        return f"{full}; try again later, or serve with a higher --max-sessions"

    @asynccontextmanager
    async def seat(self) -> AsyncIterator[None]:
        """Take a seat until the context ends; wait a moment if a seat is about to be free.

        Raises:
            HangUpError: no seat is free.
        """
        if self.drains:
            raise HangUpError(CODE_RESTART, self.why_none)
        try:
            await asyncio.wait_for(self._free.acquire(), SEAT_S)
        except TimeoutError as e:
            raise HangUpError(CODE_RESTART if self.drains else CODE_FULL, self.why_none) from e
        if self.drains:  # by now
            self._free.release()
            raise HangUpError(CODE_RESTART, self.why_none)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._free.release()
