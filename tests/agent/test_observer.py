"""From pipecat's frames to marks at the caller: a real pipeline, fake engines, a real WebSocket."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
import quiet
from fake_engines import LEAD_IN_MS, RATE, fake_assembly, served
from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    EagerEndOfTurnCancelFrame,
    Frame,
    FunctionCallInProgressFrame,
    FunctionCallResultFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMMessagesAppendFrame,
    OutputAudioRawFrame,
    TextFrame,
    TTSAudioRawFrame,
    UserStoppedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.observers.base_observer import FramePushed
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMUserAggregator
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.processors.frameworks.rtvi import RTVIProcessor
from pipecat.services.tts_service import TTSService
from pipecat.tests.utils import run_test
from pipecat.transports.base_transport import TransportParams
from pipecat_messages import decode
from scripted_line import EchoLLM
from websockets.asyncio.client import ClientConnection, connect

from turngap.agent.observer import MonotonicPipecatClock, StampedSerializer
from turngap.backends import COUNTS
from turngap.caller.dialects.pipecat import PipecatSession, audio_frame
from turngap.caller.said import (
    AudioBytes,
    AudioChunk,
    Flush,
    Incoming,
    Marks,
    Pong,
    Ready,
    ReplyDone,
)
from turngap.clocks import MonotonicClock, others_first
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.counts import COLD
from turngap.core.stages import AGENT_MARKS
from turngap.marks.observer import MarksObserver
from turngap.marks.turn import GUESS, AgentTurn
from turngap.testing import ManualClock

CLOCK = MonotonicClock()
IN_RATE = 16_000
PACKET = 320


@dataclass
class Caller:
    """Sends packets in real time, keeps all that comes with the instant at which it came."""

    socket: ClientConnection
    got: list[tuple[int, Incoming]] = field(default_factory=list[tuple[int, Incoming]])

    async def receive(self) -> None:
        async for message in self.socket:
            incoming = decode(message)
            if isinstance(incoming, AudioBytes):
                incoming = AudioChunk(np.frombuffer(incoming.data, np.int16), incoming.rate)
            if incoming is not None:
                self.got.append((CLOCK.now_ns(), incoming))

    async def say(self, ms: float, *, loud: bool) -> int:
        """Send audio in real time; the instant at which its last packet left."""
        samples = np.full(PACKET, 8000 if loud else 0, np.int16)
        start_ns = CLOCK.now_ns()
        for index in range(round(ms / 20)):
            await CLOCK.sleep_until_ns(start_ns + ms_to_ns(20 * (index + 1)))
            await self.socket.send(audio_frame(samples.tobytes(), IN_RATE))
        return CLOCK.now_ns()

    async def wait_for(self, kind: type[Incoming], count: int = 1, within_s: float = 10) -> None:
        """Say nothing until so many messages of a kind have come."""
        async with asyncio.timeout(within_s):
            while len(self.all(kind)) < count:
                await self.say(20, loud=False)

    async def ping(self, number: int) -> None:
        session = PipecatSession()
        assert session.ping(number)
        for message in session.data_to_send():
            await self.socket.send(message)

    def all(self, kind: type[Incoming]) -> list[int]:
        """Return when each message of a kind came."""
        return [at for at, incoming in self.got if isinstance(incoming, kind)]

    def marks(self, turns: int = 1) -> list[Marks]:
        """Those of each turn."""
        marks = [incoming for _, incoming in self.got if isinstance(incoming, Marks)]
        # Whoever is kept from sending for a second has paused.
        with quiet.measured():
            assert len(marks) == turns
        return marks


@asynccontextmanager
async def calling(**about: Any) -> AsyncIterator[Caller]:
    async with served(fake_assembly(**about)) as agent, connect(agent.url) as socket:
        caller = Caller(socket)
        task = asyncio.create_task(caller.receive())
        session = PipecatSession()
        session.open()
        for message in session.data_to_send():
            await socket.send(message)
        await caller.wait_for(Ready)
        try:
            yield caller
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


# --- over the wire ----------------------------------------------------------------------------


@pytest.mark.realtime
async def test_the_marks_of_each_turn_reach_the_client_after_it() -> None:
    asked: list[int] = []
    async with calling(tools={"use": ["weather"], "delay_ms": 150}) as caller:

        async def ping() -> None:
            asked.append(CLOCK.now_ns())
            await caller.ping(len(asked))

        await ping()
        await caller.say(300, loud=False)
        await caller.say(200, loud=True)
        await ping()
        user_end_ns = await caller.say(200, loud=True)
        await caller.wait_for(Marks)
        await ping()
        await caller.say(200, loud=False)
        first_turn = list(caller.got)
        await caller.say(400, loud=True)
        await caller.wait_for(AudioChunk, len(caller.all(AudioChunk)) + 8)  # past the lead-in
        interrupted_ns = CLOCK.now_ns()
        await caller.say(400, loud=True)
        await caller.wait_for(Marks, 3)
    marks, interrupted, barging = caller.marks(3)
    assert [turn.agent_turn for turn in (marks, interrupted, barging)] == [1, 2, 3]
    assert set(marks.marks) == set(barging.marks) == set(AGENT_MARKS)
    # In causal order, on the machine's one clock: between the user's end and the first chunk heard.
    order = ("endpoint", "llm_request", "tool_call", "tool_result", "llm_first_token")
    order += ("tts_request", "tts_first_audio", "tts_first_audible")
    instants = [user_end_ns, *(marks.marks[name] for name in order)]
    assert instants == sorted(instants)
    # A lead-in is a stage of its own.
    lead_in_ns = marks.marks["tts_first_audible"] - marks.marks["tts_first_audio"]
    assert ns_to_ms(lead_in_ns) == pytest.approx(LEAD_IN_MS, abs=1)
    # What the TTS says of its audio is counted with the turn: both clauses, of four frames each.
    assert marks.counts["fake_tts_frames"] == 8
    took_ms = ns_to_ms(marks.marks["tool_result"] - marks.marks["tool_call"])
    assert took_ms >= 150
    assert marks.calls is not None
    (call,) = marks.calls
    assert (call.name, call.arguments, call.error) == ("weather", {"day": "tomorrow"}, None)
    assert call.result == '{"sky": "light rain", "degrees": "14"}'
    assert call.ms == pytest.approx(took_ms)
    # After the whole reply, the second clause included, and nothing in it.
    chunks = [(at, c) for at, c in first_turn if isinstance(c, AudioChunk)]
    assert sum(len(c.pcm) for _, c in chunks) >= RATE * 0.7
    assert chunks[-1][0] < caller.all(Marks)[0]
    assert any(isinstance(c, ReplyDone) for _, c in first_turn)
    # Two chunks of 40 ms are sent at once, the rest in real time: the push comes 40 ms later.
    received_ns = next(at for at, c in chunks if np.abs(c.pcm).max() > 1000)
    with quiet.measured():
        assert abs(received_ns - marks.marks["sent"]) < ms_to_ns(20)
    flushes = [at for at in caller.all(Flush) if at > interrupted_ns]
    _, second_ns, third_ns = caller.all(Marks)
    sent = interrupted.marks["sent"], barging.marks["endpoint"], barging.marks["sent"]
    assert sent[0] < sent[1] < sent[2] < third_ns
    # A caller without time interrupts when the reply is over.
    with quiet.measured():
        assert flushes
        assert flushes[0] <= second_ns + ms_to_ns(50)
    pongs = [(at, p) for at, p in caller.got if isinstance(p, Pong)]
    assert [p.ping for _, p in pongs] == [1, 2, 3]
    for asked_ns, (at_ns, pong) in zip(asked, pongs, strict=True):
        assert asked_ns < pong.agent_ns < at_ns


@pytest.mark.realtime
@pytest.mark.unhurried
async def test_an_agent_that_is_not_traced_answers_and_tells_nothing() -> None:
    async with calling(traced=False) as caller:
        await caller.ping(1)
        await caller.say(300, loud=False)
        await caller.say(400, loud=True)
        await caller.wait_for(ReplyDone)
        await caller.say(200, loud=False)
    assert caller.all(AudioChunk)
    assert not caller.all(Marks)
    assert not caller.all(Pong)


# --- in a pipeline of one processor -----------------------------------------------------------


class Passing(FrameProcessor):
    """Passes on what it gets."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)


