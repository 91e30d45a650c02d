"""One WebSocket to an agent: it opens, does the handshake, compares clocks and stamps messages."""

import asyncio
import ssl
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from typing import Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidURI,
    ProxyError,
)
from websockets.uri import parse_uri

from turngap.caller.arrival import StampedSocket, arrived_ns, connect_stamped
from turngap.caller.dialect import (
    AudioBytes,
    AudioChunk,
    Dialect,
    Fault,
    Flush,
    Incoming,
    LeftOut,
    Message,
    NotSpokenError,
    Pong,
    Ready,
    UnplayableError,
    Unreadable,
)
from turngap.caller.intake import MOST_EARLY, MOST_MESSAGE_BYTES, MOST_QUEUED, QUEUED_AGAIN
from turngap.caller.intake import MOST_WAITING_BYTES as MOST_EARLY_BYTES
from turngap.caller.stream import RATE
from turngap.caller.wav import WavReader
from turngap.core.audio import Pcm
from turngap.core.clock import Clock
from turngap.core.errors import AgentError, InputError
from turngap.core.results import OffsetRecord
from turngap.core.untrusted import MOST_SENTENCE, printable

LINE_LOST = "agent.line_lost"

OPEN_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
# Pings before the first turn. Half the fastest round trip bounds the error of the offset.
PINGS = 12
# An agent that has just become ready may still be busy when the first ping comes.
PING_WAIT_S = 1.0

OnMessage = Callable[[int, Incoming], None]


class Peer(Protocol):
    """The other end of a line; `arrived_ns` is when the last message from `recv` arrived."""

    arrived_ns: int

    async def send(self, message: Message) -> None: ...

    async def recv(self) -> Message: ...


class Socket(ClientConnection):
    """A WebSocket that knows when bytes last arrived."""

    arrived_ns = 0


