"""The socket of a live conversation, which records both sides while the agent talks.

It taps messages where they enter and leave the server. So the recording has what was on the line,
and the agent's pipeline is the same as for any other caller.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from loguru import logger
from starlette.websockets import WebSocket

from turngap.agent.access import CODE_FAILED, TEXT_CHARS, Limits
from turngap.agent.guard import Asgi, Guard
from turngap.caller import said
from turngap.caller.dialects.pipecat import PipecatSession, payload_of
from turngap.caller.dialects.rtvi import rtvi
from turngap.core.audio import Pcm
from turngap.core.clock import NS_PER_S, ms_to_ns
from turngap.core.errors import InputError, TurngapError
from turngap.core.frames import Frame, message_frame
from turngap.core.messages import SAY, refusal
from turngap.live import wire
from turngap.live.answering import Answering
from turngap.live.connection import SETTLE_MS
from turngap.live.keeping import Held

# Seconds of turns that a page may report in a second: its clock and the server's may differ.
TURNS_RATE = 1.25


class LiveSession(Guard):
    """The connection of a conversation.

    Args:
        answering: what answers at the page.
        about: returns what the page learns about the agent when it is ready.
    """

    def __init__(
        self,
        held: Held,
        answering: Answering,
        *,
        limits: Limits,
        about: Callable[[], dict[str, Any]],
    ) -> None:
        self._connection = held.conversation.connection
        clock = answering.clock
        super().__init__(limits, clock, self._connection.in_rate)
        self._answering = answering
        # Reads what the agent says, as a caller does: the same text may come by several names.
        self._read = PipecatSession()
        self._held = held
        self._about = about
        self._turns_due_ns = 0.0  # when the turns that were reported would be over
        self._noticed = False
        self._in_order = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._taken = {wire.TURN: self._turn, wire.PLAYED: self._played}
        self._taken[wire.CALIBRATED] = self._calibrated

    async def talk(self, asgi: Asgi) -> None:
        await self.run(self._converse, asgi)

    async def _converse(self, socket: WebSocket) -> None:
        try:
            await self._answering.converse(socket, self._held)
        finally:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def failed(self, error: BaseException) -> None:
        if not isinstance(error, TurngapError):
            await super().failed(error)
            return
        # A close has no room for all of it.
        await self._told({"turngap": "failed", "message": error.message, "hint": error.hint})
        await self.end(CODE_FAILED, error.message)

    def heard(self, pcm: Pcm) -> None:
        self._connection.hear(pcm)

    def asked(self, kind: str, data: Any) -> bool:
        if kind == SAY and isinstance(data, dict):
            self._typed(data)
        if kind not in self._taken:
            return False
        try:
            self._taken[kind](data)
        except TurngapError as e:
            self._tell(refusal(kind, e))
        return kind not in self._answering.seen

    def silence_s(self) -> float:
        return self.limits.vanished_s if self.spoken_to else self.limits.request_s

    def active(self) -> None:
        super().active()
        self._noticed = False

    def _typed(self, details: dict[str, Any]) -> None:
        text, turn = details.get("text"), details.get("turn")
        if isinstance(text, str) and isinstance(turn, int):
            self._held.conversation.typed(turn, text[:TEXT_CHARS])
            self.active()

    def _turn(self, data: Any) -> None:
        report = wire.parsed(wire.TurnReport, data)
        now_ns = self.clock.now_ns()
        length_ns = max(wire.LEAST_TURN_S * NS_PER_S, report.ended_ns - report.start_ns)
        due_ns = max(self._turns_due_ns, now_ns) + length_ns / TURNS_RATE
        if due_ns > now_ns + wire.MOST_TURN_NS:
            raise InputError("live.turn_length", "the turns are longer than the conversation")
        self._turns_due_ns = due_ns
        self.active()
        report = self._widened(report)
        wait_ms = SETTLE_MS if report.ended == "interrupted" else 0.0
        self._in_background(self._report(report, now_ns + ms_to_ns(wait_ms)))

    def _widened(self, report: wire.TurnReport) -> wire.TurnReport:
        """Return a report with what the relay to a foreign agent adds to it, if there is one."""
        held, offset = self._held, report.offset
        if (relay_ms := held.delays.ms) is None:
            return report
        bound = offset.model_copy(update={"bound_ns": offset.bound_ns + held.line_bound_ns})
        view = report.view | {"relay_ms": relay_ms}
        return report.model_copy(update={"offset": bound, "view": view})

    def _played(self, data: Any) -> None:
        self._held.conversation.sounded(wire.parsed(wire.Played, data))

    def _calibrated(self, data: Any) -> None:
        calibrated = wire.parsed(wire.Calibrated, data)
        self._held.settings["page_loopback"] = calibrated.model_dump()

    async def _report(self, report: wire.TurnReport, due_ns: int) -> None:
        """Keep a reported turn, after those before it and when the agent's marks are in."""
        async with self._in_order:
            await self.clock.sleep_until_ns(due_ns)
            try:
                turn = self._held.conversation.report(report)
                record = await self._held.keep(turn, report.offset.record())
                path, figures = self._held.path, await self._held.figures()
                run = path.name if path else ""
                relay_ms = report.view.get("relay_ms")
                await self._told(wire.kept_message(record, run, figures, relay_ms))
            except InputError as e:
                logger.warning(e.message)
                await self._told(refusal(wire.TURN, e))

    async def sent(self, data: bytes) -> None:
        frame = Frame.FromString(data)
        if frame.WhichOneof("frame") == "audio":
            pcm: Pcm = np.frombuffer(frame.audio.audio, dtype="<i2")
            self._connection.send(pcm, frame.audio.sample_rate)
            return
        if frame.WhichOneof("frame") != "message":
            return
        own = payload_of(frame).get("data")
        for fact in self._read.receive_data(data):
            match fact:
                case said.Ready():
                    await self._told({"turngap": "session", "id": self._held.id, **self._about()})
                case said.Fault() | said.Transcript() | said.ReplyText():
                    self._connection.note(self.clock.now_ns(), fact)
                case said.Marks(turn):
                    if isinstance(own, dict) and isinstance(own.get("llm"), str):
                        self._connection.llm_of[turn] = own["llm"]
                    self._connection.note(self.clock.now_ns(), fact)
                case _:
                    pass
        self._switched(own)

    def _switched(self, data: Any) -> None:
        if not isinstance(data, dict) or data.get("turngap") != "llm":
            return
        at_ns = self.clock.now_ns()
        if data.get("switched"):
            self.active()
            at_ns = int(data["switched"]["at_ns"])
            self._connection.switched_ns.append(at_ns)
        self._connection.llms.append((at_ns, data["current"]))

    async def notice(self, in_s: float) -> None:
        if not self._noticed:
            self._noticed = True
            message = f"The server hangs up in {in_s:.0f} s unless somebody speaks"
            notice = {"kind": "idle_soon", "in_s": round(in_s), "message": message}
            await self._told({"turngap": "notice", **notice})

    def _tell(self, data: dict[str, Any]) -> None:
        self._in_background(self._told(data))

    async def _told(self, data: dict[str, Any]) -> None:
        if self.ended is None:
            await self.tell(message_frame(rtvi("server-message", data)))

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
