"""Relays one conversation between the live page and a foreign agent, in the agent's dialect.

To the page it is an agent that speaks pipecat's protobuf, and to the agent it is a caller whose
microphone and loudspeaker are the page's. The page captures at the line's own rate and takes the
agent's audio at any rate, so nothing is resampled here and nothing waits but for the sockets.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import numpy as np

from turngap.caller import said
from turngap.caller.dialects.pipecat import audio_frame, interruption_frame, parse, payload_of
from turngap.caller.dialects.rtvi import RTVI_VERSION, rtvi
from turngap.caller.intake import Intake
from turngap.caller.line import Line
from turngap.core.clock import NS_PER_MS, Clock
from turngap.core.errors import AgentError, InputError
from turngap.core.frames import message_frame
from turngap.core.messages import PING, refusal
from turngap.core.results import OffsetRecord
from turngap.core.secrets import text_without_secrets
from turngap.live import wire

# The page answers a flush within a block of its audio; one that does not is not waited for longer.
FLUSH_S = 0.5
# The page's resampler keeps so much of the last chunk for what may follow. It never sounds, so
# a wait for the end of the audio must not include it.
HELD_SAMPLES, PAGE_RATE = 16, 48_000
# How many delays are kept: the packets of ten seconds.
MOST_DELAYS = 500

# Messages of the page that both the relay and the server need.
SEEN = frozenset({wire.PLAYED, wire.TURN})


class PageSocket(Protocol):
    """The page's end: a WebSocket of which every message was checked."""

    async def receive(self) -> Any: ...

    async def send_bytes(self, data: bytes) -> None: ...


@dataclass(slots=True)
class Playback:
    """The page's progress in what it was sent, in the agent's samples.

    Attributes:
        sent: how many samples went to the page.
        played: how many of them have sounded or were dropped.
        dropped: how many of these will never sound.
    """

    sent: int = 0
    played: int = 0
    dropped: int = 0
    _held: int = 0
    # What was left out and never went to the page: after which sample, and how much; and how much
    # of it lies behind the playhead.
    _left_out: deque[tuple[int, int]] = field(default_factory=deque[tuple[int, int]])
    _passed: int = 0

    def send(self, samples: int, rate: int) -> None:
        self.sent += samples
        self._held = HELD_SAMPLES * max(rate, PAGE_RATE) // PAGE_RATE

    def leave_out(self, samples: int) -> None:
        """Take that so much of the agent's audio does not go to the page."""
        before = 0
        if self._left_out and self._left_out[-1][0] == self.sent:
            _, before = self._left_out.pop()
        self._left_out.append((self.sent, before + samples))

    def progress(self) -> tuple[int, int]:
        """Return how much is played or dropped, and how much of it is dropped."""
        while self._left_out and self._left_out[0][0] <= self.played:
            self._passed += self._left_out.popleft()[1]
        return self.played + self._passed, self.dropped + self._passed

    def report(self, message: wire.Played) -> None:
        """Take what sounded at the page, and how far it has dropped the rest."""
        ends = (sample + samples for sample, samples, _ in message.played)
        self.played = max(self.played, min(self.sent, max(ends, default=0)))
        if message.dropped_to is not None:
            self.drop(message.dropped_to)
        elif self.sent - self.played <= self._held:
            self.played = self.sent

    def drop(self, upto: int) -> None:
        """Take that everything before sample `upto` that has not sounded never will."""
        rest = max(0, min(upto, self.sent) - self.played)
        self.played, self.dropped = self.played + rest, self.dropped + rest


@dataclass(slots=True)
class Delays:
    """The times that the relay itself keeps audio, ns: to the agent, and to the page."""

    to_agent: deque[int] = field(default_factory=lambda: deque[int](maxlen=MOST_DELAYS))
    to_page: deque[int] = field(default_factory=lambda: deque[int](maxlen=MOST_DELAYS))

    @property
    def ms(self) -> float | None:
        """Return the median that both ways together add to a gap; None before any audio."""
        if not (self.to_agent and self.to_page):
            return None
        return round((median(self.to_agent) + median(self.to_page)) / NS_PER_MS, 3)


