"""The agent's voice is silent while the floor is withheld, goes on from there, or is dropped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    Frame,
    InterruptionFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.frame_processor import FrameDirection
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams
from pipecat_messages import decode
from pipelines import PATIENCE_S, at_work, worker_of

from turngap.agent.output import YieldingOutput
from turngap.backends import Floor
from turngap.caller.said import AudioBytes, Flush
from turngap.clocks import MonotonicClock, others_first
from turngap.core.clock import Clock
from turngap.testing import ManualClock

RATE = 16_000
CHUNK = RATE // 100  # 10 ms


class Socket:
    """In place of the WebSocket: keeps what is written."""

    is_closing = False
    is_connected = True

    def __init__(self) -> None:
        self.sent: list[object] = []

    async def setup(self, setup: Any) -> None:
        """Nothing to set up."""

    async def disconnect(self) -> None:
        """Nobody to leave."""

    async def send(self, data: bytes) -> None:
        self.sent.append(decode(data))

    @property
    def letters(self) -> str:
        """Return the text in the chunks: each holds the code of one letter."""
        return "".join(chr(c.data[0]) for c in self.sent if isinstance(c, AudioBytes))

    async def until(self, count: int) -> None:
        clock = MonotonicClock()
        async with asyncio.timeout(PATIENCE_S):
            while len(self.letters) < count:
                await clock.sleep_until_ns(clock.now_ns() + 1_000_000)


class Line:
    def __init__(self, ahead_ms: float = 0, clock: Clock | None = None, **more: Any) -> None:
        self.socket, self.floor = Socket(), Floor()
        params = FastAPIWebsocketParams(
            serializer=ProtobufFrameSerializer(),
            audio_out_enabled=True,
            audio_out_10ms_chunks=1,
            audio_out_end_silence_secs=0,
            **more,
        )
        transport: Any = self  # asked for nothing but to clean up
        client: Any = self.socket
        self.output = YieldingOutput(
            transport, client, params, floor=self.floor, ahead_ms=ahead_ms, clock=clock
        )
        self.worker = worker_of([self.output], PipelineParams(audio_out_sample_rate=RATE))

    async def cleanup(self) -> None:
        """The transport's own."""

    async def say(self, letters: str) -> None:
        for letter in letters:
            audio = ord(letter).to_bytes(2, "little") * CHUNK
            await self.worker.queue_frame(TTSAudioRawFrame(audio, RATE, 1))

    async def rest(self) -> None:
        """Several chunks' time."""
        clock = MonotonicClock()
        await clock.sleep_until_ns(clock.now_ns() + 60_000_000)


@asynccontextmanager
async def line(ahead_ms: float = 0, clock: Clock | None = None, **more: Any) -> AsyncIterator[Line]:
    line = Line(ahead_ms, clock, **more)
    async with at_work(line.worker):
        yield line
        line.floor.give()


async def test_the_agent_is_said_to_speak_once_it_is_on_the_line() -> None:
    async with line(ahead_ms=60) as agent:
        announced: list[str] = []
        push = agent.output.push_frame

        async def pushed(frame: Frame, direction: Any = FrameDirection.DOWNSTREAM) -> None:
            if isinstance(frame, BotStartedSpeakingFrame):
                announced.append(agent.socket.letters)
            await push(frame, direction)

        agent.output.push_frame = pushed  # type: ignore[method-assign]
        await agent.say("abc")
        await agent.socket.until(3)
    assert announced == ["a", "a"]  # both ways


async def test_the_voice_goes_on_where_it_fell_silent() -> None:
    async with line() as agent:
        await agent.say("abcdefghij")
        await agent.socket.until(3)
        agent.floor.withhold()
        await agent.rest()
        said = agent.socket.letters
        await agent.rest()
        assert agent.socket.letters == said  # not a chunk more, however long it takes
        assert len(said) < 10
        agent.floor.give()
        await agent.socket.until(10)
        assert agent.socket.letters == "abcdefghij"


@pytest.mark.parametrize("ahead_ms", [0, 50])
async def test_a_voice_withheld_before_it_began_begins_when_it_may(ahead_ms: float) -> None:
    async with line(ahead_ms) as agent:
        agent.floor.withhold()
        await agent.say("abc")
        await agent.rest()
        assert agent.socket.letters == ""
        agent.floor.give()
        await agent.socket.until(3)
        assert agent.socket.letters == "abc"


@pytest.mark.parametrize("withheld", [True, False])
async def test_an_interruption_drops_what_is_left_and_gives_the_floor_back(withheld: bool) -> None:
    async with line() as agent:
        await agent.say("abcdefghij")
        await agent.socket.until(3)
        if withheld:
            agent.floor.withhold()
            await agent.rest()
        await agent.worker.queue_frame(InterruptionFrame())
        await agent.rest()
        said = agent.socket.letters
        assert any(isinstance(message, Flush) for message in agent.socket.sent)
        assert not agent.floor.withheld
        await agent.say("xyz")
        await agent.socket.until(len(said) + 3)
        assert agent.socket.letters == said + "xyz"


@pytest.mark.parametrize("ahead_ms", [0, 50])
async def test_nothing_is_heard_of_what_was_withheld_and_then_interrupted(ahead_ms: float) -> None:
    async with line(ahead_ms) as agent:
        await agent.say("abcdefghijklmnopqrst")
        await agent.socket.until(3)
        agent.floor.withhold()
        await agent.rest()
        said = agent.socket.letters
        assert len(said) < 20
        await agent.worker.queue_frame(InterruptionFrame())
        await agent.rest()
        assert not agent.floor.withheld
        assert agent.socket.letters == said


