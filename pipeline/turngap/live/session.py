"""One socket of a live conversation, which records both sides while the agent talks.

It taps messages where they enter and leave the server. So the recording has what was on the line,
and the agent's pipeline is the same as for any other caller.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from loguru import logger
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from turngap.agent.controls import refusal
from turngap.agent.server import close
from turngap.agent.session import Assembly, converse
from turngap.caller import dialect as said
from turngap.caller.dialect import NotSpokenError
from turngap.caller.pipecat import PipecatDialect, message_frame, parse, payload_of, rtvi
from turngap.core.audio import Pcm
from turngap.core.clock import NS_PER_S, Clock, ms_to_ns
from turngap.core.errors import InputError, TurngapError
from turngap.core.messages import SAY
from turngap.live import wire
from turngap.live.connection import SETTLE_MS, Connection
from turngap.live.held import Held, Limits

CODE_DONE = 1000
CODE_TOO_BIG = 1009
CODE_FAILED = 1011
CODE_OTHER_PROTOCOL = 4400
CODE_IDLE = 4408
CODE_ELSEWHERE = 4409
CODE_TOO_LONG = 4410
CODE_TOO_FAST = 4429

# How often a session checks that it is still alive.
WATCH_MS = 500.0

# How long a session may take to shut down before another takes its conversation over.
COMES_DOWN_S = 3.0

# Closing or writing raises these when the page leaves at the same moment.
_GONE = (RuntimeError, OSError, WebSocketDisconnect)

_DIALECT = PipecatDialect()


class _Socket(WebSocket):
    """A WebSocket that may be closed twice: by its session and by the pipeline."""

    async def close(self, code: int = 1000, reason: str | None = None) -> None:
        if self.application_state != WebSocketState.DISCONNECTED:
            await super().close(code, reason)


class LiveSession:
    """The current connection of a conversation.

    Args:
        about: returns what the page learns about the agent when it is ready.

    Attributes:
        ended: why the server closed the socket, as code and words; None if it did not.
    """

    def __init__(
        self, held: Held, *, limits: Limits, clock: Clock, about: Callable[[], dict[str, Any]]
    ) -> None:
        now_ns = clock.now_ns()
        self.ended: tuple[int, str] | None = None
        self.left_code: int | None = None
        self._held = held
        self._limits = limits
        self._clock = clock
        self._about = about
        self._connection: Connection = held.conversation.connect()
        self._messages = Meter(limits.messages_per_s, limits.burst_s, now_ns)
        self._audio = Meter(limits.audio_rate, limits.burst_s, now_ns)
        self._turns = Meter(limits.audio_rate, wire.MOST_TURN_NS / NS_PER_S, now_ns)
        self._message_ns = self._active_ns = now_ns
        self._noticed: set[str] = set()
        self._over, self._down = asyncio.Event(), asyncio.Event()
        self._in_order = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken = {wire.TURN: self._turn, wire.PLAYED: self._played}
        self._taken[wire.CALIBRATED] = self._calibrated

    async def run(self, assembly: Assembly, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._socket = _Socket(scope, self._tapped_receive, self._tapped_send)
        self._socket.client_state = self._socket.application_state = WebSocketState.CONNECTED
        watching = asyncio.create_task(self._watch())
        try:
            await converse(assembly, self._socket, self._held.memory)
        except Exception as e:
            logger.opt(exception=e).error("a live conversation failed")
            await self.end(CODE_FAILED, f"the agent failed: {type(e).__name__}: {e}")
        finally:
            watching.cancel()
            await asyncio.gather(watching, *self._tasks, return_exceptions=True)
            self._down.set()

    async def end(self, code: int, reason: str) -> None:
        if self.ended is None:
            self.ended = (code, reason)
            self._over.set()
            with suppress(*_GONE):
                await close(self._socket, code, reason)

    async def give_way(self, reason: str) -> None:
        """End because the conversation continues elsewhere, and wait until nothing runs."""
        await self.end(CODE_ELSEWHERE, reason)
        with suppress(TimeoutError):
            async with asyncio.timeout(COMES_DOWN_S):
                await self._down.wait()

    async def _tapped_receive(self) -> Message:
        while True:
            message = await self._next()
            if message["type"] != "websocket.receive":
                self.left_code = message.get("code")
                return message
            try:
                if not self._take(message):
                    return message
            except _EndError as e:
                await self.end(e.code, e.reason)

    async def _next(self) -> Message:
        """Return the next message of the page, or a disconnect if the session is over."""
        over = asyncio.create_task(self._over.wait())
        coming = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait({over, coming}, return_when=asyncio.FIRST_COMPLETED)
            if self.ended is not None:
                return {"type": "websocket.disconnect", "code": self.ended[0]}
            return coming.result()
        finally:
            over.cancel()
            coming.cancel()

    async def _tapped_send(self, message: Message) -> None:
        await self._send(message)
        if message["type"] == "websocket.send" and message.get("bytes") is not None:
            await self._sent(message["bytes"])

    def _take(self, message: Message) -> bool:
        """Count and note a message of the page; return whether it is for us, not for the agent."""
        self._message_ns = now_ns = self._clock.now_ns()
        data = message.get("bytes")
        if data is None:
            raise _EndError(CODE_OTHER_PROTOCOL, "expected binary messages")
        if len(data) > self._limits.message_bytes:
            most = self._limits.message_bytes
            raise _EndError(
                CODE_TOO_BIG, f"a message has {len(data)} bytes, and {most} are allowed"
            )
        if not self._messages.take(1, now_ns):
            raise _EndError(CODE_TOO_FAST, "too many messages a second")
        try:
            frame = parse(data)
            if frame.WhichOneof("frame") == "audio":
                self._hear(frame.audio, now_ns)
                return False
            if frame.WhichOneof("frame") == "message":
                return self._asked(payload_of(frame))
        except NotSpokenError as e:
            raise _EndError(CODE_OTHER_PROTOCOL, f"expected pipecat's protobuf, got {e}") from e
        return False

    def _hear(self, audio: Any, now_ns: int) -> None:
        rate = self._connection.in_rate
        if audio.sample_rate != rate or audio.num_channels != 1 or len(audio.audio) % 2:
            raise _EndError(
                CODE_OTHER_PROTOCOL,
                f"expected PCM16 mono at {rate} Hz, got {audio.num_channels} channels at "
                f"{audio.sample_rate} Hz",
            )
        pcm: Pcm = np.frombuffer(audio.audio, dtype="<i2")
        if not self._audio.take(len(pcm) / rate, now_ns):
            raise _EndError(CODE_TOO_FAST, "audio came faster than real time")
        self._connection.hear(pcm)

    def _asked(self, payload: dict[str, Any]) -> bool:
        data = payload.get("data")
        if payload.get("type") != "client-message" or not isinstance(data, dict):
            return False
        kind, details = data.get("t"), data.get("d")
        if kind == SAY and isinstance(details, dict):
            self._typed(details)
        if kind not in self._taken:
            return False
        try:
            self._taken[kind](details)
        except TurngapError as e:
            self._tell(refusal(str(kind), e))
        return True

    def _typed(self, details: dict[str, Any]) -> None:
        text, turn = details.get("text"), details.get("turn")
        if isinstance(text, str) and isinstance(turn, int):
            self._held.conversation.typed(turn, text[: self._limits.text_chars])
            self._active()

    def _turn(self, data: Any) -> None:
        report = wire.parsed(wire.TurnReport, data)
        length_s = (report.ended_ns - report.start_ns) / NS_PER_S
        if not self._turns.take(length_s, self._clock.now_ns()):
            raise InputError("live.turn_length", "the turns are longer than the conversation")
        self._active()
        wait_ms = SETTLE_MS if report.ended == "interrupted" else 0.0
        self._in_background(self._report(report, self._clock.now_ns() + ms_to_ns(wait_ms)))

    def _played(self, data: Any) -> None:
        self._held.conversation.sounded(wire.parsed(wire.Played, data))

    def _calibrated(self, data: Any) -> None:
        calibrated = wire.parsed(wire.Calibrated, data)
        self._held.run.settings["page_loopback"] = calibrated.model_dump()

    async def _report(self, report: wire.TurnReport, due_ns: int) -> None:
        """Keep a reported turn, after those before it and when the agent's marks are in."""
        async with self._in_order:
            await self._clock.sleep_until_ns(due_ns)
            try:
                for turn in self._held.conversation.report(report):
                    record = await self._held.keep(turn, report.offset.record())
                    path, figures = self._held.run.path, await self._held.figures()
                    await self._told(wire.kept_message(record, path.name if path else "", figures))
            except InputError as e:
                logger.warning(e.message)
                await self._told(refusal(wire.TURN, e))

    async def _sent(self, data: bytes) -> None:
        frame = parse(data)
        if frame.WhichOneof("frame") == "audio":
            pcm: Pcm = np.frombuffer(frame.audio.audio, dtype="<i2")
            self._connection.send(pcm, frame.audio.sample_rate)
            return
        if frame.WhichOneof("frame") != "message":
            return
        match _DIALECT.decode(data):
            case said.Ready():
                await self._told(self._session_message())
            case said.Fault() as fact:
                self._connection.note(self._clock.now_ns(), fact)
            case said.Transcript() | said.ReplyText() as fact:
                self._active()
                self._connection.note(self._clock.now_ns(), fact)
            case said.Marks(turn) as fact:
                own = payload_of(frame)["data"]
                if isinstance(own.get("llm"), str):
                    self._connection.llm_of[turn] = own["llm"]
                self._connection.note(self._clock.now_ns(), fact)
            case _:
                self._switched(payload_of(frame).get("data"))

    def _switched(self, data: Any) -> None:
        if not isinstance(data, dict) or data.get("turngap") != "llm":
            return
        at_ns = self._clock.now_ns()
        if data.get("switched"):
            self._active()
            at_ns = int(data["switched"]["at_ns"])
            self._connection.switched_ns.append(at_ns)
        self._connection.llms.append((at_ns, data["current"]))

    def _session_message(self) -> dict[str, Any]:
        held = self._held
        return wire.session_message(
            id_=held.id,
            connection=self._connection.number,
            turns=held.conversation.turns,
            **self._about(),
        )

    def _active(self) -> None:
        self._active_ns = self._clock.now_ns()
        self._noticed.discard("idle_soon")

    async def _watch(self) -> None:
        """End a session that is quiet, has vanished, or lasts too long."""
        limits, clock = self._limits, self._clock
        while self.ended is None:
            await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(WATCH_MS))
            now_ns = clock.now_ns()
            idle_s = (now_ns - self._active_ns) / NS_PER_S
            length_s = (now_ns - self._held.begun_ns) / NS_PER_S
            if now_ns - self._message_ns > limits.vanished_s * NS_PER_S:
                await self.end(CODE_IDLE, f"no message came for {limits.vanished_s:g} seconds")
            elif idle_s > limits.idle_s:
                await self.end(CODE_IDLE, f"nobody spoke for {limits.idle_s / 60:g} minutes")
            elif length_s > limits.session_s:
                most = f"{limits.session_s / 60:g} minutes"
                await self.end(CODE_TOO_LONG, f"a conversation may last at most {most}")
            elif idle_s > limits.idle_s - limits.warn_s:
                left_s = limits.idle_s - idle_s
                await self._notice("idle_soon", left_s, " unless somebody speaks")
            elif length_s > limits.session_s - limits.warn_s:
                await self._notice("session_soon", limits.session_s - length_s)

    async def _notice(self, kind: str, in_s: float, unless: str = "") -> None:
        if kind not in self._noticed:
            self._noticed.add(kind)
            message = f"The server hangs up in {in_s:.0f} s{unless}"
            notice = {"turngap": "notice", "kind": kind, "in_s": round(in_s), "message": message}
            await self._told(notice)

    def _tell(self, data: dict[str, Any]) -> None:
        self._in_background(self._told(data))

    async def _told(self, data: dict[str, Any]) -> None:
        if self.ended is None:
            with suppress(*_GONE):
                message = message_frame(rtvi("server-message", data))
                await self._send({"type": "websocket.send", "bytes": message})

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _EndError(Exception):
    """The page did something that ends the session."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Meter:
    """A token bucket: `rate` a second on average, and `rate * burst_s` at once."""

    def __init__(self, rate: float, burst_s: float, now_ns: int) -> None:
        self._rate = rate
        self._most = rate * burst_s
        self._left = self._most
        self._at_ns = now_ns

    def take(self, amount: float, now_ns: int) -> bool:
        gained = max(0, now_ns - self._at_ns) / NS_PER_S * self._rate
        self._left = min(self._most, self._left + gained)
        self._at_ns = now_ns
        if amount > self._left:
            return False
        self._left -= amount
        return True
