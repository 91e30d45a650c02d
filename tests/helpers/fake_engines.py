"""An agent of engines that need no models, and a server for it in the test's own event loop."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.audio.vad.vad_analyzer import VADAnalyzer, VADParams
from pipecat.frames.frames import (
    Frame,
    FunctionCallFromLLM,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.llm_service import LLMService
from pipecat.services.settings import STTSettings, TTSSettings
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.turns.user_start import VADUserTurnStartStrategy
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies

from turngap.agent.access import Access, Limits, Seats
from turngap.agent.server import PATH, Server, ServeSettings, bind, create_app
from turngap.agent.session import Assembly
from turngap.agent.stack import Stack
from turngap.agent.switching import Offers
from turngap.backends import (
    COUNTS,
    BackendSettings,
    BackendSpec,
    ConfiguredBackend,
    Kind,
    TurnTaking,
)
from turngap.clocks import MonotonicClock
from turngap.core.clock import Clock, ms_to_ns
from turngap.testing.agent import voice
from turngap_services.llm.plain import plain_settings

RATE = 24_000
LEAD_IN_MS = 150


class EnergyVAD(VADAnalyzer):
    """Loud is speech; windows of 10 ms, 50 ms to begin and 100 ms to end."""

    def __init__(self) -> None:
        params = VADParams(confidence=0.5, start_secs=0.05, stop_secs=0.1, min_volume=0)
        super().__init__(params=params)

    def num_frames_required(self) -> int:
        return self.sample_rate // 100

    def voice_confidence(self, buffer: bytes) -> float:
        return float(np.abs(np.frombuffer(buffer, np.int16)).mean() > 1000)


class FakeSTT(STTService):
    """Hears "hello" in everything, as soon as the VAD stops."""

    def __init__(self) -> None:
        super().__init__(ttfs_p99_latency=0.1, settings=STTSettings(model="fake", language="en-US"))

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            await self.push_frame(TranscriptionFrame("hello", "", "", finalized=True))

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        return
        yield


class FakeLLM(LLMService[Any]):
    """Answers with two clauses of which the second takes its time.

    Where the conversation offers the weather line, that is called first.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__(settings=plain_settings("fake"))
        self._clock = clock

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        messages: list[Any] = list(frame.context.get_messages())
        if isinstance(frame.context.tools, ToolsSchema) and messages[-1]["role"] != "tool":
            await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(20))
            day = {"day": "tomorrow"}
            call = FunctionCallFromLLM("weather", "1", day, frame.context)
            await self.run_function_calls([call])
            await self.push_frame(LLMFullResponseEndFrame())
            return
        for token, after_ms in (("Well", 30), (" hello,", 10), (" you", 300), (" there.", 10)):
            await self._clock.sleep_until_ns(self._clock.now_ns() + ms_to_ns(after_ms))
            await self.push_frame(LLMTextFrame(token))
        await self.push_frame(LLMFullResponseEndFrame())


class FakeTTS(TTSService):
    """A voice for each clause, with silence before it, made much faster than it sounds."""

    def __init__(self) -> None:
        super().__init__(
            sample_rate=RATE,
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model="fake", voice="made", language=None),
        )

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        lead_in = np.zeros(RATE * LEAD_IN_MS // 1000, np.int16)
        audio = np.concatenate((lead_in, voice(200, RATE))).tobytes()
        for first in range(0, len(audio), 4800):
            frame = TTSAudioRawFrame(audio[first : first + 4800], RATE, 1, context_id=context_id)
            frame.metadata[COUNTS] = {"fake_tts_frames": 1}
            yield frame


def _turn_taking(settings: BackendSettings, clock: Clock) -> TurnTaking:
    return TurnTaking(
        vad=EnergyVAD(),
        strategies=UserTurnStrategies(
            start=[VADUserTurnStartStrategy()],
            stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0)],
        ),
        hold_ms=0,
    )


def _spec(kind: Kind, create: Any) -> tuple[BackendSpec, BackendSettings]:
    return BackendSpec("fake", kind, BackendSettings, create), BackendSettings()


def fake_assembly(
    *,
    traced: bool = True,
    broken: bool = False,
    others: Sequence[ConfiguredBackend] = (),
    tools: Mapping[str, Any] | None = None,
) -> Assembly:
    """An agent of the engines above.

    `broken`: its speech engine cannot be made. `others`: LLMs offered beside the fake one. `tools`:
    the stack's table of that name.
    """
    engine = {"backend": "fake"}
    stack = Stack.model_validate(
        {
            "name": "fake",
            "audio": {"out_sample_rate": RATE, "out_chunk_ms": 40},
            "text": {"aggregation": "clause"},
            "tools": tools or {},
            **dict.fromkeys(("turn", "stt", "llm", "tts"), engine),
        }
    )

    def voice(settings: BackendSettings, clock: Clock) -> FakeTTS:
        if broken:
            raise RuntimeError("no voice")
        return FakeTTS()

    engines: dict[Kind, tuple[BackendSpec, BackendSettings]] = {
        "turn": _spec("turn", _turn_taking),
        "stt": _spec("stt", lambda settings, clock: FakeSTT()),
        "llm": _spec("llm", lambda settings, clock: FakeLLM(clock)),
        "tts": _spec("tts", voice),
    }
    offers = Offers([ConfiguredBackend("fake", *engines["llm"]), *others])
    return Assembly(stack, engines, MonotonicClock(), offers, traced)


@dataclass(frozen=True)
class Served:
    """An agent's address, and its seats."""

    port: int
    seats: Seats

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}{PATH}"

    async def health(self) -> dict[str, Any]:
        """Return the answer of `/healthz`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        import json

        return json.loads(body)

    async def sessions_become(self, count: int, within_s: float = 30.0) -> None:
        """Wait until so many conversations are running."""
        clock = MonotonicClock()
        async with asyncio.timeout(within_s):
            while self.seats.taken != count:
                await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(20))


@asynccontextmanager
async def served(
    assembly: Assembly,
    max_sessions: int = 8,
    access: Access | None = None,
    limits: Limits | None = None,
) -> AsyncIterator[Served]:
    """Serve an agent on a free port of loopback."""
    settings = ServeSettings(port=0, access=access or Access(), limits=limits or Limits())
    listener = bind(settings)
    seats = Seats(max_sessions)
    server = Server(create_app(assembly, settings, seats), settings.limits, seats)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield Served(listener.getsockname()[1], seats)
    finally:
        server.should_exit = True
        await task
