"""Talk in the terminal over a sound device and a line to any agent, and measure each turn.

The gap is read from the device's clock alone: from when the microphone took the person's last
sample to when the loudspeaker played the agent's first.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turngap.caller import dialect as said
from turngap.caller.line import Line
from turngap.caller.pipecat import (
    RTVI_LABEL,
    PipecatDialect,
    message_frame,
    parse,
    payload_of,
    rtvi,
)
from turngap.caller.stream import PACKET, RATE
from turngap.core.audio import Pcm, SpeechDetector, SpeechEnd, SpeechStart
from turngap.core.clock import Clock, ms_to_ns
from turngap.core.errors import AgentError, InputError, TurngapError
from turngap.core.messages import LLM, SAY
from turngap.core.results import OffsetRecord, Turn
from turngap.live.connection import SETTLE_MS
from turngap.live.conversation import LiveConversation
from turngap.live.finding import FoundTurn, TurnFinder
from turngap.live.handset import AdaptiveDetector, Decimator, DeviceClock, Handset, Noise, Swap
from turngap.live.keeping import LiveRun
from turngap.live.saving import save
from turngap.live.sound import DEVICE_RATE, Device
from turngap.live.wire import AgentStretch, Offset, TurnReport

TICK_MS = 20.0

# If two pieces of agent audio lie further apart than this, there was a hole between them.
HOLE_NS = ms_to_ns(40)

HELP = "type a line to send it as a turn · /llm NAME · /llms · /save NAME · /quit"

# Returns the next line from the keyboard; None at its end.
Commands = Callable[[], Awaitable[str | None]]


class TalkDialect(PipecatDialect):
    """The pipecat dialect, which also hands on turngap's own server messages."""

    def __init__(self) -> None:
        self.on_own: Callable[[dict[str, Any]], None] = lambda _: None

    def decode(self, message: said.Message) -> said.Incoming | None:
        frame = parse(message)
        if frame.WhichOneof("frame") == "message":
            payload = payload_of(frame)
            data = payload.get("data")
            if payload.get("label") == RTVI_LABEL and isinstance(data, dict) and "turngap" in data:
                self.on_own(data)
        return super().decode(message)


@dataclass(frozen=True, slots=True)
class Shown:
    """Shows a stored turn, or a remark, to the person. Called in the event loop."""

    turn: Callable[[Turn], None]
    line: Callable[[str], None]


