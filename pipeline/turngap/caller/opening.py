"""Open a WebSocket to an agent, and explain why an agent cannot be reached.

It sends and receives cheaply: 50 messages a second on each of a hundred lines.
"""

import asyncio
import os
import re
import secrets
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from urllib.parse import urljoin, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket
from websockets.asyncio.connection import Connection
from websockets.exceptions import (
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
    ProxyError,
)
from websockets.frames import (
    Frame,
    Opcode,
    apply_mask,  # pyright: ignore[reportPrivateImportUsage], its compiled form where there is one
)
from websockets.http11 import Request as HttpRequest
from websockets.protocol import CLIENT, Event, State
from websockets.proxy import get_proxy
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI, parse_uri

from turngap.caller.arrival import StampedSocket, arrived_ns, connect_stamped
from turngap.caller.intake import MOST_MESSAGE_BYTES, MOST_QUEUED, QUEUED_AGAIN
from turngap.caller.line.running import Crossings, LineEndedError
from turngap.caller.line.spec import LineSpec
from turngap.caller.line.transport import LinedTransport, narrow
from turngap.caller.starting import place_of
from turngap.clocks import others_first, unhurried
from turngap.core.clock import NS_PER_S, Clock
from turngap.core.errors import NOTHING_THERE, AgentError, InputError, url_meant
from turngap.core.untrusted import MOST_SENTENCE, is_loopback, printable

_FIN, _MASKED = 0x80, 0x80


def frame_of(message: bytes | str, mask: bytes) -> bytes:
    """Build the one frame that holds a message; `mask` has a client's 4 random bytes, or None."""
    opcode, data = (
        (Opcode.TEXT, message.encode()) if isinstance(message, str) else (Opcode.BINARY, message)
    )
    first, masked, size = _FIN | opcode, _MASKED if mask else 0, len(data)
    if size < 126:
        head = struct.pack("!BB", first, masked | size)
    elif size < 65536:
        head = struct.pack("!BBH", first, masked | 126, size)
    else:
        head = struct.pack("!BBQ", first, masked | 127, size)
    return head + mask + (apply_mask(data, mask) if mask else data)


class PromptSends(Connection):
    """A websockets connection that wakes no task if nothing needs waiting.

    Its `send` takes half the time of the original: a packet of 20 ms is sent 50 times a second for
    each session. Messages in several pieces are not supported.

    Attributes:
        takes: receives each message as it arrives, unless `recv` is being awaited; if it returns
            False, `recv` returns that message.
        crossings: what crossed the line; None without one.
    """

    takes: Callable[[bytes | str], bool] | None = None
    crossings: Crossings | None = None

    def send_now(self, message: bytes | str) -> bool:
        """Send a message if that needs no waiting; return whether it was sent."""
        protocol, transport = self.protocol, self.transport
        if protocol.state is not State.OPEN or transport.get_write_buffer_size() > 0:
            return False
        if protocol.extensions:  # such as compression
            return False
        mask = secrets.token_bytes(4) if protocol.side is CLIENT else b""
        transport.write(frame_of(message, mask))
        return True

    async def send(self, message: Any, **how: Any) -> None:
        """Send as `Connection.send` does: wait for a peer that reads slowly, or has hung up."""
        if how or not isinstance(message, bytes | str) or not self.send_now(message):
            await super().send(message, **how)

    def process_event(self, event: Event) -> None:
        """Pass a whole message to its receiver; pass anything else to websockets."""
        if self.takes is None or not self._taken(event, self.takes):
            super().process_event(event)

    def _taken(self, event: Event, takes: Callable[[bytes | str], bool]) -> bool:
        if not isinstance(event, Frame) or not event.fin or len(self.recv_messages.frames):
            return False
        if event.opcode is Opcode.BINARY:
            return takes(bytes(event.data))
        if event.opcode is not Opcode.TEXT:
            return False
        try:
            text = bytes(event.data).decode()
        except UnicodeDecodeError:  # `recv` closes the connection for it
            return False
        return takes(text)


# It took the connection, and opened no WebSocket in time; or the line was lost.
NOT_OPEN, LINE_LOST = "agent.not_open", "agent.line_lost"

CLOSE_TIMEOUT_S = 2.0
_FAILED = re.compile(r"\[Errno (\d+)\] Connect call failed")


# A peer that answers pings is pinged when nothing has arrived for so long; it is dead if nothing
# arrives for so long after that.
QUIET_S, ANSWER_S = 4, 5
NO_ANSWER = f"no answer to a ping for {ANSWER_S} s: the peer is dead or the line is half-open"


