"""The socket between a client and the agent's pipeline: what passes it cannot hurt the agent.

A client's messages are checked before pipecat sees them. What is outside the limits closes the
connection with a code and a reason.
"""

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from loguru import logger
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from turngap.agent import limits as of
from turngap.agent.limits import HangUpError, Limits, Meter
from turngap.agent.protocol import is_speech, take
from turngap.core.audio import Pcm
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import printable

# A WebSocket's control frame holds 125 bytes, two of them the code.
REASON_BYTES = 123
# How often a guard looks at the time.
WATCH_MS = 500.0
# How long a pipeline may take to come down once its client is gone, which takes 25 ms, and how long
# after it was cancelled; pipecat itself waits 20 s for a part that does not answer.
COMES_DOWN_S, CANCELLED_S = 30.0, 3.0
Asgi = tuple[Scope, Receive, Send]

# Sending raises these when the client leaves at the same moment.
GONE = (RuntimeError, OSError)


async def close(send: Send, code: int, reason: str) -> None:
    """Close a WebSocket with as much of a readable reason as its frame holds."""
    fits = printable(reason).encode()[:REASON_BYTES].decode(errors="ignore")
    await send({"type": "websocket.close", "code": code, "reason": fits})


class Guard:
    """One accepted WebSocket and the pipeline behind it.

    A recording derives from it: `heard`, `asked` and `sent` see what passes.

    Attributes:
        ended: why the server closed the socket, as code and words; None if it did not.
        left_code: the client's closing code, once it has left.
        spoken_to: whether the client has sent a message.
    """

    def __init__(self, limits: Limits, clock: Clock, in_rate: int) -> None:
        self.limits = limits
        self.clock = clock
        self.ended: tuple[int, str] | None = None
        self.left_code: int | None = None
        self.spoken_to = False
        self._in_rate = in_rate
        self._begun_ns = self._active_ns = now_ns = clock.now_ns()
        self._audio = Meter(limits.audio_rate, limits.burst_s, now_ns)
        self._asks = Meter(limits.asks_per_s, limits.burst_s, now_ns)
        # Since when a message has been waited for; None while the agent is busy with one.
        self._waiting_ns: int | None = None
        self._gone = asyncio.Event()

    async def run(
        self,
        converse: Callable[[WebSocket], Any],
        asgi: Asgi,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        """Let `converse` serve the client until it leaves or is closed, and has come down.

        `leave` is called as soon as the client is gone.
        """
        scope, self._receive, self._send = asgi
        socket = WebSocket(scope, self._checked_receive, self._checked_send)
        socket.client_state = socket.application_state = WebSocketState.CONNECTED
        works = converse(socket), self._gone.wait(), self._watch()
        tasks = talking, gone, _ = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait({talking, gone}, return_when=asyncio.FIRST_COMPLETED)
            leave()
            await asyncio.wait({talking}, timeout=COMES_DOWN_S)
            if not talking.done():
                logger.error(f"a conversation did not come down in {COMES_DOWN_S:g} s: cancelled")
            elif talking.cancelled():
                await self.failed(asyncio.CancelledError("from inside"))
            elif error := talking.exception():
                await self.failed(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=CANCELLED_S)

    async def tell(self, data: bytes) -> None:
        """Send the client a message of the server's own, if it is still there."""
        with suppress(*GONE):
            await self._send({"type": "websocket.send", "bytes": data})

    async def end(self, code: int, reason: str) -> None:
        """Close the connection, unless that has been done."""
        if self.ended is None:
            # An error's words may name what was reached, with its key.
            self.ended = (code, text_without_secrets(reason))
            with suppress(*GONE):
                await close(self._send, *self.ended)
            self._gone.set()

    async def failed(self, error: BaseException) -> None:
        """End a connection whose conversation failed."""
        logger.opt(exception=error).error("a conversation failed")
        await self.end(of.CODE_FAILED, f"the agent failed: {type(error).__name__}: {error}")

    def heard(self, pcm: Pcm) -> None:
        """Audio of the client passes."""

    def asked(self, kind: str, data: Any) -> bool:
        """Take an RTVI client message; return whether the agent must not see it."""
        return False

    async def sent(self, data: bytes) -> None:
        """Note that a message of the agent was sent."""

    async def notice(self, kind: str, in_s: float, unless: str = "") -> None:
        """Tell the client that it will be closed soon."""

    def silence_s(self) -> float:
        """Return how long a client may send nothing; one that is gone answers no ping."""
        return math.inf if self.spoken_to else self.limits.first_s

    def active(self) -> None:
        """Note that somebody spoke or wrote."""
        self._active_ns = self.clock.now_ns()

    async def _checked_receive(self) -> Message:
        while True:
            self._waiting_ns = self.clock.now_ns()
            message = await self._receive()
            self._waiting_ns = None
            if message["type"] != "websocket.receive" or self.ended is not None:
                self.left_code = message.get("code")
                self._gone.set()
                return {"type": "websocket.disconnect", "code": self.left_code or of.CODE_DONE}
            try:
                if await self._passes(message):
                    return message
            except HangUpError as e:
                await self.end(*e.args)
            except Exception as e:
                await self.failed(e)

    async def _passes(self, message: Message) -> bool:
        """Check a message; return whether the agent gets it."""
        self.spoken_to = True
        now_ns = self.clock.now_ns()
        taken = take(message, self._in_rate)
        if taken.asks:
            self.active()
            if not self._asks.take(1, now_ns):
                most = self.limits.asks_per_s
                raise HangUpError(of.CODE_TOO_FAST, f"more than {most:g} typed turns a second")
        if taken.pcm is not None:
            if not self._audio.take(len(taken.pcm) / self._in_rate, now_ns):
                raise HangUpError(of.CODE_TOO_FAST, "audio came faster than real time")
            self.heard(taken.pcm)
        if taken.answer is not None:
            await self.tell(taken.answer)
        if taken.asked is not None:
            return not self.asked(*taken.asked)
        return taken.passes

    async def _checked_send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        with suppress(OSError):  # the client has left, which its next message says, too
            await self._send(message)
            if data := message.get("bytes"):
                if is_speech(data):
                    self.active()
                await self.sent(data)

    async def _watch(self) -> None:
        """End a connection that is quiet, has vanished, or lasts too long."""
        limits, looks = self.limits, 0
        while self.ended is None:
            await self.clock.sleep_until_ns(self.clock.now_ns() + ms_to_ns(WATCH_MS))
            now_ns, silent_s = self.clock.now_ns(), self.silence_s()
            waited_ns = 0 if self._waiting_ns is None else now_ns - self._waiting_ns
            # Twice, because after a moment in which nothing ran here, a message may be there.
            looks = looks + 1 if waited_ns > silent_s * NS_PER_S else 0
            idle_s = limits.idle_s - (now_ns - self._active_ns) / NS_PER_S
            left_s = limits.session_s - (now_ns - self._begun_ns) / NS_PER_S
            if looks > 1:
                await self.end(of.CODE_IDLE, f"no message came for {silent_s:g} seconds")
            elif idle_s < 0:
                await self.end(of.CODE_IDLE, f"nobody spoke for {limits.idle_s / 60:g} minutes")
            elif left_s < 0:
                most = f"{limits.session_s / 60:g} minutes"
                await self.end(of.CODE_TOO_LONG, f"a conversation may last at most {most}")
            elif idle_s < limits.warn_s:
                await self.notice("idle_soon", idle_s, " unless somebody speaks")
            elif left_s < limits.warn_s:
                await self.notice("session_soon", left_s)
