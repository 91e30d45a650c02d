"""Servers in memory that answer each turn in a made voice: in replies, or in one endless stream."""

import asyncio
import json
from dataclasses import dataclass, field

import numpy as np

from turngap.caller.said import Message
from turngap.core.audio import SpeechDetector, SpeechEnd
from turngap.core.clock import Clock, ms_to_ns
from turngap.testing.agent import voice
from turngap.testing.dialects import AgentHalf, Begun, Spoken, Truncated
from turngap.testing.memory import End


@dataclass
class Answering:
    """Answers so many ms after the person's last sample, and hears when it is interrupted.

    Attributes:
        hold_ms: silence that ends the person's turn.
        pace: how long it takes to make a second of its reply, s; a reply that is interrupted while
            it is being made still sends a piece, as from a server that was just about to.
        heard_ms: what the caller said that it heard, of each reply that it dropped.
        sent: every message, as it was sent.
    """

    half: AgentHalf
    delay_ms: float = 300.0
    speech_ms: float = 2_000.0
    chunk_ms: float = 100.0
    hold_ms: float = 100.0
    pace: float = 0.0
    heard_ms: list[int] = field(default_factory=list[int])
    sent: list[Message] = field(default_factory=list[Message])
    spawned: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def course(self, end: End, clock: Clock) -> None:
        """Serve one conversation; see `turngap.testing.memory.line_to`."""
        self._end, self._clock, self._answering = end, clock, False
        detector: SpeechDetector | None = None
        try:
            await self._send(*self.half.opens())
            while True:
                said, answers = self.half.receive_data(await end.recv())
                await self._send(*answers)
                for each in said:
                    if isinstance(each, Begun):
                        await self._send(*self.half.ready())
                        detector = SpeechDetector(self.half.in_rate, gap_ms=self.hold_ms)
                    elif isinstance(each, Truncated):
                        self.heard_ms.append(each.heard_ms)
                    elif isinstance(each, Spoken) and detector is not None:
                        for event in detector.feed(each.pcm):
                            over = isinstance(event, SpeechEnd)
                            course = self._answer() if over else self._yield()
                            self.spawned.append(asyncio.create_task(course))
        finally:
            for task in self.spawned:
                task.cancel()

    async def _yield(self) -> None:
        late, self._answering = self._answering, False
        deltas = [m for m in self.sent if json.loads(m)["type"].endswith("audio.delta")]
        await self._send(*self.half.flush())
        if late and deltas:
            await self._send(deltas[-1])

    async def _answer(self) -> None:
        self._answering = True
        await self._send(*self.half.turn_over("heard"), *self.half.reply_text("a voice"))
        rest_ns = ms_to_ns(self.delay_ms - self.hold_ms)
        await self._clock.sleep_until_ns(self._clock.now_ns() + rest_ns)
        audio = voice(self.speech_ms, self.half.out_rate)
        size = round(self.chunk_ms * self.half.out_rate / 1000)
        due_ns = self._clock.now_ns()
        for at in range(0, len(audio), size):
            await self._clock.sleep_until_ns(due_ns)
            if not self._answering:
                return
            await self._send(*self.half.audio(audio[at : at + size].tobytes()))
            due_ns += ms_to_ns(self.chunk_ms * self.pace)
        await self._send(*self.half.reply_done())
        self._answering = False

    async def _send(self, *messages: Message) -> None:
        for message in messages:
            self.sent.append(message)
            await self._end.send(message)


FRAME_MS = 20.0


@dataclass
class FullDuplex:
    """Sends audio in real time without end, silence included; falls silent when interrupted.

    Attributes:
        hold_ms: silence that ends the person's turn, after which it speaks with its next frame.
        spoke_ns: when each of its replies began and how long it was, as it was sent.
    """

    half: AgentHalf
    speech_ms: float = 1_000.0
    hold_ms: float = 100.0
    spoke_ns: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    async def course(self, end: End, clock: Clock) -> None:
        """Serve one conversation; see `turngap.testing.memory.line_to`."""
        self._said = np.zeros(0, dtype=np.int16)
        detector, stream = SpeechDetector(self.half.in_rate, gap_ms=self.hold_ms), None
        try:
            while True:
                said, answers = self.half.receive_data(await end.recv())
                for each in answers:
                    await end.send(each)
                for each in said:
                    if isinstance(each, Begun):
                        detector = SpeechDetector(self.half.in_rate, gap_ms=self.hold_ms)
                        for message in self.half.ready():
                            await end.send(message)
                        stream = asyncio.create_task(self._stream(end, clock))
                    elif isinstance(each, Spoken):
                        for event in detector.feed(each.pcm):
                            self._hear(over=isinstance(event, SpeechEnd), now_ns=clock.now_ns())
        finally:
            if stream is not None:
                stream.cancel()

    def _hear(self, *, over: bool, now_ns: int) -> None:
        if over:
            self._said = voice(self.speech_ms, self.half.out_rate)
        elif len(self._said):
            begun_ns, _ = self.spoke_ns[-1]
            self.spoke_ns[-1] = (begun_ns, now_ns - begun_ns)
            self._said = self._said[:0]

    async def _stream(self, end: End, clock: Clock) -> None:
        size = round(FRAME_MS * self.half.out_rate / 1000)
        due_ns, whole = clock.now_ns(), round(self.speech_ms * self.half.out_rate / 1000)
        while True:
            if len(self._said) == whole:
                self.spoke_ns.append((due_ns, ms_to_ns(self.speech_ms)))
            frame, self._said = self._said[:size], self._said[size:]
            frame = np.pad(frame, (0, size - len(frame)))
            for message in self.half.audio(frame.tobytes()):
                await end.send(message)
            due_ns += ms_to_ns(FRAME_MS)
            await clock.sleep_until_ns(due_ns)
