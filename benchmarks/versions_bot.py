"""A stock bot for any pipecat from 1.8 on, with turngap's two lines; `pipecat_versions.py` runs it.

    python benchmarks/versions_bot.py PORT

Its environment has pipecat and, installed without dependencies, turngap. So its engines are made up
here: the STT hears "hello" as soon as the VAD stops, the LLM takes 120 ms to its first token, and
the TTS speaks a tone after 80 ms, of which the first 50 are silent.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.services.llm_service import LLMService
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.transports.websocket.server import (
    SingleClientWebsocketServerParams,
    SingleClientWebsocketServerTransport,
)
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

from turngap import MarksObserver  # the first of the two lines

RATE = 24_000


class Hears(STTService):
    """Hears "hello" in everything."""

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            await self.push_frame(TranscriptionFrame("hello", "", "", finalized=True))

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        return
        yield


class Answers(LLMService):
    """Says the same to everything, after each of the delays in turn."""

    def __init__(self, *delays_ms: float) -> None:
        super().__init__()
        self._delays_ms = cycle(delays_ms)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        await asyncio.sleep(next(self._delays_ms) / 1000)  # noqa: TID251  # none of turngap's clocks
        for token in ("Hello", " there", ". "):
            await self.push_frame(LLMTextFrame(token))
        await self.push_frame(LLMFullResponseEndFrame())


class Speaks(TTSService):
    """Speaks a tone after something inaudible."""

    def __init__(self, lead: NDArray[np.int16]) -> None:
        super().__init__(sample_rate=RATE, push_start_frame=True, push_stop_frames=True)
        tone = (np.cos(np.arange(RATE // 2) / 12) * 8000).astype(np.int16)
        self._said = np.concatenate((lead, tone)).tobytes()

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        await asyncio.sleep(0.08)  # noqa: TID251
        for first in range(0, len(self._said), 4800):
            audio = self._said[first : first + 4800]
            yield TTSAudioRawFrame(audio, RATE, 1, context_id=context_id)


def transport_at(
    port: int, serializer: ProtobufFrameSerializer
) -> SingleClientWebsocketServerTransport:
    """Serve one caller after the other, on loopback."""
    return SingleClientWebsocketServerTransport(
        SingleClientWebsocketServerParams(
            serializer=serializer, audio_in_enabled=True, audio_out_enabled=True
        ),
        host="127.0.0.1",
        port=port,
    )


def bot(
    transport: SingleClientWebsocketServerTransport, answers: Answers, speaks: Speaks
) -> PipelineWorker:
    """Build the bot that pipecat runs."""
    aggregators = LLMContextAggregatorPair(
        LLMContext(),
        user_params=LLMUserAggregatorParams(
            vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=0.2, min_volume=0)),
            user_turn_strategies=UserTurnStrategies(
                stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.1)]
            ),
        ),
    )
    engines: list[Any] = [
        Hears(ttfs_p99_latency=0.1),
        aggregators.user(),
        answers,
        speaks,
    ]
    return PipelineWorker(
        Pipeline([transport.input(), *engines, transport.output(), aggregators.assistant()]),
        params=PipelineParams(audio_out_sample_rate=RATE),
        idle_timeout_secs=None,
    )


async def main(port: int) -> None:
    """Serve the bot that the versions of pipecat are tried with."""
    transport = transport_at(port, ProtobufFrameSerializer())
    worker = bot(transport, Answers(120), Speaks(np.zeros(RATE // 20, np.int16)))
    MarksObserver().attach(worker)  # the second
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