class Relay:
    """One conversation, from when the line is open until the page leaves.

    Args:
        line: to the agent, its handshake done.
        socket: the page's.
        offset: the agent's clock less this one's, if the agent has sent it.
    """

    def __init__(
        self, line: Line, socket: PageSocket, clock: Clock, offset: OffsetRecord, delays: Delays
    ) -> None:
        self._line = line
        self._socket = socket
        self._clock = clock
        self._offset_ns = offset.offset_ns
        self._delays = delays
        self._playback = Playback()
        self._intake = Intake(endless=True)
        self._odd: set[str] = set()
        self._ready = asyncio.Event()
        # Up to which sample the page is to drop what it has not played, and that it has.
        self._drops_to = 0
        self._dropped = asyncio.Event()
        # Where in the agent's audio its reply ends, once it has said that it does.
        self._done_at: int | None = None

    async def run(self) -> None:
        """Hand everything on until the page leaves.

        Raises:
            AgentError: the line was lost, or the agent sends too much.
        """
        tasks = [asyncio.create_task(self._from_page()), asyncio.create_task(self._from_agent())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    # The page's messages

    async def _from_page(self) -> None:
        while (message := await self._socket.receive())["type"] == "websocket.receive":
            since_ns = self._clock.now_ns()
            frame = parse(message["bytes"])
            if frame.WhichOneof("frame") == "audio":
                await self._line.send_audio(np.frombuffer(frame.audio.audio, dtype="<i2"))
                self._delays.to_agent.append(self._clock.now_ns() - since_ns)
            else:
                await self._on_rtvi(since_ns, payload_of(frame))

    async def _on_rtvi(self, at_ns: int, payload: dict[str, Any]) -> None:
        kind, data = payload.get("type"), payload.get("data")
        if kind == "client-ready":
            await self._tell("bot-ready", {"version": RTVI_VERSION, "about": {"relay": "turngap"}})
            self._ready.set()
        elif kind == "client-message" and isinstance(data, dict):
            await self._on_own(at_ns, str(data.get("t")), data.get("d"))

    async def _on_own(self, at_ns: int, kind: str, details: Any) -> None:
        if kind == PING and isinstance(details, dict):
            pong = {"turngap": "pong", "ping": details.get("ping"), "agent_ns": at_ns}
            await self._tell("server-message", pong)
        elif kind == wire.TURN:
            self._intake.begin_turn()
        elif kind == wire.PLAYED:
            with suppress(InputError):  # the server has refused it
                await self._on_played(wire.parsed(wire.Played, details))
        else:
            no = InputError("relay.cannot", f"this agent's dialect has no word for {kind[:40]!r}")
            await self._tell("server-message", refusal(kind[:40], no))

    async def _on_played(self, message: wire.Played) -> None:
        self._playback.report(message)
        # An answer that comes late, to an earlier flush, ends the wait for no later one.
        if message.dropped_to is not None and message.dropped_to >= self._drops_to:
            self._dropped.set()
        await self._say_played()

    # The agent's messages

    async def _from_agent(self) -> None:
        await self._ready.wait()
        async for arrived_ns, incoming in self._line.messages():
            if why := self._intake.refuses(incoming, 2 * self._unplayed):
                await self._odd_once(why)
                if isinstance(incoming, said.AudioChunk):
                    self._playback.leave_out(len(incoming.pcm))
                    await self._say_played()
                if too_much := self._intake.is_over():
                    raise AgentError("agent.too_much", f"the agent sent {too_much}")
            else:
                await self._hand_on(arrived_ns, incoming)

    @property
    def _unplayed(self) -> int:
        return self._playback.sent - self._playback.played

    async def _hand_on(self, arrived_ns: int, incoming: said.Incoming) -> None:
        match incoming:
            case said.AudioChunk(pcm, rate):
                self._playback.send(len(pcm), rate)
                await self._socket.send_bytes(audio_frame(pcm.tobytes(), rate))
                self._delays.to_page.append(self._clock.now_ns() - arrived_ns)
            case said.Flush():
                await self._flush()
            case said.TurnOver():
                await self._tell("user-stopped-speaking")
            case said.ReplyDone():
                self._done_at = self._playback.sent
                await self._say_done()
            case said.Transcript(text):
                about = {"text": text, "final": True, "user_id": "", "timestamp": ""}
                await self._tell("user-transcription", about)
            case said.ReplyText(text):
                await self._tell("bot-llm-text", {"text": text})
            case said.Marks():
                await self._tell("server-message", self._marks(incoming))
            case said.Fault(text, fatal, refuses):
                kind = "error-response" if refuses else "error"
                await self._tell(kind, {"error": text_without_secrets(text), "fatal": fatal})
            case said.LeftOut(why) | said.Unreadable(why):
                await self._odd_once(why)
            case _:
                pass

    async def _flush(self) -> None:
        """Have the page drop what it has not played, and tell the agent what that was.

        The agent's next message waits for it, so that what is dropped is what came before.
        """
        self._drops_to = self._playback.sent
        self._dropped.clear()
        await self._socket.send_bytes(interruption_frame())
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._dropped.wait()
        self._playback.drop(self._drops_to)
        await self._say_played()

    async def _say_played(self) -> None:
        """Tell the agent how far the page has played, and the page whether the reply is over."""
        self._line.played(*self._playback.progress())
        await self._line.send_waiting()
        await self._say_done()

    async def _say_done(self) -> None:
        """Tell the page that a reply is over, once it has been played or dropped.

        An agent may have sent all of it long before, and the page would take a pause for its end.
        """
        if self._done_at is not None and self._playback.played >= self._done_at:
            self._done_at = None
            await self._tell("bot-stopped-speaking")

    def _marks(self, marks: said.Marks) -> dict[str, Any]:
        """Make the page's message of an agent's marks, on this machine's clock.

        Marks of an agent that sends no clock cannot be placed.
        """
        offset_ns = self._offset_ns
        placed = {} if offset_ns is None else {k: ns - offset_ns for k, ns in marks.marks.items()}
        message: dict[str, Any] = {
            "turngap": "marks",
            "turn": marks.agent_turn,
            "marks": placed,
            "counts": dict(marks.counts),
            "why": marks.why,
            "error": marks.error,
            "no_reply": marks.no_reply,
        }
        if marks.calls is not None:
            message["calls"] = [
                {"name": c.name, "arguments": c.arguments, "ms": c.ms}
                | {"result": c.result, "error": c.error}
                for c in marks.calls
            ]
        return message

    async def _odd_once(self, why: str) -> None:
        if why not in self._odd and len(self._odd) < wire.MOST_VIEW:
            self._odd.add(why)
            await self._tell("error", {"error": text_without_secrets(why), "fatal": False})

    async def _tell(self, kind: str, data: Any = None) -> None:
        await self._socket.send_bytes(message_frame(rtvi(kind, data)))
