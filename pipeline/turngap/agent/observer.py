"""Reports of the built-in agent on its conversations: marks, and pipecat's own traces.

A conversation is traced under the caller's span if both sides want that. The caller wants it if its
handshake has a sampled `traceparent`, the server if OTEL_EXPORTER_OTLP_ENDPOINT names where traces
go. All other conversations are not traced.
"""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Any

from loguru import logger
from pipecat.clocks.base_clock import BaseClock
from pipecat.frames.frames import Frame, InputAudioRawFrame, LLMTextFrame, OutputAudioRawFrame
from pipecat.observers.base_observer import FrameProcessed, FramePushed
from pipecat.pipeline.worker import PipelineWorker
from pipecat.pipeline.worker_observer import WorkerObserver
from pipecat.serializers.protobuf import ProtobufFrameSerializer

from turngap.agent.speculation import SpeculationDropped
from turngap.agent.speech_output import SpeechOutput
from turngap.agent.tools import DomainAnswer
from turngap.clocks import MonotonicClock
from turngap.core.clock import Clock
from turngap.core.errors import InputError
from turngap.marks.observer import MarksObserver
from turngap.telemetry import destination_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# A conversation's end may fall into the turns of others: a delivery takes no longer than this.
SEND_S = 1.0
_thread = ThreadPoolExecutor(1, "turngap-traces")


def ready_to_trace() -> None:
    """Import OpenTelemetry's SDK before the first call if traces are wanted: the import is slow."""
    _provider()


def under_the_caller(headers: Mapping[str, str]) -> bool:
    """Put this task's traces under the caller's span; return whether it is traced."""
    if not headers.get("traceparent") or _provider() is None:
        return False
    from opentelemetry import context, propagate, trace

    caller = propagate.extract(headers)
    if not trace.get_current_span(caller).get_span_context().trace_flags.sampled:
        return False
    context.attach(caller)
    return True


def send_traces() -> "Future[bool] | None":
    """Begin to send the traces of a conversation, in the background.

    Traces that a collector does not accept are lost, and the log says so.
    """
    provider = _provider()
    return None if provider is None else _thread.submit(provider.force_flush)


@cache
def _provider() -> "TracerProvider | None":
    """Return the process's tracer provider; None if traces are not wanted or cannot be sent."""
    try:
        where = destination_of()
    except InputError as e:
        logger.warning(f"nothing is traced: {e.message} {e.hint}".rstrip())
        return None
    if where is None or "traces" not in where.signals:
        return None
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider

    from turngap.telemetry.exporter import processor_of, resource_of

    provider = TracerProvider(resource=resource_of("turngap-agent"))
    provider.add_span_processor(processor_of(OTLPSpanExporter(timeout=SEND_S)))
    trace.set_tracer_provider(provider)
    return provider


class MonotonicPipecatClock(BaseClock):
    """The clock for pipecat's frames: the one that all of turngap reads."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()

    def get_time(self) -> int:
        return self._clock.now_ns()

    def start(self) -> None:
        """Do nothing, because this clock has no zero of its own."""


class StampedSerializer(ProtobufFrameSerializer):
    """pipecat's serializer, which also notes when each chunk of audio is handed to the socket.

    Pipecat's WebSocket outputs write a chunk, sleep until it is time for the next, and only then
    push it on. If the push were stamped instead, `sent` would be up to a chunk late.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock = clock or MonotonicClock()
        self._written_ns: deque[int] = deque()

    async def serialize(self, frame: Frame) -> str | bytes | None:
        data = await super().serialize(frame)
        if isinstance(frame, OutputAudioRawFrame):
            self._written_ns.append(self._clock.now_ns())
        return data

    def written_ns(self, pushed_ns: int) -> int:
        """Return when the chunk pushed at `pushed_ns` was written; call in the order of pushes."""
        written_ns = pushed_ns
        while self._written_ns and self._written_ns[0] <= pushed_ns:
            written_ns = self._written_ns.popleft()
        return written_ns


class AgentObserver(MarksObserver):
    """A `MarksObserver` of turngap's own agent.

    Args:
        cuts_lead_in: whether a `SpeechOutput` after the TTS cuts off the silence before speech.
        settings: as `MarksObserver` takes them.
    """

    def __init__(self, *, cuts_lead_in: bool = False, **settings: Any) -> None:
        super().__init__(**settings)
        self._cuts_lead_in = cuts_lead_in

    async def cleanup(self) -> None:
        self._rtvi = None  # no one is there to hear of the last turn
        self._recorder.finish()
        await super().cleanup()

    def _on_audio(self, data: FramePushed, frame: OutputAudioRawFrame) -> None:
        if self._cuts_lead_in and isinstance(data.source, SpeechOutput):
            super()._on_voice(data, frame)
        else:
            super()._on_audio(data, frame)

    def _on_voice(self, data: FramePushed, frame: OutputAudioRawFrame) -> None:
        if self._cuts_lead_in:
            self._recorder.mark("tts_first_audio", data.timestamp)
        else:
            super()._on_voice(data, frame)

    def _on_first_push(self, data: FramePushed, frame: Frame, at_ns: int) -> None:
        if isinstance(frame, SpeculationDropped):
            return  # only the processors that made the guess are interrupted
        if isinstance(frame, LLMTextFrame) and isinstance(data.source, DomainAnswer):
            # An answer without the LLM, of which no figure of the LLM's counts.
            self._on_counts(frame)
            self._recorder.mark("llm_first_token", at_ns)
        else:
            super()._on_first_push(data, frame, at_ns)


class SparingObserver(WorkerObserver):
    """pipecat's observers, without the frames that none of them reads.

    It replaces a private part of pipecat's worker: check that with each version.

    pipecat passes every step of every frame to each observer, by a queue and a task of its own. The
    caller's audio comes in fifty packets a second, which four processors push on and process: 400
    wake-ups a second with two observers, for a call without speech.
    """

    async def on_process_frame(self, data: FrameProcessed) -> None:
        """Do nothing, because the observers of this agent only look at pushes."""

    async def on_push_frame(self, data: FramePushed) -> None:
        if not isinstance(data.frame, InputAudioRawFrame):
            await super().on_push_frame(data)


def observe_sparingly(worker: PipelineWorker) -> None:
    """Give a worker that has not run yet a `SparingObserver` instead of pipecat's observer."""
    before = worker._observer  # pyright: ignore[reportPrivateUsage]
    observers = before._observers  # pyright: ignore[reportPrivateUsage]
    worker._observer = SparingObserver(observers=observers)  # pyright: ignore[reportPrivateUsage]
