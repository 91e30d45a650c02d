"""Stock pipecat bots on phone lines, in virtual time: pipecat's transport and its serializers."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest
import virtual_calls
from fake_engines import LEAD_IN_MS, RATE, EnergyVAD, FakeLLM, FakeSTT, FakeTTS
from pipecat.frames.frames import Frame, TTSAudioRawFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.serializers.exotel import ExotelFrameSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.serializers.vonage import VonageFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.turns.user_start import VADUserTurnStartStrategy
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner
from virtual_calls import says

from turngap.caller.conversation import Patience
from turngap.caller.dialects.registry import find_dialect
from turngap.core.clock import Clock
from turngap.core.cue import When
from turngap.core.events import Flush
from turngap.testing.agent import voice
from turngap.testing.memory import End, accepted
from turngap.testing.virtual import virtual_clocks

ROOM_MS = 60


class LongTTS(FakeTTS):
    """Two seconds of a voice, and silence before it, made much faster than it sounds."""

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        lead_in = np.zeros(RATE * LEAD_IN_MS // 1000, np.int16)
        reply = np.concatenate((lead_in, voice(2000, RATE)))
        for first in range(0, len(reply), RATE // 10):
            piece = reply[first : first + RATE // 10].tobytes()
            yield TTSAudioRawFrame(piece, RATE, 1, context_id=context_id)


def serializer(dialect: str, stream: str) -> FrameSerializer:
    match dialect:
        case "twilio":
            return TwilioFrameSerializer(
                stream, params=TwilioFrameSerializer.InputParams(auto_hang_up=False)
            )
        case "telnyx":
            return TelnyxFrameSerializer(
                stream,
                "PCMU",
                "PCMU",
                params=TelnyxFrameSerializer.InputParams(auto_hang_up=False),
            )
        case "plivo":
            return PlivoFrameSerializer(
                stream, params=PlivoFrameSerializer.InputParams(auto_hang_up=False)
            )
        case "exotel":
            return ExotelFrameSerializer(stream)
        case _:
            return VonageFrameSerializer()


async def stream_of(end: End) -> str:
    """The stream's id from the call's first messages; Vonage tells none."""
    while True:
        said: dict[str, Any] = json.loads(await end.recv())
        if said["event"] == "websocket:connected":
            return ""
        for key in ("streamSid", "stream_id", "streamId", "stream_sid"):
            if key in said:
                return said[key]


def bot(dialect: str, rate: int) -> Any:
    async def course(end: End, clock: Clock) -> None:
        params = FastAPIWebsocketParams(
            serializer=serializer(dialect, await stream_of(end)),
            audio_in_enabled=True,
            audio_out_enabled=True,
        )
        transport = FastAPIWebsocketTransport(await accepted(end), params)
        turns = LLMContextAggregatorPair(
            LLMContext(),
            user_params=LLMUserAggregatorParams(
                vad_analyzer=EnergyVAD(),
                user_turn_strategies=UserTurnStrategies(
                    start=[VADUserTurnStartStrategy()],
                    stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0)],
                ),
            ),
        )
        steps = [FakeSTT(), turns.user(), FakeLLM(clock), LongTTS()]
        worker = PipelineWorker(
            Pipeline([transport.input(), *steps, transport.output(), turns.assistant()]),
            params=PipelineParams(audio_in_sample_rate=rate, audio_out_sample_rate=rate),
        )

        async def on_client_disconnected(*_: object) -> None:
            await worker.cancel()

        transport.add_event_handler("on_client_disconnected", on_client_disconnected)
        runner = WorkerRunner(handle_sigint=False)
        await runner.add_workers(worker)
        await runner.run()

    return course


@pytest.mark.parametrize("dialect", ["twilio", "telnyx", "plivo", "exotel", "vonage"])
def test_a_stock_bot_on_a_phone_line_is_measured_and_interrupted(dialect: str) -> None:
    session = find_dialect(dialect).session()
    cues = lambda rate: [says(rate), says(rate, When(barge_in_ms=100))]  # noqa: E731
    with virtual_clocks():
        course, patience = bot(dialect, session.rate), Patience(no_reply_ms=3000)
        first, second = virtual_calls.play(course, cues, patience, session).turns
    assert (first.turn.outcome, second.turn.outcome) == ("answered", "answered")
    assert first.turn.ended == "interrupted"
    for turn in (first.turn, second.turn):
        # Its VAD waits 100 ms and its LLM 40, its voice begins 150 late, and the rest is pipecat's.
        assert turn.gap_ns is not None
        assert 290 <= turn.gap_ns / 1e6 <= 700
        assert turn.lead_ns is not None
        assert turn.lead_ns / 1e6 == pytest.approx(LEAD_IN_MS, abs=2)
    assert first.turn.gap_ns == second.turn.gap_ns
    # Its VAD hears speech after 50 ms, and pipecat then sends what empties the queue.
    assert second.turn.yield_ns is not None
    assert 50 <= second.turn.yield_ns / 1e6 <= 80
    flushed = [e for t in (first, second) for e in t.events if isinstance(e, Flush)]
    assert flushed
    assert not first.notes
    assert not second.notes
