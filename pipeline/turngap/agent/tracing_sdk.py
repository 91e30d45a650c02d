"""The agent's traces, made with OpenTelemetry's SDK and sent after each conversation."""

from concurrent.futures import Future, ThreadPoolExecutor

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider

from turngap.clocks import MonotonicClock
from turngap.core.clock import NS_PER_S
from turngap.telemetry.sender import BATCH, Kept, resource_of

# After a conversation so much time is given to the collector, which may fall into the turns of
# other conversations: then no request is begun, and none takes longer than this.
SEND_S = 1.0


class Tracing:
    """The process's provider of tracers. Its spans wait until `send`, whatever their number.

    The SDK's own processor would send when it has a batch together, in the middle of a turn.
    """

    def __init__(self, url: str) -> None:
        self._kept = Kept()
        self._exporter = OTLPSpanExporter(url, timeout=SEND_S)
        self._clock = MonotonicClock()
        self._thread = ThreadPoolExecutor(1, "turngap-traces")
        self._last: Future[None] | None = None
        self.provider = TracerProvider(resource=resource_of("turngap-agent"))
        self.provider.add_span_processor(self._kept)
        trace.set_tracer_provider(self.provider)

    def send(self) -> Future[None]:
        """Send what there is, after what is being sent; a process that ends waits for it."""
        if self._last is None or self._last.running() or self._last.done():
            self._last = self._thread.submit(self._send)
        return self._last

    def _send(self) -> None:
        until_ns = self._clock.now_ns() + round(SEND_S * NS_PER_S)
        spans = self._kept.spans
        while spans and self._clock.now_ns() < until_ns:
            batch = spans[:BATCH]
            del spans[: len(batch)]  # those that the collector does not take are lost
            self._exporter.export(batch)