class Socket(PromptSends, ClientConnection):
    """A WebSocket that knows when bytes last arrived, and notices that its peer is dead.

    Any byte is a sign of life; over a line any packet is, since TCP hands over nothing while it
    waits for a lost one. A peer that has never answered a ping is not judged: there are agents that
    answer none, and they may be silent for long.
    """

    arrived_ns = 0
    _answers = False
    _dead: LineEndedError | None = None
    _watching: asyncio.Task[None] | None = None

    def process_event(self, event: Event) -> None:
        if isinstance(event, Frame) and event.opcode is Opcode.PONG:
            self._answers = True
        super().process_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watching is not None:
            self._watching.cancel()
        super().connection_lost(self._dead or exc)

    def watch(self, clock: Clock) -> None:
        """Ping the peer now, to learn whether it answers; then end the connection if it dies."""
        if self.protocol.state is State.OPEN:
            self._ping()
            self._watching = asyncio.create_task(self._watch(unhurried(clock)), name="turngap-dead")

    async def _watch(self, clock: Clock) -> None:
        heard_ns = clock.now_ns()
        while True:
            heard_ns = max(heard_ns, self._heard_ns)
            await clock.sleep_until_ns(heard_ns + round(QUIET_S * NS_PER_S))
            if self._heard_ns > heard_ns:
                continue
            if not self._answers or self._is_unread:
                heard_ns = clock.now_ns()
                continue
            self._ping()
            await clock.sleep_until_ns(clock.now_ns() + round(ANSWER_S * NS_PER_S))
            for _ in range(2):  # what has arrived while this process was held up is read first
                await others_first()
            if self._heard_ns <= heard_ns and not self._is_unread:
                self._dead = LineEndedError(NO_ANSWER)
                self.transport.abort()
                return

    @property
    def _heard_ns(self) -> int:
        """Return when bytes last arrived, or over a line, a packet of any kind."""
        return max(self.arrived_ns, self.crossings.alive_ns if self.crossings else 0)

    @property
    def _is_unread(self) -> bool:
        return self.recv_messages.paused

    def _ping(self) -> None:
        """Ping the peer without waiting for room."""
        if self.protocol.state is State.OPEN:
            self.protocol.send_ping(b"turngap")
            self.send_data()

    async def gone(self) -> None:
        """Wait until nothing is left of a half-open line, which is kept for a while."""
        if isinstance(self.transport, LinedTransport):
            await self.transport.ended()


@dataclass(frozen=True, slots=True)
class Request:
    """The request that opens a WebSocket.

    Attributes:
        shown: the URL for messages, without the secrets in `url`.
        key_env: the environment variable that holds the key of a known service.
        ping_s: time between the caller's pings, and the wait for each answer; 0 for no pings.
        line, call: the line that the connection crosses, and the call whose line it is.
    """

    url: str
    headers: Mapping[str, str]
    subprotocols: Sequence[str]
    timeout_s: float
    shown: str
    key_env: str = ""
    ping_s: float = 0.0
    line: LineSpec | None = None
    call: str = ""


