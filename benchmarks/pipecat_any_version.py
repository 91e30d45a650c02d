"""A pipecat bot of engines that answer at once, for any pipecat from 0.0.108 on.

It needs no turngap, so that it runs in an environment with another pipecat:

    PYTHON benchmarks/pipecat_any_version.py --port 8765            protobuf at /ws
    PYTHON benchmarks/pipecat_any_version.py --port 8765 --wav      with a WAV header on each chunk
    PYTHON benchmarks/pipecat_any_version.py --runner --port 7860   the development runner (1.13 on)

    turngap replay quick-questions --agent ws://127.0.0.1:8765/ws
    turngap replay quick-questions --agent ws://127.0.0.1:7860/ws    found out to be pipecat-eval

After Silero and a silence of 0.1 s, a transcript and a reply are made up. The reply is a tone of
`--reply-ms` after `--lead-ms` of digital silence.
"""

import argparse
import math
import struct
import sys

import uvicorn
from fastapi import FastAPI, WebSocket
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.frames.frames import (
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.runner import PipelineRunner
from pipecat.pipeline.task import PipelineParams, PipelineTask
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.utils import string as strings

RATE = 24_000
TONE_HZ = 220
PARSER = argparse.ArgumentParser()
PARSER.add_argument("--port", type=int, default=8765)
PARSER.add_argument("--wav", action="store_true")
PARSER.add_argument("--runner", action="store_true")
PARSER.add_argument("--reply-ms", type=int, default=1500)
PARSER.add_argument("--lead-ms", type=int, default=0)
ARGUMENTS, REST = PARSER.parse_known_args()
app = FastAPI()

# Earlier pipecats cut sentences with data that they fetch; without it, RTVI ends at the first text.
if hasattr(strings, "sent_tokenize"):
    strings.sent_tokenize = lambda text: [text]  # pyright: ignore[reportAttributeAccessIssue]
elif hasattr(strings, "_sent_tokenizer"):
    strings._sent_tokenizer = lambda *_, **__: lambda text: [text]


class Transcriber(FrameProcessor):
    """Makes up a transcript when Silero says that the person has stopped."""

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame):
            # A recogniser that is sure says so, else the turn's end waits for it.
            said = TranscriptionFrame("made up words", "user", "2026-01-01T00:00:00Z")
            said.finalized = True
            await self.push_frame(said)
        await self.push_frame(frame, direction)


class Answerer(FrameProcessor):
    """Answers a turn with text and a tone, at once."""

    async def process_frame(self, frame, direction):
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
            return
        await self.push_frame(LLMFullResponseStartFrame())
        for piece in ("A made", "-up reply."):
            await self.push_frame(LLMTextFrame(piece))
        await self.push_frame(LLMFullResponseEndFrame())
        await self.push_frame(TTSStartedFrame())
        await self.push_frame(TTSAudioRawFrame(tone(), RATE, 1))
        await self.push_frame(TTSStoppedFrame())


def tone():
    """The silence and the tone, PCM16."""
    samples = range(RATE * ARGUMENTS.reply_ms // 1000)
    level = [round(8000 * math.cos(2 * math.pi * TONE_HZ * n / RATE)) for n in samples]
    return bytes(2 * (RATE * ARGUMENTS.lead_ms // 1000)) + struct.pack(f"<{len(level)}h", *level)


async def converse(transport):
    """Hold one conversation."""
    aggregators = LLMContextAggregatorPair(
        LLMContext([]),
        user_params=LLMUserAggregatorParams(
            vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=0.2, min_volume=0)),
            user_turn_strategies=UserTurnStrategies(
                stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.1)]
            ),
        ),
    )
    steps = [transport.input(), Transcriber(), aggregators.user(), Answerer(), transport.output()]
    task = PipelineTask(Pipeline(steps), params=PipelineParams(audio_out_sample_rate=RATE))

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(*_):
        await task.cancel()

    await PipelineRunner(handle_sigint=False).run(task)


@app.websocket("/ws")
async def protobuf(websocket: WebSocket):
    """One conversation in protobuf."""
    await websocket.accept()
    params = FastAPIWebsocketParams(
        serializer=ProtobufFrameSerializer(),
        audio_in_enabled=True,
        audio_out_enabled=True,
        add_wav_header=ARGUMENTS.wav,
    )
    await converse(FastAPIWebsocketTransport(websocket, params))


async def bot(runner_args):
    """One conversation for the development runner, in what its client speaks."""
    from pipecat.evals.transport import EvalTransportParams
    from pipecat.runner.utils import create_transport

    params = {
        "eval": lambda: EvalTransportParams(audio_in_enabled=True, audio_out_enabled=True),
        "websocket": lambda: FastAPIWebsocketParams(
            serializer=ProtobufFrameSerializer(), audio_in_enabled=True, audio_out_enabled=True
        ),
        "twilio": lambda: FastAPIWebsocketParams(audio_in_enabled=True, audio_out_enabled=True),
    }
    await converse(await create_transport(runner_args, params))


if __name__ == "__main__":
    if ARGUMENTS.runner:
        from pipecat.runner.run import main

        sys.argv = [sys.argv[0], "--port", str(ARGUMENTS.port), "--host", "127.0.0.1", *REST]
        main()
    else:
        uvicorn.run(app, host="127.0.0.1", port=ARGUMENTS.port, log_level="warning")
