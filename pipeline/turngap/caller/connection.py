"""WebSocket line to an agent: it opens, does the handshake, compares clocks and stamps messages."""

import asyncio
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from websockets.exceptions import ConnectionClosed

from turngap.caller.dialects.session import Session
from turngap.caller.intake import MOST_EARLY, Volume
from turngap.caller.intake import MOST_WAITING_BYTES as MOST_EARLY_BYTES
from turngap.caller.line.running import Crossings, LineEndedError
from turngap.caller.line.spec import LineSpec
from turngap.caller.opening import CLOSE_TIMEOUT_S, LINE_LOST, Request, Socket, connect
from turngap.caller.said import (
    AudioBytes,
    AudioChunk,
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
from turngap.caller.stream import PACKET_MS
from turngap.caller.wav import WavReader
from turngap.core.audio import Pcm
from turngap.core.clock import Clock
from turngap.core.errors import AgentError
from turngap.core.run_record import OffsetRecord
from turngap.core.untrusted import MOST_SENTENCE, printable

HUNG_UP = "agent.hung_up"
NOT_READY = "agent.not_ready"
UNREADY = "agent.unready"

# What an agent may be that was never heard in the dialect.
OTHER_PROTOCOL = "is this its dialect? Without --dialect, turngap detects it"
# What may be wrong where it hangs up with a code of its own, or in a later call.
ONE_URL_A_CALL = (
    "if its URL or token lets in one call, name the dialect, since finding it out takes a call, "
    "and get a URL for each: --agent 'POST http://HOST/start'"
)
# Lower codes are the protocol's (RFC 6455).
FIRST_OWN_CODE = 3000

OPEN_TIMEOUT_S = 10.0
# Pings before the first turn. Half the fastest round trip bounds the error of the offset.
PINGS = 12
# An agent that has just become ready may still be busy when the first ping comes.
PING_WAIT_S = 1.0
# And over a line, losses may be repaired meanwhile, several of its round trips.
LINE_WAIT_S, LINE_ROUND_TRIPS = 3.0, 3
# Answers that wait for a peer that does not read, before the caller stops to read itself.
MOST_UNSENT = 1_000

OnMessage = Callable[[int, Incoming], None]


class Peer(Protocol):
    """The other end of a connection; `arrived_ns` is when the last message from `recv` arrived."""

    arrived_ns: int

    @property
    def crossings(self) -> Crossings | None:
        """Return what crossed the line; None without one."""
        ...

    async def send(self, message: Message) -> None: ...

    async def recv(self) -> Message: ...


@runtime_checkable
class PromptPeer(Peer, Protocol):
    """A peer that delivers messages without waking a task for each.

    Attributes:
        takes: receives each message as it arrives, unless `recv` is being awaited; if it returns
            False, `recv` returns that message.
    """

    takes: Callable[[Message], bool] | None

    def send_now(self, message: Message) -> bool:
        """Send a message if that needs no waiting; return whether it was sent."""
        ...


class Line:
    """An open line. `receive` passes each message with its arrival time to a callback.

    Messages that arrive during the handshake and the pings, such as a greeting, are kept for
    `receive`.

    Attributes:
        opened_ns: when the WebSocket was open, before the handshake and the pings.
        answered: whether a message said something in the dialect.
        first_word: as in the dialect's settings.
    """

    first_word: Literal["speech", "sound"] = "speech"

    def __init__(self, peer: Peer, session: Session, clock: Clock) -> None:
        self._peer = peer
        self._prompt = peer if isinstance(peer, PromptPeer) else None
        self._session = session
        self._played = self._dropped = 0
        self.answered = False
        self._clock = clock
        self.opened_ns = clock.now_ns()
        self._waiting: deque[Message] = deque()
        self._sending = asyncio.Lock()
        self._answering: asyncio.Task[None] | None = None
        self._volume = Volume()
        self._early: deque[tuple[int, Incoming]] = deque()
        self._early_bytes = 0
        self._wav = WavReader()
        self._rest: Pcm = np.zeros(0, dtype=np.int16)

    @property
    def crossings(self) -> Crossings | None:
        """Return what crossed the line, if there is one; complete when the connection is over."""
        return self._peer.crossings

    @property
    def rate(self) -> int:
        """Return the sample rate of the person's audio, Hz."""
        return self._session.rate

    @property
    def tells_flushes(self) -> bool:
        """Return whether the dialect has a message that drops audio not played yet."""
        return getattr(self._session, "tells_flushes", True)

    @property
    def dialect(self) -> str:
        """Return the name of the dialect."""
        return self._session.name

    @property
    def lead(self) -> int:
        """Return how many samples the dialect's encoder is behind."""
        return getattr(self._session, "lead", 0)

    async def send_audio(self, pcm: Pcm) -> None:
        """Send audio at the line's rate; if the line is lost, `receive` reports it.

        Coded audio goes out in whole packets; what is left waits for the next call.
        """
        packets = [pcm]
        if self.lead:
            size = self.rate * PACKET_MS // 1000
            pcm = np.concatenate((self._rest, pcm))
            whole = len(pcm) // size * size
            packets, self._rest = list(pcm[:whole].reshape(-1, size)), pcm[whole:]
        for packet in packets:
            if (rest := self.send_audio_now(self.prepare_audio(packet))) is not None:
                await rest

    def prepare_audio(self, pcm: Pcm) -> bytes:
        """Return what `send_audio_now` takes; call it in the order of the packets."""
        prepare = getattr(self._session, "prepare", None)
        return pcm.tobytes() if prepare is None else prepare(pcm.tobytes())

    def send_audio_now(self, packet: bytes) -> Coroutine[Any, Any, None] | None:
        """Send one packet; if that needs waiting, return what to await."""
        self._session.send_audio(packet)
        return self.send_waiting_now()

    def user_ends(self, sample: int) -> None:
        """Take the sample, counted over all that are sent, at which the person's turn ends."""
        self._session.user_ends(sample)

    def played(self, samples: int, dropped: int) -> None:
        """Take the total number of the agent's samples that have sounded or been dropped.

        `dropped` of them will never sound. The dialect's answer waits to be sent.
        """
        if dropped > self._dropped:
            self._session.audio_dropped(dropped - self._dropped)
            self._dropped = dropped
        if samples > self._played:
            self._session.audio_played(samples)
            self._played = samples

    def send_waiting_now(self) -> Coroutine[Any, Any, None] | None:
        """Send the dialect's waiting messages; if that needs more waiting, return what to await."""
        return None if self._sent_now() else self.send_waiting()

    def _sent_now(self) -> bool:
        """Send the waiting messages that need no further wait; return whether none are left."""
        waiting = self._waiting
        waiting.extend(self._session.data_to_send())
        if self._prompt is not None and not self._sending.locked():
            while waiting and self._prompt.send_now(waiting[0]):
                waiting.popleft()
        return not waiting

    async def send_waiting(self) -> None:
        """Send the dialect's waiting messages; if the line is lost, `receive` reports it.

        Messages keep their order. Messages that a cancelled sender leaves go out with the next
        ones.
        """
        self._waiting.extend(self._session.data_to_send())
        if not self._waiting:
            return
        with suppress(ConnectionClosed):
            async with self._sending:
                while self._waiting:
                    # A WebSocket has taken a message before it waits for room.
                    await self._peer.send(self._waiting.popleft())

    async def _answer(self) -> None:
        """Begin to send the dialect's waiting messages.

        A reader does not wait for a peer that reads slowly, because messages that arrive
        meanwhile would be stamped late.
        """
        if not self._sent_now():
            if len(self._waiting) > MOST_UNSENT:
                await self.send_waiting()
            else:
                self._send_meanwhile()

    def _send_meanwhile(self) -> None:
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self.send_waiting(), name="turngap-answer")

    async def next(self) -> tuple[int, Sequence[Incoming]]:
        """Return the content of the next message, and when it arrived.

        A message that cannot be read becomes `LeftOut` or `Unreadable`, and the line continues.

        Raises:
            AgentError: the line was lost, or more came than a conversation may hold.
        """
        message = await self._next_message()
        arrived_ns = self._peer.arrived_ns
        said = self._said_in(message)
        await self._answer()
        return arrived_ns, said

    async def _next_message(self) -> Message:
        try:
            return await self._peer.recv()
        except ConnectionClosed as e:
            raise self._line_lost(e) from e

    def _said_in(self, message: Message) -> Sequence[Incoming]:
        self._volume.count(len(message))
        if too_much := self._volume.is_over():
            raise AgentError("agent.too_much", f"the agent sent {too_much} in a conversation")
        said = self._read(message)
        self.answered |= any(not isinstance(incoming, Unreadable | LeftOut) for incoming in said)
        return said

    def _read(self, message: Message) -> Sequence[Incoming]:
        """Convert a message to harmless values, whatever the dialect reads in it."""
        try:
            return [self._played_as(incoming) for incoming in self._session.receive_data(message)]
        except UnplayableError as e:
            return [Unreadable(f"it sent {e}", unplayable=True)]
        except NotSpokenError as e:
            why = f"it does not speak the {self._session.name} dialect: it sent {e}"
            return [Unreadable(why)]
        except ValueError as e:
            return [LeftOut(printable(str(e), MOST_SENTENCE))]
        except Exception as e:
            # The caller must outlive any message; what it could not read is shown, to be mended.
            return [Unreadable(failed_on("read a message", e), traceback.format_exc(limit=-8))]

    def _played_as(self, incoming: Incoming) -> Incoming:
        if isinstance(incoming, AudioBytes):
            return self._wav.read(incoming)
        if isinstance(incoming, Flush):
            self._wav.flush()
        return incoming

    def _line_lost(self, error: ConnectionClosed) -> AgentError:
        hint, frame = "", error.rcvd
        if not self.answered and frame is not None and frame.code >= FIRST_OWN_CODE:
            hint = ONE_URL_A_CALL
        elif isinstance(error.__cause__, LineEndedError):
            pass
        elif not self.answered and not (frame and frame.reason):  # it has not said why itself
            hint = f"it sent nothing before that; {OTHER_PROTOCOL}"
        elif self.answered and frame is not None and frame.code in (1000, 1001):  # in due form
            about = f"{frame.code}, {printable(frame.reason)}" if frame.reason else f"{frame.code}"
            return AgentError(HUNG_UP, f"the agent ended the call ({about})")
        return AgentError(LINE_LOST, f"the line was lost: {_why_closed(error)}", hint=hint)

    async def hang_up(self) -> None:
        """Send the dialect's goodbye, if it has one."""
        self._session.close()
        await self.send_waiting()

    async def receive(self, on_message: OnMessage) -> None:
        """Pass on messages until the line is lost (AgentError) or this is cancelled."""
        while self._early:
            on_message(*self._early.popleft())
        failed: Exception | None = None

        def take(message: Message) -> bool:
            nonlocal failed
            if self._waiting:  # a peer that does not read is not read either, in time
                return False
            try:
                self._hand_on(message, on_message)
            except Exception as e:
                failed = e
                return False
            if not self._sent_now():
                self._send_meanwhile()
            return True

        if self._prompt is not None:
            self._prompt.takes = take
        try:
            while True:
                message = await self._next_message()
                if failed is not None:
                    raise failed
                self._hand_on(message, on_message)
                await self._answer()
        finally:
            if self._prompt is not None:
                self._prompt.takes = None

    def _hand_on(self, message: Message, on_message: OnMessage) -> None:
        arrived_ns = self._peer.arrived_ns
        for incoming in self._said_in(message):
            on_message(arrived_ns, incoming)

    async def messages(self) -> AsyncIterator[tuple[int, Incoming]]:
        """Yield messages, each with its instant of arrival, until the line is lost (AgentError)."""
        while self._early:
            yield self._early.popleft()
        while True:
            arrived_ns, said = await self.next()
            for incoming in said:
                yield arrived_ns, incoming
            await self._answer()

    async def handshake(self, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        """Send the opening and wait until the agent is ready.

        Raises:
            AgentError: the agent is not ready in time, refuses, or speaks another protocol.
        """
        said: Sequence[Incoming] = self._session.open()
        arrived_ns, ready = self._clock.now_ns(), False
        await self.send_waiting()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for incoming in said:
                        ready = ready or isinstance(incoming, Ready)
                        self._begin_with(arrived_ns, incoming)
                    if ready:
                        return
                    arrived_ns, said = await self.next()
        except TimeoutError as e:
            if self.answered:
                raise AgentError(
                    UNREADY,
                    f"the agent speaks {self.dialect}, but did not say within {timeout_s:g} s that "
                    "it was ready",
                ) from e
            raise AgentError(
                NOT_READY,
                f"the peer took the connection, but did not answer the {self.dialect} handshake "
                f"within {timeout_s:g} s",
                hint=OTHER_PROTOCOL,
            ) from e

    def _begin_with(self, arrived_ns: int, incoming: Incoming) -> None:
        if isinstance(incoming, Fault) and incoming.fatal:
            refusal = printable(incoming.error, MOST_SENTENCE)
            refused = "the agent refused: " if incoming.error_kind == "agent.refused" else ""
            raise AgentError(incoming.error_kind, f"{refused}{refusal}")
        if isinstance(incoming, Unreadable):
            raise _cannot_begin(incoming)
        if not isinstance(incoming, Ready):
            self._keep(arrived_ns, incoming)

    async def clock_offset(self) -> OffsetRecord:
        """Compare clocks; `offset_ns` is None if the agent does not answer pings.

        Over a line, the time in it is left out.

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

    def _keep(self, arrived_ns: int, incoming: Incoming) -> None:
        self._early.append((arrived_ns, incoming))
        self._early_bytes += incoming.pcm.nbytes if isinstance(incoming, AudioChunk) else 0
        if len(self._early) > MOST_EARLY or self._early_bytes > MOST_EARLY_BYTES:
            raise AgentError(
                "agent.too_much",
                f"the agent sent {len(self._early):,} messages and {self._early_bytes:,} bytes of "
                "audio before the conversation began: it does not stop",
            )

    async def _ping(self, number: int) -> tuple[int, int] | None:
        """Return the round trip and the clock offset of one exchange, ns."""
        if not self._session.ping(number):
            return None
        asked_ns = self._clock.now_ns()
        await self.send_waiting()
        try:
            async with asyncio.timeout(self._ping_wait_s):
                while True:
                    arrived_ns, said = await self.next()
                    pong = None
                    for incoming in said:
                        if isinstance(incoming, Pong) and incoming.ping == number:
                            pong = incoming
                        else:
                            self._keep(arrived_ns, incoming)
                    if pong is not None:
                        asked_ns, arrived_ns = self._at_the_agent(asked_ns, arrived_ns)
                        midpoint_ns = (asked_ns + arrived_ns) // 2
                        return arrived_ns - asked_ns, pong.agent_ns - midpoint_ns
        except TimeoutError:
            return None

    @property
    def _ping_wait_s(self) -> float:
        if self.crossings is None:
            return PING_WAIT_S
        return LINE_WAIT_S + LINE_ROUND_TRIPS * self.crossings.both_ms / 1000

    def _at_the_agent(self, asked_ns: int, arrived_ns: int) -> tuple[int, int]:
        """Return when a ping came out of the line, and when its answer entered it."""
        if self.crossings is None:
            return asked_ns, arrived_ns
        left_ns = self.crossings.arrived_ns("up", asked_ns)
        came_ns = self.crossings.entered_ns("down", arrived_ns)
        return left_ns or asked_ns, came_ns or arrived_ns


@asynccontextmanager
async def open_line(
    url: str,
    session: Session,
    clock: Clock,
    *,
    headers: Mapping[str, str] | None = None,
    subprotocols: Sequence[str] = (),
    shown: str = "",
    key_env: str = "",
    timeout_s: float = OPEN_TIMEOUT_S,
    ping_s: float = 0.0,
    line: LineSpec | None = None,
    call: str = "",
) -> AsyncIterator[Line]:
    """Connect and do the handshake, each within `timeout_s`; `session` is a new one.

    All that is sent and received crosses `line`, if there is one, as it is for this `call`.
    `shown` is the URL for messages, without its secrets. `key_env` is the variable that holds the
    service's key; the error of a refusal names it.

    Raises:
        InputError: the URL is not a WebSocket's.
        AgentError: nothing listens there, what listens is no WebSocket, or the handshake failed.
    """
    request = Request(
        url, headers or {}, subprotocols, timeout_s, shown or url, key_env, ping_s, line, call
    )
    socket = await connect(request, clock)
    opened = Line(socket, session, clock)
    try:
        await opened.handshake(timeout_s)
        yield opened
    finally:
        await _leave(opened, socket)


@asynccontextmanager
async def open_call(
    request: Request, session: Session, settings: Any, clock: Clock
) -> AsyncIterator[Line]:
    """Make a call over WebRTC and do the handshake; `session` is a new one.

    Raises:
        AgentError: nothing listens there, it takes no such calls, it cannot be reached by UDP, or
            the handshake failed.
    """
    from turngap.caller.rtc.signalling import calling  # aiortc is in an extra

    async with calling(request, settings, clock) as peer:
        line = Line(peer, session, clock)
        try:
            await line.handshake(request.timeout_s)
            yield line
        finally:
            await _say_goodbye(line)


async def _say_goodbye(line: Line) -> None:
    """Send the dialect's goodbye; a peer that does not read would delay it for ever."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await line.hang_up()


async def _leave(line: Line, socket: Socket) -> None:
    """Say goodbye and close the socket, whatever the peer does."""
    try:
        await _say_goodbye(line)
    finally:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await socket.close()
        except TimeoutError:
            socket.transport.abort()
            await socket.wait_closed()
        finally:
            await socket.gone()


def failed_on(what: str, error: Exception) -> str:
    """Build a turn's message for an error in turngap while it read the agent's data."""
    said = f"{type(error).__name__}: {printable(str(error), 200)}"
    return f"turngap itself failed to {what} ({said}); please report it"


def _cannot_begin(message: Unreadable) -> AgentError:
    if message.unplayable:
        return AgentError(
            "agent.audio",
            f"the agent's audio cannot be played: {message.why}",
            hint="send mono audio in this dialect's format; PCM16 has 8,000 to 192,000 Hz",
        )
    return AgentError(
        "agent.other_protocol",
        f"the peer cannot be understood: {message.why}",
        hint=f"{OTHER_PROTOCOL}; `turngap dialects` lists what it speaks",
    )


def _why_closed(error: ConnectionClosed) -> str:
    if isinstance(error.__cause__, LineEndedError):
        return str(error.__cause__)
    for frame, by in ((error.rcvd, "agent"), (error.sent, "caller")):
        if frame is not None:
            reason = f" ({printable(frame.reason)})" if frame.reason else ""
            return f"closed by the {by} with code {frame.code}{reason}"
    return "without a closing handshake"