class _RedirectedError(Exception):
    """The server redirects elsewhere. websockets follows its own redirect error, not this one."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


def check_url(url: str, shown: str) -> WebSocketURI:
    """Check a WebSocket's URL, or an HTTP one in its place; messages show `shown` instead.

    Raises:
        InputError: the URL is of another kind.
    """
    url = place_of(url)
    if not url.isprintable() or " " in url:  # urlsplit leaves line ends out
        raise _no_url(shown, "it has a space, a line end or a control character in it")
    try:
        scheme = urlsplit(url).scheme
        uri = parse_uri(url) if scheme in ("ws", "wss") else None
    except InvalidURI as e:  # its own text has the whole URL
        raise _no_url(shown, e.msg) from None
    except ValueError as e:
        raise _no_url(shown, _what_is_wrong(url, shown, e)) from None
    if uri is None:
        given = f"is {scheme}" if "://" in url else "is missing"
        raise _no_url(shown, f"its scheme {given}, not ws, wss, http or https")
    return uri


def _what_is_wrong(url: str, shown: str, error: ValueError) -> str:
    """Quote an error, unless the error may quote a URL with parts that must not be shown."""
    return str(error) if url == shown else "something is wrong with its host or its port"


def _no_url(shown: str, why: str) -> InputError:
    return InputError(
        "agent.url",
        f"{shown!r} is not a WebSocket URL: {why}",
        hint=url_meant(shown) or "expected ws://host:port/path",
    )


async def connect(request: Request, clock: Clock) -> Socket:
    """Open the WebSocket.

    Raises:
        InputError: the URL is no WebSocket's.
        AgentError: nothing listens there, what listens is no WebSocket, or access is refused.
    """
    with in_words(request):
        tcp = await _reached(request)
        try:
            return await _upgraded(request, clock, tcp)
        except ValueError:
            if tcp is not None:
                tcp.close()
            raise
        except TimeoutError as e:
            raise AgentError(
                NOT_OPEN,
                f"{request.shown} took the connection, and did not open the WebSocket within "
                f"{request.timeout_s:g} s",
                hint="it may still be starting: try again, or wait longer with "
                "--dialect NAME,open_s=60; if it never opens, is this its port and path?",
            ) from e


async def knock(request: Request) -> None:
    """Check that something listens there. No WebSocket is opened, so the agent sees no call.

    Raises:
        InputError, AgentError: as `connect`.
    """
    with in_words(request):
        tcp = await _reached(request)
    if tcp is not None:
        tcp.close()


async def _reached(request: Request) -> StampedSocket | None:
    """Connect to the host; return None if a proxy reaches it."""
    uri = check_url(request.url, request.shown)
    if goes_through_proxy(uri):
        return None
    prepare = narrow if request.line is not None else None
    return await connect_stamped(uri.host, uri.port, request.timeout_s, prepare)


@contextmanager
def in_words(request: Request) -> Iterator[None]:
    """Describe what went wrong and what to do about it."""
    try:
        yield
    except ssl.SSLError as e:
        raise _no_tls(request, e) from e
    except ImportError as e:  # a SOCKS proxy without python-socks
        raise _unreachable(request, e, "should the proxy in the environment be used?") from e
    except _RedirectedError as e:
        raise _elsewhere(request, e.location) from None
    except ValueError as e:  # a name that no host can have
        why = _what_is_wrong(request.url, request.shown, e)
        raise _no_url(request.shown, why) from None
    except (OSError, EOFError, InvalidProxy, ProxyError) as e:
        hint = (
            "is the agent running, and is this its port and path? turngap starts it for you with "
            '--start "python bot.py"'
            if is_loopback(urlsplit(request.url).hostname or "")
            else "is the agent running, and is this its port and path?"
        )
        raise _unreachable(request, e, hint) from e
    except InvalidStatus as e:
        raise _refused(request, e.response.status_code) from e
    except InvalidHandshake as e:
        why = printable(str(e), MOST_SENTENCE)
        raise AgentError(
            "agent.no_websocket", f"{request.shown} answers, but not as a WebSocket: {why}"
        ) from e


def _unreachable(request: Request, error: Exception, hint: str) -> AgentError:
    # asyncio names the number and the address of each try, neither of which is news.
    refused = dict.fromkeys(os.strerror(int(number)) for number in _FAILED.findall(str(error)))
    said = ", ".join(refused) or str(error)
    why = printable(said, MOST_SENTENCE) or type(error).__name__
    return AgentError("agent.unreachable", f"{NOTHING_THERE} at {request.shown}: {why}", hint=hint)


def _no_tls(request: Request, error: ssl.SSLError) -> AgentError:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = printable(error.verify_message, MOST_SENTENCE)
        return AgentError(
            "agent.certificate",
            f"the certificate of {request.shown} is not trusted here: {why}",
            hint="if the certificate is yours, name its file: SSL_CERT_FILE=cert.pem turngap ...",
        )
    if error.reason == "WRONG_VERSION_NUMBER":
        return AgentError(
            "agent.certificate",
            f"{request.shown} does not speak TLS",
            hint=f"try it without: {request.shown.replace('wss://', 'ws://', 1)}",
        )
    return _unreachable(request, error, "is this its port, and is it meant to speak TLS?")


# What a server answers with a `Location` to go to.
_POINTS_ELSEWHERE = (300, 301, 302, 303, 307, 308)

# What a server answers, in place of a WebSocket, to a caller that is not let in.
_NOT_LET_IN = (401, 403)


def _refused(request: Request, status: int) -> AgentError:
    """Explain an HTTP status that came instead of a WebSocket."""
    said = f"{request.shown} answers with HTTP status {status}"
    if status in _NOT_LET_IN:
        if request.key_env:
            key = (
                f"is {request.key_env} set, and to a valid key? It is not sent with a token, a "
                "header or a subprotocol of your own"
            )
        else:
            key = (
                "give the key as a header, from the environment: "
                "--header 'Authorization: Bearer ${API_KEY}'"
            )
        if status == 403:  # uvicorn's answer where no WebSocket is served at a path
            why = "there is no WebSocket at this path, or it wants a key"
            return AgentError("agent.key", f"{said}: {why}", hint=f"check the path; or {key}")
        return AgentError("agent.key", f"{said}: it wants a key", hint=key)
    if status == 404:
        return AgentError(
            "agent.path",
            f"{said}: there is nothing at this path",
            hint="pipecat's development runner serves WebRTC at its http:// URL, protobuf at "
            "/ws-client, and telephony and evals at /ws; OpenAI's protocol is usually at "
            "/v1/realtime?model=NAME",
        )
    return AgentError(
        "agent.no_websocket",
        f"{request.shown} answers, but not as a WebSocket: HTTP status {status}",
        hint="is this the agent's port and path?",
    )


def _elsewhere(request: Request, location: str) -> AgentError:
    """Name the target of a redirect, which is not followed: keys would go to another host."""
    said = f"{request.shown} points elsewhere"
    hint = "give the URL that it points to, if you trust it with your keys"
    try:
        there = urlsplit(urljoin(request.url, location))
        # Nothing that was filled into the URL comes back in what is shown.
        filled = urlsplit(request.url).path != urlsplit(request.shown).path
        path = "/" if filled else there.path
        scheme = {"http": "ws", "https": "wss"}.get(there.scheme, there.scheme)
        netloc = there.netloc.rpartition("@")[2]
        url = printable(urlunsplit((scheme, netloc, path, "", "")), MOST_SENTENCE)
        said += f", to {url}, and redirects are not followed"
        if not filled:
            hint = f"if you trust it with your keys, give that URL: --agent {url}"
    except ValueError:
        said += ", to something that is not a URL, and redirects are not followed"
    return AgentError("agent.redirected", said, hint=hint)


async def _upgraded(request: Request, clock: Clock, tcp: StampedSocket | None) -> Socket:
    """Open a WebSocket over `tcp`, or over a new connection, which may go through a proxy."""
    lined: list[LinedTransport] = []

    class Stamped(Socket):
        async def handshake(self, *args: Any, **options: Any) -> None:
            # A header that was given takes the place of the library's own, as `Host`.
            self.protocol.connect = partial(_requested, self.protocol.connect, request.headers)
            try:
                await super().handshake(*args, **options)
            except InvalidStatus as e:
                locations = e.response.headers.get_all("Location")
                if e.response.status_code in _POINTS_ELSEWHERE and locations:
                    raise _RedirectedError(locations[0]) from None
                raise

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            if request.line is not None:
                real = cast("asyncio.Transport", transport)
                transport = LinedTransport(real, self, request.line, request.call, clock)
                lined.append(transport)
                self.crossings = transport.line.crossings
            super().connection_made(transport)

        def data_received(self, data: bytes) -> None:
            # Stamped here and not when the message leaves the queue: until that task runs, 0.1 ms
            # pass, and 0.5 ms in one of twenty cases, and every onset would be late by that.
            if isinstance(self.transport, LinedTransport):
                self.arrived_ns = self.transport.arrived_ns
            else:
                self.arrived_ns = arrived_ns(self.transport, clock, self.arrived_ns)
            super().data_received(data)

    # No compression, since it costs time at both ends and audio does not shrink.
    opening = websocket(
        request.url,
        sock=tcp,
        create_connection=Stamped,
        compression=None,
        proxy=True if goes_through_proxy(parse_uri(request.url)) else None,
        subprotocols=[Subprotocol(name) for name in request.subprotocols] or None,
        open_timeout=request.timeout_s,
        ping_interval=request.ping_s or None,
        ping_timeout=request.ping_s or None,
        close_timeout=CLOSE_TIMEOUT_S,
        max_queue=(MOST_QUEUED, QUEUED_AGAIN),
        max_size=MOST_MESSAGE_BYTES,
    )
    try:
        connection = await opening
    except BaseException as e:
        broken = [each.broken for each in lined if each.broken]
        for each in lined:
            each.kill()
        if broken and isinstance(e, Exception):
            raise AgentError(LINE_LOST, broken[0]) from e
        raise
    assert isinstance(connection, Socket)
    connection.watch(clock)
    return connection


def _requested(plain: Callable[[], HttpRequest], headers: Mapping[str, str]) -> HttpRequest:
    made = plain()
    for name, value in headers.items():
        made.headers.pop(name, None)
        made.headers[name] = value
    return made


def goes_through_proxy(uri: WebSocketURI) -> bool:
    """Return whether a proxy reaches this address; this machine itself never needs one."""
    return not is_loopback(uri.host) and get_proxy(uri) is not None