async def test_an_observer_without_a_client_and_without_turns_is_no_trouble() -> None:
    audio = np.full(480, 8000, np.int16).tobytes()
    frames = [
        TextFrame("hi"),
        TTSAudioRawFrame(audio, 24_000, 1),
        BotStoppedSpeakingFrame(),
        InterruptionFrame(),
    ]
    await run_test(Passing(), frames_to_send=frames, observers=[MarksObserver()])


class Told:
    """An observer's reports, in place of a client."""

    def __init__(self) -> None:
        self.turns: list[dict[str, Any]] = []

    def add_event_handler(self, *_: object) -> None:
        pass

    async def send_server_message(self, message: dict[str, Any]) -> None:
        self.turns.append(message)


async def test_the_first_turn_of_each_llm_since_the_agent_began_is_cold_whoever_calls() -> None:
    answered: set[str] = set()
    cold: list[float | None] = []
    # A guess that was void answered nobody, so the turn after it is the first one.
    for llm, steps in [
        ("a", "guess void ask"),
        ("a", "ask"),
        ("b", "guess decided"),
        ("b", "guess decided"),
        ("c", "guess void decided ask"),
        ("a", "ask"),
    ]:
        told = Told()
        observer = MarksObserver(llm=lambda name=llm: name, answered=answered)
        observer.report_to(cast(RTVIProcessor, told))
        await played(observer, steps)
        (turn,) = told.turns
        cold.append(turn["counts"].get(COLD))
    assert cold == [1, None, 1, None, 1, None]


