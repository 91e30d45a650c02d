"""The socket between a client and the agent's pipeline: what passes it cannot hurt the agent.

A client's messages are checked before pipecat sees them, one at a time and at a bounded pace. What
is outside the limits closes the connection with a code and a reason.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from loguru import logger
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from turngap.agent import limits as of
from turngap.agent.limits import TEXT_CHARS, HangUpError, Limits, Meter, Throttle
from turngap.agent.protocol import is_speech, take
from turngap.core.audio import Pcm
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import printable

# A WebSocket's control frame holds 125 bytes, two of them the code.
REASON_BYTES = 123

# How often a guard looks at the time.
WATCH_MS = 500.0

# How long the pipeline may take to come down once its client is gone; then it is cancelled. It
# takes 25 ms, and pipecat itself waits 20 s for a part that does not answer.
COMES_DOWN_S = 30.0

# How long a cancelled pipeline may take, and a session before another takes its conversation over.
TAKE_OVER_S = 3.0

# Closing or writing raises these when the client leaves at the same moment.
GONE = (RuntimeError, OSError, WebSocketDisconnect)


async def close(websocket: WebSocket, code: int, reason: str) -> None:
    """Close a WebSocket with as much of a readable reason as its frame holds."""
    fits = printable(reason).encode()[:REASON_BYTES].decode(errors="ignore")
    await websocket.close(code, fits)


class _Socket(WebSocket):
    """A WebSocket that may be closed twice: by its guard and by the pipeline."""

    async def close(self, code: int = of.CODE_DONE, reason: str | None = None) -> None:
        if self.application_state != WebSocketState.DISCONNECTED:
            await super().close(code, reason)


class Guard:
    """One accepted WebSocket and the pipeline behind it.

    Whoever records a conversation derives from it: `heard`, `asked` and `sent` see what passes.

    Attributes:
        ended: why the server closed the socket, as code and words; None if it did not.
        left_code: the client's closing code, once it has left.
        spoken_to: whether the client has sent a message.
    """

    def __init__(
        self,
        limits: Limits,
        clock: Clock,
        in_rate: int,
    ) -> None:
        now_ns = clock.now_ns()
        self.ended: tuple[int, str] | None = None
        self.left_code: int | None = None
        self.limits = limits
        self.clock = clock
        self._in_rate = in_rate
        self._throttle = Throttle(limits)
        self._audio = Meter(limits.audio_rate, limits.burst_s, now_ns)
        self._asks = Meter(limits.asks_per_s, limits.burst_s, now_ns)
        self._begun_ns = self._active_ns = now_ns
        # Since when a message has been waited for; None while the agent is busy with one.
        self._waiting_ns: int | None = None
        self.spoken_to = False
        self._gone, self._down = asyncio.Event(), asyncio.Event()

    async def run(
        self,
        assembly: Any,
        scope: Scope,
        receive: Receive,
        send: Send,
        memory: Any = None,
        *,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve the client until it leaves or is closed, and everything has come down.

        `leave` is called as soon as the client is gone.
        """
        self._receive, self._send = receive, send
        self._socket = _Socket(scope, self._checked_receive, self._checked_send)
        self._socket.client_state = self._socket.application_state = WebSocketState.CONNECTED
        talking = asyncio.create_task(self._converse(assembly, self._socket, memory))
        watching = asyncio.create_task(self._watch())
        gone = asyncio.create_task(self._gone.wait())
        try:
            await asyncio.wait({talking, gone}, return_when=asyncio.FIRST_COMPLETED)
            leave()
            await asyncio.wait({talking}, timeout=COMES_DOWN_S)
            if not talking.done():
                logger.error(f"a conversation did not come down in {COMES_DOWN_S:g} s: cancelled")
            elif error := _error_of(talking):
                await self._failed(error)
        finally:
            for task in (talking, watching, gone):
                task.cancel()
            await asyncio.wait({talking}, timeout=TAKE_OVER_S)
            await self._come_down()
            await asyncio.gather(watching, gone, return_exceptions=True)
            self._down.set()

    async def tell(self, data: bytes) -> None:
        """Send the client a message of the server's own, if it is still there."""
        with suppress(*GONE):
            await self._send({"type": "websocket.send", "bytes": data})

    async def end(self, code: int, reason: str) -> None:
        """Close the connection, unless that has been done."""
        # An error's words may name what was reached, with its key.
        reason = text_without_secrets(reason)
        if self.ended is None:
            self.ended = (code, reason)
            with suppress(*GONE):
                await close(self._socket, code, reason)
            self._gone.set()

    async def wait_down(self) -> None:
        """Wait until nothing of this runs, but not for ever."""
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKE_OVER_S):
                await self._down.wait()

    # What passes

    def heard(self, pcm: Pcm) -> None:
        """Audio of the client passes."""

    def asked(self, kind: str, data: Any) -> bool:
        """Take an RTVI client message; return whether the agent must not see it."""
        return False

    async def sent(self, data: bytes) -> None:
        """A message of the agent has been sent."""

    async def notice(self, kind: str, in_s: float, unless: str = "") -> None:
        """Tell the client that it will be closed soon."""

    def silence_s(self) -> float:
        """Return how long a client may send nothing; one that is gone answers no ping."""
        return math.inf if self.spoken_to else self.limits.first_s

    def active(self) -> None:
        """Note that somebody spoke or wrote."""
        self._active_ns = self.clock.now_ns()

    async def _converse(self, assembly: Any, socket: WebSocket, memory: Any) -> None:
        """Answer the client until it leaves."""
        from turngap.agent.session import converse  # and pipecat, which a relay does without

        await converse(assembly, socket, memory)

    async def _failed(self, error: BaseException) -> None:
        """End a connection whose conversation failed."""
        logger.opt(exception=error).error("a conversation failed")
        words = f"the agent failed: {type(error).__name__}: {error}"
        await self.end(of.CODE_FAILED, words)

    async def _come_down(self) -> None:
        """Wait for whatever else runs for the client."""

    # The client's messages

    async def _next(self) -> Message:
        """Return the client's next message, however long that takes."""
        self._waiting_ns = self.clock.now_ns()
        message = await self._receive()
        self._waiting_ns = None
        return message

    async def _checked_receive(self) -> Message:
        while True:
            message = await self._next()
            if message["type"] != "websocket.receive" or self.ended is not None:
                self.left_code = message.get("code")
                self._gone.set()
                return {"type": "websocket.disconnect", "code": self.left_code or of.CODE_DONE}
            try:
                if await self._passes(message):
                    return message
            except HangUpError as e:
                await self.end(e.code, e.reason)
            except Exception as e:
                logger.opt(exception=e).error("a message could not be taken")
                await self.end(of.CODE_FAILED, f"the server failed: {type(e).__name__}: {e}")

    async def _passes(self, message: Message) -> bool:
        """Check a message, and wait until its turn has come; return whether the agent gets it."""
        now_ns = self.clock.now_ns()
        self.spoken_to = True
        size, most = (
            len(message.get("bytes") or message.get("text") or b""),
            self.limits.message_bytes,
        )
        if size > most:
            raise HangUpError(
                of.CODE_TOO_BIG, f"a message has {size} bytes, and {most} are allowed"
            )
        taken = take(message, self._in_rate)
        if (due_ns := self._throttle.next_ns(taken.audio_s, now_ns)) > now_ns:
            await self.clock.sleep_until_ns(due_ns)
        if taken.audio_s and not self._audio.take(taken.audio_s, self.clock.now_ns()):
            raise HangUpError(of.CODE_TOO_FAST, "audio came faster than real time")
        if taken.pcm is not None:
            self.heard(taken.pcm)
        if taken.answer is not None:
            await self.tell(taken.answer)
        if taken.asks is not None:
            self._ask(taken.asks)
        if taken.asked is not None:
            return not self.asked(*taken.asked)
        return taken.passes

    def _ask(self, text: str) -> None:
        """Count what makes the agent work, and what it would have to remember."""
        if len(text) > TEXT_CHARS:
            raise HangUpError(
                of.CODE_NOT_ALLOWED,
                f"a text has {len(text)} characters, and {TEXT_CHARS} are allowed",
            )
        if not self._asks.take(1, self.clock.now_ns()):
            most = self.limits.asks_per_s
            raise HangUpError(of.CODE_TOO_FAST, f"more than {most:g} typed turns a second")
        self.active()

    # The agent's messages

    async def _checked_send(self, message: Message) -> None:
        if message["type"] != "websocket.send":
            await self._sent(message)
            return
        if self._gone.is_set() or not await self._sent(message):
            return
        if is_speech(message["bytes"]):
            self.active()
        await self.sent(message["bytes"])

    async def _sent(self, message: Message) -> bool:
        try:
            await self._send(message)
        except OSError:  # the client has left, which its next message says, too
            return False
        return True

    # Time

    async def _watch(self) -> None:
        """End a connection that is quiet, has vanished, or lasts too long."""
        limits, clock = self.limits, self.clock
        looks = 0
        while self.ended is None:
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(WATCH_MS))
            now_ns = clock.now_ns()
            silent_s = self.silence_s()
            waited_ns = 0 if self._waiting_ns is None else now_ns - self._waiting_ns
            # Twice, because after a moment in which nothing ran here, a message may be there.
            looks = looks + 1 if waited_ns > silent_s * NS_PER_S else 0
            idle_s = (now_ns - self._active_ns) / NS_PER_S
            length_s = (now_ns - self._begun_ns) / NS_PER_S
            if looks > 1:
                await self.end(of.CODE_IDLE, f"no message came for {silent_s:g} seconds")
            elif idle_s > limits.idle_s:
                await self.end(of.CODE_IDLE, f"nobody spoke for {limits.idle_s / 60:g} minutes")
            elif length_s > limits.session_s:
                most = f"{limits.session_s / 60:g} minutes"
                await self.end(of.CODE_TOO_LONG, f"a conversation may last at most {most}")
            elif idle_s > limits.idle_s - limits.warn_s:
                left_s = limits.idle_s - idle_s
                await self.notice("idle_soon", left_s, " unless somebody speaks")
            elif length_s > limits.session_s - limits.warn_s:
                await self.notice("session_soon", limits.session_s - length_s)


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    """Return what made a finished task fail, if it did; it may also have cancelled itself."""
    return asyncio.CancelledError("from inside") if task.cancelled() else task.exception()