class TerminalTalk:
    """One conversation in the terminal.

    Args:
        device: microphone and loudspeaker.
        run: where its turns are stored.
        name: used as the scenario's name.
    """

    def __init__(self, device: Device, run: LiveRun, name: str, clock: Clock, shown: Shown) -> None:
        self._device, self._run, self._clock, self._shown = device, run, clock, shown
        self._live = LiveConversation(name, RATE)
        self._connection = self._live.connect()
        self._finder = TurnFinder()
        self._device_clock = DeviceClock()
        self._mic, self._ear = AdaptiveDetector(), SpeechDetector(DEVICE_RATE)
        self._decimator = Decimator()
        self._unsent: Pcm = np.empty(0, dtype=np.int16)
        self._packets: asyncio.Queue[Pcm] = asyncio.Queue()
        self._swaps: asyncio.Queue[Swap] = asyncio.Queue()
        # When recent agent audio sounded and when it arrived: (at_ns, received_ns).
        self._sounded: deque[tuple[int, int]] = deque(maxlen=1000)
        self._agent_samples = self._played_samples = 0
        self._stall_ms = 0.0
        self._offset = OffsetRecord(offset_ns=None, bound_ns=None, n=0)
        self._number = 0
        self._offered: list[str] = []
        self._keeping: set[asyncio.Task[None]] = set()
        self._in_order = asyncio.Lock()

    async def run(self, line: Line, dialect: TalkDialect, commands: Commands) -> None:
        """Talk over an open line until `commands` ends, or says `/quit`.

        Raises:
            AgentError: the line was lost, or the device cannot be opened.
        """
        self._line = line
        dialect.on_own = self._on_own
        self._offset = await line.clock_offset()
        loop = asyncio.get_running_loop()

        def hand_over(swap: Swap) -> None:
            loop.call_soon_threadsafe(self._swaps.put_nowait, swap)

        self._handset = Handset(hand_over)
        self._device.start(self._handset.exchange)
        obeying = asyncio.create_task(self._obey(commands))
        others = [self._swap(), self._send(), self._tick(), line.receive(self._on_message)]
        tasks = [obeying, *map(asyncio.create_task, others)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._device.stop()
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            failure = next((o for o in outcomes if isinstance(o, Exception)), None)
            await self._end(failure)
        if failure is not None:
            raise failure

    async def _end(self, failure: Exception | None) -> None:
        ends = self._finder.lost if isinstance(failure, AgentError) else self._finder.finish
        self._found(ends(self._now_ns()))
        await asyncio.gather(*self._keeping)
        how = "quit" if failure is None else "failed"
        await asyncio.to_thread(self._run.finish, how, str(failure) if failure else None)

    # --- the device ---

    async def _swap(self) -> None:
        while True:
            self._take(await self._swaps.get())

    def _take(self, swap: Swap) -> None:
        block, clock = swap.block, self._device_clock
        clock.add(block, self._clock.now_ns())
        if block.glitch:
            self._stall_ms = max(self._stall_ms, len(block.mic) * 1000 / DEVICE_RATE)
        for sounded in swap.sounded:
            at_ns = clock.played_ns(self._played_samples + sounded.offset)
            self._connection.sounded(sounded.sample, sounded.samples, at_ns)
            self._sounded.append((at_ns, sounded.received_ns))
        self._played_samples += len(swap.played)
        self._hear(self._decimator.feed(block.mic))
        for event in self._mic.feed(block.mic):
            self._on_user(event, clock.heard_ns(event.sample))
        for event in self._ear.feed(swap.played):  # played audio has no room noise
            self._on_agent(event, clock.played_ns(event.sample))

    def _hear(self, pcm: Pcm) -> None:
        self._connection.hear(pcm)
        self._unsent = np.concatenate((self._unsent, pcm))
        while len(self._unsent) >= PACKET:
            self._packets.put_nowait(self._unsent[:PACKET])
            self._unsent = self._unsent[PACKET:]

    async def _send(self) -> None:
        while True:
            await self._line.send_audio(await self._packets.get())

    def _on_user(self, event: SpeechStart | SpeechEnd | Noise, at_ns: int) -> None:
        match event:
            case SpeechStart():
                self._found(self._finder.user_started(at_ns))
            case SpeechEnd():
                self._found(self._finder.user_stopped(at_ns))
            case Noise():
                self._finder.was_noise()

    def _on_agent(self, event: SpeechStart | SpeechEnd, at_ns: int) -> None:
        if isinstance(event, SpeechStart):
            self._found(self._finder.agent_started(self._stretch(at_ns)))
        else:
            self._found(self._finder.agent_stopped(at_ns))

    def _stretch(self, onset_ns: int) -> AgentStretch:
        """Describe the agent's speech that began at `onset_ns`."""
        since_ns, received_ns = onset_ns, None
        for at_ns, came_ns in reversed(self._sounded):
            if at_ns > onset_ns:
                continue
            if since_ns - at_ns > HOLE_NS:
                break
            received_ns = came_ns if received_ns is None else received_ns
            since_ns = at_ns
        received_ns = onset_ns if received_ns is None else min(received_ns, onset_ns)
        return AgentStretch(onset_ns=onset_ns, received_ns=received_ns, lead_ns=onset_ns - since_ns)

    # --- the line ---

    def _on_message(self, arrived_ns: int, incoming: said.Incoming) -> None:
        at_ns = self._device_clock.now_ns(arrived_ns)
        match incoming:
            case said.AudioChunk(pcm, rate):
                self._connection.send(pcm, rate)
                self._handset.playout.add(self._agent_samples, pcm, rate, at_ns)
                self._agent_samples += len(pcm)
            case said.Flush():
                self._handset.playout.flush()
                self._found(self._finder.flushed(at_ns))
            case said.ReplyDone():
                self._found(self._finder.called_done(at_ns))
            case said.Transcript() | said.ReplyText() | said.Marks() as fact:
                self._connection.note(arrived_ns + (self._offset.offset_ns or 0), fact)
            case said.Fault(text) as fact:
                self._connection.note(arrived_ns + (self._offset.offset_ns or 0), fact)
                self._shown.line(f"the agent reports: {text}")
            case said.Unreadable(why):
                self._connection.faults.append(why)
                self._shown.line(f"the agent cannot be understood: {why}")
            case _:
                pass

    def _on_own(self, data: dict[str, Any]) -> None:
        match data.get("turngap"):
            case "marks" if isinstance(data.get("llm"), str):
                self._connection.llm_of[int(data["turn"])] = data["llm"]
            case "llm":
                rows = data.get("offered", [])
                self._offered = [str(row["name"]) for row in rows]
                self._run.simulated = {str(row["name"]) for row in rows if row.get("simulated")}
                if switched := data.get("switched"):
                    self._connection.switched_ns.append(int(switched["at_ns"]))
                    self._shown.line(f"{self._told(switched['to'])} answers from now on")
                    if switched.get("cancelled"):
                        self._found(self._finder.cancelled(self._now_ns()))
            case "refused":
                self._shown.line(f"{data.get('message')} ({data.get('hint')})")
            case _:
                pass

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(TICK_MS))
            self._found(self._finder.tick(self._now_ns()))

    def _now_ns(self) -> int:
        return self._device_clock.now_ns(self._clock.now_ns())

    # --- the keyboard ---

    async def _obey(self, commands: Commands) -> None:
        while (text := await commands()) is not None:
            try:
                if await self._command(text.strip()):
                    return
            except InputError as e:
                self._shown.line(f"{e.message} ({e.hint})" if e.hint else e.message)

    async def _command(self, text: str) -> bool:
        word, _, rest = text.partition(" ")
        if word in ("/quit", "/q"):
            return True
        if word == "/llm" and rest:
            await self._ask(LLM, {"use": rest.strip()})
        elif word == "/llms":
            offered = ", ".join(map(self._told, self._offered))
            self._shown.line(offered or "this agent offers no other LLM")
        elif word == "/save":
            await self._save(rest.strip())
        elif word.startswith("/"):
            self._shown.line(HELP)
        elif text:
            self._found(self._finder.typed(self._now_ns()))
            self._live.typed(self._number + 1, text)
            await self._ask(SAY, {"turn": self._number + 1, "text": text})
        return False

    def _told(self, llm: str) -> str:
        """Name an LLM, and say so if it is simulated."""
        return f"{llm} (simulated)" if llm in self._run.simulated else llm

    async def _save(self, name: str) -> None:
        folder = self._run.keeping.record
        if folder is None:
            raise InputError(
                "talk.record", "there is no folder to save to", hint="start with --record DIR"
            )
        turns = tuple(self._run.turns)
        saved = await asyncio.to_thread(save, self._run.stored(), turns, name, folder)
        self._shown.line(f"saved {saved.turns} turns: turngap replay {saved.path}")

    async def _ask(self, kind: str, data: dict[str, Any]) -> None:
        await self._line.send(message_frame(rtvi("client-message", {"t": kind, "d": data})))

    # --- turns ---

    def _found(self, turns: Sequence[FoundTurn]) -> None:
        for turn in turns:
            self._number += 1
            wait_ms = SETTLE_MS if turn.ended == "interrupted" else 0.0
            report, due_ns = self._report(turn), self._clock.now_ns() + ms_to_ns(wait_ms)
            task = asyncio.create_task(self._keep(report, due_ns))
            self._keeping.add(task)
            task.add_done_callback(self._keeping.discard)
            self._stall_ms = 0.0

    async def _keep(self, report: TurnReport, due_ns: int) -> None:
        """Keep a turn, after those before it and when the agent's marks are in."""
        async with self._in_order:
            await self._clock.sleep_until_ns(due_ns)
            try:
                for kept in self._live.report(report):
                    record = await asyncio.to_thread(self._run.keep, kept, self._offset)
                    self._shown.turn(record)
            except TurngapError as e:
                self._shown.line(e.message)

    def _report(self, turn: FoundTurn) -> TurnReport:
        agents_ns = (self._offset.offset_ns or 0) + self._device_clock.machine_ns
        bound_ns, n = self._offset.bound_ns or 0, max(1, self._offset.n)
        return TurnReport(
            turn=self._number,
            input="typed" if turn.typed else "voice",
            start_ns=turn.start_ns,
            end_ns=turn.end_ns,
            over_reply=turn.over_reply,
            agent=turn.agent,
            flushed_ns=turn.flushed_ns,
            ended_ns=turn.ended_ns,
            ended=turn.ended,
            stall_ms=self._stall_ms,
            offset=Offset(offset_ns=agents_ns, bound_ns=bound_ns, n=n),
        )
