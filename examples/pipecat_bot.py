"""A stock pipecat bot to measure, as it is or with two lines for turngap's marks.

    python examples/pipecat_bot.py [--marks] [--otlp http://127.0.0.1:4318] [--port 8765]
    turngap replay quick-questions --agent ws://127.0.0.1:8765/ws
    turngap replay quick-questions --agent ws://127.0.0.1:8765/phone --dialect twilio
    turngap replay quick-questions --agent http://127.0.0.1:8765    # over WebRTC

At /phone it answers calls of Twilio, Telnyx, Plivo and Exotel, and at /api/offer WebRTC, if aiortc
is installed. Only the engines are turngap's, so that it runs offline, and with --marks the
observer. Its LLM is simulated: it says what the scenarios expect. With --otlp it sends pipecat's
own traces, under those of whoever calls.
"""

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import uvicorn
from fastapi import BackgroundTasks, FastAPI, Request, WebSocket
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.runner.utils import parse_telephony_websocket
from pipecat.serializers.base_serializer import FrameSerializer
from pipecat.serializers.exotel import ExotelFrameSerializer
from pipecat.serializers.plivo import PlivoFrameSerializer
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.serializers.telnyx import TelnyxFrameSerializer
from pipecat.serializers.twilio import TwilioFrameSerializer
from pipecat.transports.base_transport import BaseTransport, TransportParams
from pipecat.transports.websocket.fastapi import FastAPIWebsocketParams, FastAPIWebsocketTransport
from pipecat.turns.user_stop import SpeechTimeoutUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.workers.runner import WorkerRunner

from turngap.backends import Kind, find
from turngap.clocks import MonotonicClock
from turngap.scenario.model import library_dir

LIBRARY = library_dir()
OUT_RATE = 22_050  # espeak-ng's
app = FastAPI()


def engine(kind: Kind, name: str, **settings: object):
    """Make one of turngap's offline engines, which is a stock pipecat service."""
    spec = find(kind, name)
    return spec.create(spec.settings({"library": LIBRARY, **settings}), MonotonicClock())


@app.websocket("/ws")
async def from_client(websocket: WebSocket) -> None:
    """Serve a conversation with a client of pipecat's."""
    await websocket.accept()
    under_the_caller(websocket)
    await bot(over_websocket(websocket, ProtobufFrameSerializer()))


@app.websocket("/phone")
async def from_phone(websocket: WebSocket) -> None:
    """Serve a phone call; its first messages identify the provider."""
    await websocket.accept()
    under_the_caller(websocket)
    name, call = await parse_telephony_websocket(websocket)
    await bot(over_websocket(websocket, PHONES[name](call)))


if find_spec("aiortc"):
    from pipecat.transports.smallwebrtc.connection import SmallWebRTCConnection
    from pipecat.transports.smallwebrtc.request_handler import (
        SmallWebRTCRequest,
        SmallWebRTCRequestHandler,
    )
    from pipecat.transports.smallwebrtc.transport import SmallWebRTCTransport

    calls = SmallWebRTCRequestHandler()

    @app.post("/api/offer")
    async def from_webrtc(request: Request, offer: SmallWebRTCRequest, later: BackgroundTasks):
        """Serve a WebRTC call once its offer has been answered."""
        under_the_caller(request)

        async def serve(connection: SmallWebRTCConnection) -> None:
            params = TransportParams(audio_in_enabled=True, audio_out_enabled=True)
            later.add_task(bot, SmallWebRTCTransport(connection, params))

        return await calls.handle_web_request(offer, serve)


def under_the_caller(request: WebSocket | Request) -> None:
    """Hang what is traced from here on under the caller's span, if it sent a `traceparent`."""
    if app.state.otlp:
        from opentelemetry import context, propagate

        context.attach(propagate.extract(request.headers))


def trace_to(collector: str) -> None:
    """Set up pipecat's tracing; what was traced is sent at the latest when the bot ends."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError as e:
        need = 'the extra `otlp`: pip install "./turngap[otlp]"'
        raise SystemExit(f"--otlp needs {need} ({e})") from e
    from pipecat.utils.tracing.setup import setup_tracing

    setup_tracing("pipecat-bot", OTLPSpanExporter(f"{collector.rstrip('/')}/v1/traces"))
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        app.router.add_event_handler("shutdown", provider.shutdown)


# Without the companies' keys nobody can hang up for real.
PHONES: dict[str, Callable[[Any], FrameSerializer]] = {
    "twilio": lambda call: TwilioFrameSerializer(
        call.stream_id, params=TwilioFrameSerializer.InputParams(auto_hang_up=False)
    ),
    "telnyx": lambda call: TelnyxFrameSerializer(
        call.stream_id,
        call.outbound_encoding,
        call.outbound_encoding,
        params=TelnyxFrameSerializer.InputParams(auto_hang_up=False),
    ),
    "plivo": lambda call: PlivoFrameSerializer(
        call.stream_id, params=PlivoFrameSerializer.InputParams(auto_hang_up=False)
    ),
    "exotel": lambda call: ExotelFrameSerializer(call.stream_id),
}


def over_websocket(websocket: WebSocket, serializer: FrameSerializer) -> BaseTransport:
    """Make the transport of a call over a WebSocket."""
    return FastAPIWebsocketTransport(
        websocket,
        FastAPIWebsocketParams(
            serializer=serializer, audio_in_enabled=True, audio_out_enabled=True
        ),
    )


async def bot(transport: BaseTransport) -> None:
    """Run one conversation."""
    aggregators = LLMContextAggregatorPair(
        LLMContext(),
        user_params=LLMUserAggregatorParams(
            vad_analyzer=SileroVADAnalyzer(params=VADParams(stop_secs=0.2, min_volume=0)),
            user_turn_strategies=UserTurnStrategies(
                stop=[SpeechTimeoutUserTurnStopStrategy(user_speech_timeout=0.1)]
            ),
        ),
    )
    worker = PipelineWorker(
        Pipeline(
            [
                transport.input(),
                engine("stt", "pocketsphinx"),
                aggregators.user(),
                engine("llm", "sim"),
                engine("tts", "espeak"),
                transport.output(),
                aggregators.assistant(),
            ]
        ),
        params=PipelineParams(audio_out_sample_rate=OUT_RATE, enable_metrics=bool(app.state.otlp)),
        enable_tracing=bool(app.state.otlp),
    )
    if app.state.marks:
        from turngap import MarksObserver

        MarksObserver().attach(worker)

    @transport.event_handler("on_client_disconnected")
    async def on_client_disconnected(*_: object) -> None:
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()


def main() -> None:
    """Serve on loopback."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--marks", action="store_true", help="attach turngap's MarksObserver")
    parser.add_argument(
        "--otlp", metavar="URL", help="send traces to this collector; needs turngap's extra `otlp`"
    )
    parser.add_argument("--port", type=int, default=8765)
    arguments = parser.parse_args()
    app.state.marks, app.state.otlp = arguments.marks, arguments.otlp
    if arguments.otlp:
        trace_to(arguments.otlp)
    print(f"listens on ws://127.0.0.1:{arguments.port}/ws")
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning")


if __name__ == "__main__":
    main()