async def test_without_knowing_who_has_answered_no_turn_is_told_to_be_cold() -> None:
    told, observer = Told(), MarksObserver(llm=lambda: "a")
    observer.report_to(cast(RTVIProcessor, told))
    await played(observer, "ask")
    assert COLD not in told.turns[0]["counts"]


@pytest.mark.parametrize("steps", ["silent decided typed ask", "silent typed decided ask"])
async def test_a_typed_turn_does_not_begin_where_a_sound_that_nobody_answered_ended(
    steps: str,
) -> None:
    turns, observer = list[AgentTurn](), MarksObserver()
    recorder = observer._recorder  # pyright: ignore[reportPrivateUsage]
    recorder._report = turns.append  # pyright: ignore[reportPrivateUsage]
    await played(observer, steps)
    # A decision after the text is of something that was said beside it.
    spoken = steps.index("decided") > steps.index("typed")
    assert [turn.silent_ns for turn in turns] == [None]
    assert ("endpoint" in turns[0].marks) == spoken


async def test_what_a_void_guess_says_at_last_is_no_other_turns_but_its_cost() -> None:
    told, observer = Told(), MarksObserver()
    observer.report_to(cast(RTVIProcessor, told))
    user, llm = LLMUserAggregator(LLMContext()), EchoLLM()
    guess, last = LLMContextFrame(LLMContext(), speculation=True), LLMFullResponseEndFrame()
    guess.metadata[GUESS] = last.metadata[GUESS] = 1
    last.metadata[COUNTS] = {"opener_ms": 700.0, "combined_usd": 0.5}
    ask, over = LLMContextFrame(LLMContext()), BotStoppedSpeakingFrame()
    pushes: list[tuple[FrameProcessor, Frame]] = [
        *((user, guess), (user, EagerEndOfTurnCancelFrame()), (llm, last)),
        *((user, ask), (user, over)),
    ]
    await seen(observer, pushes)
    (turn,) = told.turns
    assert turn["counts"].get("opener_ms") is None
    assert turn["counts"]["combined_usd"] == 0.5


async def test_a_frame_that_cannot_be_read_does_not_end_the_observer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, observer = Told(), MarksObserver()
    observer.report_to(cast(RTVIProcessor, told))
    failing = Mock(side_effect=ZeroDivisionError)
    with monkeypatch.context() as patched:
        patched.setattr(observer, "_on_first_push", failing)
        await played(observer, "ask")
    assert failing.called
    assert not told.turns
    await played(observer, "ask")
    assert len(told.turns) == 1


async def test_audio_of_half_samples_and_results_that_are_no_json_are_read() -> None:
    told, observer, llm = Told(), MarksObserver(), EchoLLM()
    observer.report_to(cast(RTVIProcessor, told))
    about: Any = {"function_name": "f", "tool_call_id": "1", "arguments": {}}
    circle: list[Any] = []
    circle.append(circle)
    for result, shown in (({(1, 2): 3}, "{(1, 2): 3}"), (circle, "[[...]]")):
        pushes: list[tuple[FrameProcessor, Frame]] = [
            (LLMUserAggregator(LLMContext()), LLMContextFrame(LLMContext())),
            (SilentTTS(), TTSAudioRawFrame(b"\1\2\3", 24_000, 1)),
            (llm, FunctionCallInProgressFrame(**about)),
            (llm, FunctionCallResultFrame(**about, result=result)),
            (llm, BotStoppedSpeakingFrame()),
        ]
        await seen(observer, pushes)
        (turn,) = told.turns
        told.turns.clear()
        assert "tts_first_audio" in turn["marks"]
        assert turn["calls"][0]["result"] == shown


@pytest.mark.parametrize("channels", [1, 2])
async def test_a_voice_of_more_channels_has_the_lead_of_one(channels: int) -> None:
    told, observer = Told(), MarksObserver()
    observer.report_to(cast(RTVIProcessor, told))
    pcm = np.concatenate([np.zeros(12_000), 9000 * np.sin(np.arange(24_000) / 5)]).astype("<i2")
    voice = TTSAudioRawFrame(np.repeat(pcm, channels).tobytes(), 24_000, channels)
    asked = LLMUserAggregator(LLMContext()), LLMContextFrame(LLMContext())
    await seen(observer, [asked, (SilentTTS(), voice), (EchoLLM(), BotStoppedSpeakingFrame())])
    marks = told.turns[0]["marks"]
    lead_ms = ns_to_ms(marks["tts_first_audible"] - marks["tts_first_audio"])
    assert lead_ms == pytest.approx(500, abs=1)