async def test_an_agent_that_was_interrupted_is_not_said_to_speak_again() -> None:
    clock = ManualClock(settle_rounds=300)
    async with line(ahead_ms=50, clock=clock) as agent:
        announced: list[type[Frame]] = []
        push = agent.output.push_frame

        async def pushed(frame: Frame, direction: Any = FrameDirection.DOWNSTREAM) -> None:
            about = isinstance(frame, BotStartedSpeakingFrame | BotStoppedSpeakingFrame)
            if about and direction == FrameDirection.DOWNSTREAM:
                announced.append(type(frame))
            await push(frame, direction)

        agent.output.push_frame = pushed  # type: ignore[method-assign]
        await agent.say("abcdefghij")
        await clock.advance(0)
        # Until it is time for the sixth chunk, the sender waits behind the fifth.
        await agent.worker.queue_frame(InterruptionFrame())
        await clock.advance(0)
        await clock.advance(1_000_000_000)
        assert announced == [BotStartedSpeakingFrame, BotStoppedSpeakingFrame]


def test_the_floor_is_the_agents_until_it_is_withheld() -> None:
    floor = Floor()
    assert not floor.withheld
    floor.withhold()
    floor.withhold()
    assert floor.withheld
    floor.give()
    assert not floor.withheld


async def test_audio_is_written_so_far_ahead_and_then_as_it_is_played() -> None:
    clock = ManualClock(settle_rounds=300)
    async with line(ahead_ms=50, clock=clock) as agent:
        await agent.say("abcdefghijklmnop")
        await clock.advance(0)
        assert agent.socket.letters == "abcde"
        await clock.advance(20_000_000)
        assert agent.socket.letters == "abcdefg"
        await clock.advance(1_000_000_000)


async def test_an_agent_that_was_late_catches_up_with_the_callers_ear() -> None:
    clock = ManualClock(settle_rounds=300)
    async with line(ahead_ms=50, clock=clock) as agent:
        await agent.say("abcdef")
        await clock.advance(10_000_000)
        assert agent.socket.letters == "abcdef"
        # Nothing more is made for 40 ms: the caller has 10 of its 50 ms left.
        await clock.advance(40_000_000)
        await agent.say("ghijkl")
        await clock.advance(0)
        assert agent.socket.letters == "abcdefghij"
        await clock.advance(1_000_000_000)


async def test_after_an_interruption_the_first_chunks_go_at_once_again() -> None:
    clock = ManualClock(settle_rounds=300)
    async with line(ahead_ms=50, clock=clock) as agent:
        await agent.say("abcdefgh")
        await clock.advance(0)
        await agent.worker.queue_frame(InterruptionFrame())
        await clock.advance(0)
        await agent.say("vwxyz")
        await clock.advance(10_000_000)  # the chunk under way is waited for
        assert agent.socket.letters == "abcde" + "vwxyz"
        await clock.advance(1_000_000_000)


async def test_what_stands_before_the_first_chunk_is_passed_on_in_the_same_round() -> None:
    async with line(ahead_ms=50) as agent:
        sender: Any = agent.output._media_senders[None]
        written, rounds = agent.socket.sent, 0
        for word in ["these", "words", "are", "what", "is", "about", "to", "be", "said"]:
            await sender.handle_sync_frame(TTSTextFrame(word, "word"))
        await sender.handle_audio_frame(TTSAudioRawFrame(bytes(2 * CHUNK), RATE, 1))
        while not written and rounds < 100:
            await others_first()
            rounds += 1
        # One to wake the sender and one to spare; with pipecat's it is two for every word.
        assert rounds <= 3


async def test_a_caller_who_stops_reading_is_given_up() -> None:
    async with line(ahead_ms=50, audio_out_write_timeout_secs=0.05) as agent:
        stuck = asyncio.Event()

        async def never(data: bytes) -> None:
            await stuck.wait()

        agent.socket.send = never  # type: ignore[method-assign]
        await agent.say("abc")
        async with asyncio.timeout(PATIENCE_S):
            while agent.output.is_usable:
                await agent.rest()
        stuck.set()


async def test_a_stalled_line_gets_no_audio_and_an_interruption_drops_what_waits() -> None:
    async with line(ahead_ms=50) as agent:
        moves = asyncio.Event()
        agent.output._room = lambda _: moves.wait()
        await agent.say("abc")
        await agent.rest()
        assert agent.socket.letters == ""
        await agent.worker.queue_frame(InterruptionFrame())
        await agent.rest()
        assert isinstance(agent.socket.sent[-1], Flush), "the flush waits behind the audio"
        await agent.say("xyz")
        moves.set()
        await agent.socket.until(3)
        assert agent.socket.letters == "xyz"


async def test_after_a_stall_no_more_is_written_at_once_than_before() -> None:
    clock, moves = ManualClock(settle_rounds=300), asyncio.Event()
    moves.set()
    async with line(ahead_ms=50, clock=clock) as agent:
        agent.output._room = lambda _: moves.wait()
        await agent.say("abcdefghijklmnopqrst")
        await clock.advance(0)
        assert agent.socket.letters == "abcde"
        moves.clear()
        await clock.advance(3_000_000_000)
        assert agent.socket.letters == "abcde"
        moves.set()
        await clock.advance(0)
        assert agent.socket.letters == "abcde" + "fghij"
        await clock.advance(10_000_000)
        assert agent.socket.letters == "abcde" + "fghij" + "k"
        await clock.advance(1_000_000_000)