class Line:
    """An open line. `receive` hands each message with its instant of arrival to a callback.

    Messages that arrive during the handshake and the pings, such as a greeting, are kept for
    `receive`.
    """

    def __init__(self, peer: Peer, dialect: Dialect, clock: Clock) -> None:
        self._peer = peer
        self._dialect = dialect
        self._clock = clock
        self._early: deque[tuple[int, Incoming]] = deque()
        self._early_bytes = 0
        self._wav = WavReader()

    async def send_audio(self, pcm: Pcm) -> None:
        """Send one packet; if the line is gone, `receive` reports it."""
        try:
            await self._peer.send(self._dialect.audio(pcm.tobytes(), RATE))
        except ConnectionClosed:
            return

    async def send(self, message: Message) -> None:
        """Send a message of the dialect.

        Raises:
            AgentError: the line was lost.
        """
        try:
            await self._peer.send(message)
        except ConnectionClosed as e:
            raise _line_lost(e) from e

    async def next(self) -> tuple[int, Incoming | None]:
        """Return the next message and when it arrived.

        A message that cannot be read is `LeftOut` or `Unreadable`, and the line goes on.

        Raises:
            AgentError: the line was lost.
        """
        try:
            message = await self._peer.recv()
        except ConnectionClosed as e:
            raise _line_lost(e) from e
        return self._peer.arrived_ns, self._read(message)

    def _read(self, message: Message) -> Incoming | None:
        """Make of a message values that cannot hurt, whatever the dialect makes of it."""
        try:
            incoming = self._dialect.decode(message)
            if isinstance(incoming, AudioBytes):
                return self._wav.read(incoming)
            if isinstance(incoming, Flush):
                self._wav = WavReader()
        except UnplayableError as e:
            return Unreadable(f"it sent {e}", unplayable=True)
        except NotSpokenError as e:
            return Unreadable(f"it does not speak the {self._dialect.name} dialect: it sent {e}")
        except ValueError as e:
            return LeftOut(printable(str(e), MOST_SENTENCE))
        except Exception as e:
            # The caller must outlive any message; what it could not read is shown, to be mended.
            return Unreadable(failed_on("read a message", e), traceback.format_exc(limit=-8))
        return incoming

    async def receive(self, on_message: OnMessage) -> None:
        """Hand on messages until the line is lost (AgentError) or this is cancelled."""
        while self._early:
            on_message(*self._early.popleft())
        while True:
            arrived_ns, incoming = await self.next()
            if incoming is not None:
                on_message(arrived_ns, incoming)

    async def handshake(self, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        """Send the opening and wait until the agent is ready.

        Raises:
            AgentError: the agent is not ready in time, refuses, or speaks another protocol.
        """
        for message in self._dialect.opening():
            await self.send(message)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    arrived_ns, incoming = await self.next()
                    if isinstance(incoming, Ready):
                        return
                    if isinstance(incoming, Fault) and incoming.fatal:
                        refusal = printable(incoming.text, MOST_SENTENCE)
                        raise AgentError("agent.refused", f"the agent refused: {refusal}")
                    if isinstance(incoming, Unreadable):
                        raise _cannot_begin(incoming)
                    self._keep(arrived_ns, incoming)
        except TimeoutError as e:
            raise AgentError(
                "agent.not_ready",
                f"the peer accepted the line but did not answer the {self._dialect.name} handshake "
                f"within {timeout_s:g} s",
                hint="is it a pipecat bot with ProtobufFrameSerializer and RTVI on (its default)?",
            ) from e

    async def clock_offset(self) -> OffsetRecord:
        """Compare clocks; `offset_ns` is None if the agent does not answer pings.

        Raises:
            AgentError: the line was lost, or the agent sends too much.
        """
        exchanges: list[tuple[int, int]] = []
        for number in range(PINGS):
            exchange = await self._ping(number)
            if exchange is None:
                break
            exchanges.append(exchange)
        if not exchanges:
            return OffsetRecord(offset_ns=None, bound_ns=None, n=0)
        round_trip_ns, offset_ns = min(exchanges)
        return OffsetRecord(offset_ns=offset_ns, bound_ns=-(-round_trip_ns // 2), n=len(exchanges))

    def _keep(self, arrived_ns: int, incoming: Incoming | None) -> None:
        if incoming is None:
            return
        self._early.append((arrived_ns, incoming))
        self._early_bytes += incoming.pcm.nbytes if isinstance(incoming, AudioChunk) else 0
        if len(self._early) > MOST_EARLY or self._early_bytes > MOST_EARLY_BYTES:
            raise AgentError(
                "agent.too_much",
                f"the agent sent {len(self._early):,} messages and {self._early_bytes:,} bytes of "
                "audio before the conversation began: it does not stop",
            )

    async def _ping(self, number: int) -> tuple[int, int] | None:
        """Return round trip and offset of one exchange, ns."""
        question = self._dialect.ping(number)
        if question is None:
            return None
        asked_ns = self._clock.now_ns()
        await self.send(question)
        try:
            async with asyncio.timeout(PING_WAIT_S):
                while True:
                    arrived_ns, incoming = await self.next()
                    if isinstance(incoming, Pong) and incoming.ping == number:
                        midpoint_ns = (asked_ns + arrived_ns) // 2
                        return arrived_ns - asked_ns, incoming.agent_ns - midpoint_ns
                    self._keep(arrived_ns, incoming)
        except TimeoutError:
            return None


@asynccontextmanager
async def open_line(
    url: str, dialect: Dialect, clock: Clock, *, timeout_s: float = OPEN_TIMEOUT_S
) -> AsyncIterator[Line]:
    """Connect and handshake, each within `timeout_s`.

    Raises:
        InputError: the URL is not a WebSocket's.
        AgentError: nothing listens there, it is no WebSocket, or the handshake failed.
    """
    socket = await _connect(url, clock, timeout_s)
    try:
        line = Line(socket, dialect, clock)
        await line.handshake(timeout_s)
        yield line
    finally:
        await socket.close()


async def _connect(url: str, clock: Clock, timeout_s: float) -> Socket:
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("ws", "wss"):
            raise ValueError(f"its scheme is {parts.scheme or 'missing'}, not ws or wss")
        uri = parse_uri(url)
        if getproxies() and not _is_here(parts.hostname):
            return await _upgrade(url, clock, timeout_s, None)
        tcp = await connect_stamped(uri.host, uri.port, timeout_s)
        try:
            return await _upgrade(url, clock, timeout_s, tcp)
        except ValueError:  # a redirect, which cannot be followed with our own socket
            tcp.close()
            return await _upgrade(url, clock, timeout_s, None)
    except (ssl.SSLError, ImportError) as e:  # the latter: a SOCKS proxy without python-socks
        raise AgentError(
            "agent.unreachable",
            f"nothing can be reached at {url}: {printable(str(e), MOST_SENTENCE)}",
            hint="is its certificate valid here, and the proxy in the environment meant?",
        ) from e
    except (InvalidURI, ValueError) as e:  # ValueError: a bad port, or a name no host can have
        raise InputError(
            "agent.url",
            f"{url!r} is not a WebSocket URL: {e}",
            hint="expected ws://host:port/path",
        ) from e
    except (OSError, EOFError, InvalidProxy, ProxyError) as e:
        raise AgentError(
            "agent.unreachable",
            f"nothing can be reached at {url}: "
            f"{printable(str(e), MOST_SENTENCE) or type(e).__name__}",
            hint="is the agent running, and is this its port and path?",
        ) from e
    except InvalidHandshake as e:
        why = printable(str(e), MOST_SENTENCE)
        raise AgentError(
            "agent.no_websocket", f"{url} answers, but not as a WebSocket: {why}"
        ) from e


async def _upgrade(url: str, clock: Clock, timeout_s: float, tcp: StampedSocket | None) -> Socket:
    """Open a WebSocket over `tcp`, or over a new connection, which may go through a proxy."""

    class Stamped(Socket):
        def data_received(self, data: bytes) -> None:
            # Stamped here and not when the message leaves the queue: until that task runs, 0.1 ms
            # pass, and 0.5 ms in one of twenty cases, and every onset would be late by that.
            self.arrived_ns = arrived_ns(self.transport, clock, self.arrived_ns)
            super().data_received(data)

    # No compression, since it costs time at both ends and audio does not shrink. No proxy to this
    # machine itself.
    connection = await connect(
        url,
        sock=tcp,
        create_connection=Stamped,
        compression=None,
        proxy=None if _is_here(urlsplit(url).hostname) else True,
        open_timeout=timeout_s,
        close_timeout=CLOSE_TIMEOUT_S,
        max_queue=(MOST_QUEUED, QUEUED_AGAIN),
        max_size=MOST_MESSAGE_BYTES,
    )
    assert isinstance(connection, Socket)
    return connection


def _is_here(host: str | None) -> bool:
    try:
        return host == "localhost" or ip_address(host or "").is_loopback
    except ValueError:
        return False


def failed_on(what: str, error: Exception) -> str:
    """What the turn says if turngap itself fails on what an agent sent."""
    said = f"{type(error).__name__}: {printable(str(error), 200)}"
    return f"turngap itself failed to {what} ({said}); please report it"


def _cannot_begin(message: Unreadable) -> AgentError:
    if message.unplayable:
        return AgentError(
            "agent.audio",
            f"the agent's audio cannot be played: {message.why}",
            hint="let the agent send PCM16 mono at 8,000 to 192,000 Hz",
        )
    return AgentError(
        "agent.other_protocol",
        f"the peer cannot be understood: {message.why}",
        hint="choose the protocol with --dialect",
    )


def _line_lost(error: ConnectionClosed) -> AgentError:
    return AgentError(LINE_LOST, f"the line was lost: {_why_closed(error)}")


def _why_closed(error: ConnectionClosed) -> str:
    for frame, by in ((error.rcvd, "agent"), (error.sent, "caller")):
        if frame is not None:
            reason = f" ({printable(frame.reason)})" if frame.reason else ""
            return f"closed by the {by} with code {frame.code}{reason}"
    return "without a closing handshake (did the agent die?)"