async def test_a_bot_without_rtvi_starts_unobserved() -> None:
    worker = PipelineWorker(Pipeline([Passing()]), enable_rtvi=False)
    MarksObserver().attach(worker)
    attached = Mock(spec=PipelineWorker)
    MarksObserver().attach(attached)
    attached.add_observer.assert_called_once()


class SilentTTS(TTSService):
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        yield None


async def seen(observer: MarksObserver, pushes: list[tuple[FrameProcessor, Frame]]) -> None:
    passing, down = Passing(), FrameDirection.DOWNSTREAM
    for at_ns, (source, frame) in enumerate(pushes):
        await observer.on_push_frame(FramePushed(source, passing, frame, down, at_ns))
    await others_first()


async def played(observer: MarksObserver, steps: str) -> None:
    """Have it see a session's frames, up to the end of the reply."""
    user, passing = LLMUserAggregator(LLMContext()), Passing()
    frames: dict[str, Frame] = {
        "guess": LLMContextFrame(LLMContext(), speculation=True),
        "ask": LLMContextFrame(LLMContext()),
        "void": EagerEndOfTurnCancelFrame(),
        "decided": UserStoppedSpeakingFrame(),
        "silent": VADUserStoppedSpeakingFrame(),
        "typed": LLMMessagesAppendFrame([{"role": "user", "content": "and?"}], run_llm=True),
    }
    seen = [frames[step] for step in steps.split()] + [BotStoppedSpeakingFrame()]
    for at_ns, frame in enumerate(seen):
        await observer.on_push_frame(
            FramePushed(user, passing, frame, FrameDirection.DOWNSTREAM, ms_to_ns(at_ns * 100))
        )
    await others_first()  # the report is a task of its own


def test_pipecats_clock_has_no_zero_of_its_own() -> None:
    clock = MonotonicPipecatClock(ManualClock(12_345))
    assert clock.get_time() == 12_345
    clock.start()
    assert clock.get_time() == 12_345


# --- when a chunk was written -----------------------------------------------------------------


async def test_a_chunk_was_written_when_it_was_last_handed_to_the_socket() -> None:
    clock = ManualClock(0)
    serializer = StampedSerializer(clock)
    chunk = OutputAudioRawFrame(bytes(8), 24_000, 1)
    for at_ns in (1_000, 1_010, 50_000):
        await clock.advance_to(at_ns)
        assert decode(await as_bytes(serializer, chunk)) is not None
    await clock.advance_to(90_000)
    await as_bytes(serializer, TextFrame("no audio"))
    pushed = [1_005, 41_000, 81_000, 99_000]
    written = [serializer.written_ns(p) for p in pushed]
    # What was never written (no room, no peer) is as old as its push.
    assert written == [1_000, 1_010, 50_000, 99_000]


async def test_a_chunk_whose_push_never_came_is_passed_over() -> None:
    clock = ManualClock(0)
    serializer = StampedSerializer(clock)
    for at_ns in (1_000, 2_000):  # the first one's sleep was cut short by an interruption
        await clock.advance_to(at_ns)
        await as_bytes(serializer, OutputAudioRawFrame(bytes(8), 24_000, 1))
    assert serializer.written_ns(2_500) == 2_000


async def test_pipecats_webrtc_track_took_a_chunk_before_it_was_pushed_on() -> None:
    pytest.importorskip("aiortc")
    from pipecat.transports.smallwebrtc.transport import SmallWebRTCOutputTransport

    told, observer = Told(), MarksObserver()
    observer.report_to(cast(RTVIProcessor, told))
    output = SmallWebRTCOutputTransport(Mock(), TransportParams())
    loud = OutputAudioRawFrame(np.full(960, 9000, "<i2").tobytes(), 24_000, 1)
    asked = LLMUserAggregator(LLMContext()), LLMContextFrame(LLMContext())
    await seen(observer, [asked, (output, loud), (EchoLLM(), BotStoppedSpeakingFrame())])
    # The second push, less all of its 40 ms but the last 10.
    assert told.turns[0]["marks"]["sent"] == 1 - ms_to_ns(30)


async def as_bytes(serializer: StampedSerializer, frame: Frame) -> bytes:
    data = await serializer.serialize(frame)
    assert isinstance(data, bytes)
    return data
