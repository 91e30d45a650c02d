"""Agents that say what they say at set times from the person's end, in memory and virtual time."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from virtual_calls import play, says

from turngap.caller.conversation import Conversation, Patience, PlayedTurn
from turngap.caller.dialects.pipecat import PipecatSession, audio_frame, interruption_frame, parse
from turngap.caller.dialects.rtvi import rtvi
from turngap.core.audio import SpeechDetector, SpeechStart
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns
from turngap.core.cue import Cue, When
from turngap.core.wire import message_frame
from turngap.testing.agent import voice
from turngap.testing.memory import End

RATE, PACKET_MS = 16_000, 20.0


def turn(ms: float = 1200, when: When = When(after_reply_ms=200)) -> Cue:  # noqa: B008
    """A person's turn of so many ms, with sharp edges."""
    return says(RATE, when, voice(ms, RATE))


@dataclass(frozen=True)
class Says:
    """Speech `at_ms` from the person's end (or, with `from_start`, beginning).

    Attributes:
        flushed_ms: drop it so long after it began.
        first: words of RTVI to send before it; `then` are those after it.
        closes: end the call so long after it, with this code; `None` as code: without a word.
    """

    at_ms: float
    ms: float = 1500
    from_start: bool = False
    flushed_ms: float | None = None
    first: tuple[str, ...] = ()
    then: tuple[str, ...] = ("bot-stopped-speaking",)
    closes: tuple[float, int | None] | None = None


@dataclass
class TimedAgent:
    """Does the same in each turn, or in turn n the nth; beyond the last, the last again."""

    turns: Sequence[Sequence[Says]]
    rtvi: bool = False
    greets: Says | Sequence[Says] = ()
    yields_ms: float | None = None
    left_over_ms: float = 0.0
    starts: list[int] = field(default_factory=list[int])

    async def __call__(self, end: End, clock: Clock) -> None:
        self._end, self._clock = end, clock
        self._detector = SpeechDetector(RATE, gap_ms=100)
        self._speaking: set[asyncio.Task[None]] = set()
        begun_ns: int | None = None
        numbers, number = count(), 0
        for said in (self.greets,) if isinstance(self.greets, Says) else self.greets:
            self._do(said, clock.now_ns())
        while True:
            frame = parse(await end.recv())
            if frame.WhichOneof("frame") == "message":
                await self._word("bot-ready", {"version": "1.2.0"})
            if frame.WhichOneof("frame") != "audio":
                continue
            begun_ns = end.arrived_ns - ms_to_ns(PACKET_MS) if begun_ns is None else begun_ns
            for event in self._detector.feed(np.frombuffer(frame.audio.audio, np.int16)):
                at_ns = begun_ns + samples_to_ns(event.sample, RATE)
                if started := isinstance(event, SpeechStart):
                    number = min(next(numbers), len(self.turns) - 1)
                    await self._interrupted()
                for said in self.turns[number]:
                    if said.from_start == started:
                        self._do(said, at_ns)

    def _do(self, said: Says, origin_ns: int) -> None:
        task = asyncio.create_task(self._say(said, origin_ns))
        self._speaking.add(task)
        task.add_done_callback(self._speaking.discard)

    async def _interrupted(self) -> None:
        if self.yields_ms is None or not self._speaking:
            return
        await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(self.yields_ms))
        for task in self._speaking:
            task.cancel()
        await self._end.send(interruption_frame())
        if self.left_over_ms:
            self._do(Says(40, self.left_over_ms), self._clock.now_ns())

    async def _say(self, said: Says, origin_ns: int) -> None:
        at_ns = origin_ns + ms_to_ns(said.at_ms)
        await self._clock.sleep_until_ns(at_ns)
        for word in said.first:
            await self._word(word, {"text": "words"})
        step = round(RATE * PACKET_MS / 1000)
        pcm = voice(said.ms, RATE)
        for first in range(0, len(pcm), step):
            since_ms = first * 1000 / RATE
            await self._clock.sleep_until_ns(at_ns + ms_to_ns(since_ms))
            if said.flushed_ms is not None and since_ms >= said.flushed_ms:
                await self._end.send(interruption_frame())
                return
            await self._end.send(audio_frame(pcm[first : first + step].tobytes(), RATE))
        await self._clock.sleep_until_ns(at_ns + ms_to_ns(said.ms))
        for word in said.then:
            await self._word(word, {"text": "words"})
        if said.closes is not None:
            after_ms, code = said.closes
            await self._clock.sleep_until_ns(at_ns + ms_to_ns(said.ms + after_ms))
            if code is None:
                self._end.die()
            else:
                await self._end.close(code, "goodbye")

    async def _word(self, kind: str, data: dict[str, str]) -> None:
        if self.rtvi:
            await self._end.send(message_frame(rtvi(kind, data)))


@dataclass(frozen=True)
class Heard:
    """A conversation's result, and when it was over, in s."""

    turns: list[PlayedTurn]
    conversation: Conversation
    took_s: float

    @property
    def outcomes(self) -> list[str]:
        return [played.turn.outcome for played in self.turns]

    @property
    def gaps_ms(self) -> list[int | None]:
        return [_ms(played.turn.gap_ns) for played in self.turns]

    @property
    def first_answers_ms(self) -> list[int | None]:
        return [_ms(played.turn.first_answer_ns) for played in self.turns]


def _ms(ns: int | None) -> int | None:
    return None if ns is None else round(ns / 1e6)


def hear(
    agent: Callable[..., object], cues: Sequence[Cue], patience: Patience | None = None
) -> Heard:
    """Play the turns to the agent."""
    session = PipecatSession(rtvi=getattr(agent, "rtvi", False))
    played = play(agent, cues, patience, session)  # pyright: ignore[reportArgumentType]
    return Heard(played.turns, played.conversation, played.over_ns / 1e9)
