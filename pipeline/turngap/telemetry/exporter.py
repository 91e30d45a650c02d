"""OpenTelemetry's SDK, used in such a way that none of it runs during a turn.

The SDK is flushed before the next conversation begins, so its own threads have nothing to do.
"""

import logging
import math
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from turngap.core import __version__
from turngap.core.budget import GAP_BUCKETS_S
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import MOST_SENTENCE, printable

# A delivery takes no longer, with its repetitions, unless the environment says otherwise. The SDK's
# 10 s would keep the next conversation waiting for a collector that is down.
TIMEOUT_S = 3.0
# Spans that wait for a flush (about 2 KB each): below it the processor's own thread sends none.
MOST_WAITING = 50_000
MOST_AT_ONCE = 8192  # spans of one request
_HOUR_MS = 3_600_000.0

GAP = "turngap.turn.gap"
CLAIMED = "turngap.turn.agent_gap"
STAGES = "turngap.stage.duration"
YIELD = "turngap.turn.yield"
TURNS = "turngap.turn.outcomes"
STAGE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.5, 3.0, 6.0)
_HISTOGRAMS = {
    GAP: ("The heard gap of turns with a reply after the person's end.", GAP_BUCKETS_S),
    CLAIMED: ("The same gap as the agent claims it.", GAP_BUCKETS_S),
    STAGES: ("The time that each stage of these turns took.", STAGE_S),
    YIELD: ("Barge-in: from the person's onset to silence.", GAP_BUCKETS_S),
}


class Exporter:
    """Spans and figures of the measurement, sent when it is flushed.

    Args:
        urls: the URLs of the signals to send, `traces` and `metrics`; None: the environment has it.

    Attributes:
        why: the SDK's log of the first failure; after it, nothing more of its kind is sent.
    """

    def __init__(self, urls: Mapping[str, str | None]) -> None:
        resource = resource_of("turngap")
        self.why = ""
        self._spans = _Spans(urls.get("traces"), timeout=_timeout_s())
        self._figures = _Figures(urls.get("metrics"), timeout=_timeout_s())
        # None: the sampler of the environment.
        sampler = None if "traces" in urls else ALWAYS_OFF
        self._provider = TracerProvider(sampler, resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor_of(self._spans))
        self._tracer = self._provider.get_tracer("turngap", __version__)
        # Of an endless interval, so that it is read when it is flushed and never by itself.
        reader = PeriodicExportingMetricReader(self._figures, math.inf)
        readers = [reader] if "metrics" in urls else []
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        meter = self._meters.get_meter("turngap", __version__)
        self._turns = meter.create_counter(TURNS, "{turn}", "Turns by outcome.")
        self._histograms = {
            name: meter.create_histogram(
                name, "s", about, explicit_bucket_boundaries_advisory=buckets
            )
            for name, (about, buckets) in _HISTOGRAMS.items()
        }

    @property
    def sent(self) -> int:
        """Return how many spans the collector took."""
        return self._spans.sent

    @property
    def failed(self) -> list[str]:
        """Return which kinds of data, spans or histograms, the collector did not take."""
        exporters = {"spans": self._spans, "histograms": self._figures}
        return [name for name, exporter in exporters.items() if exporter.failed]

    def span(
        self, name: str, start_ns: int, attributes: Mapping[str, Any], under: Span | None = None
    ) -> Span:
        """Begin a span at an instant of the wall clock; the caller of this ends it."""
        return self._tracer.start_span(
            name,
            Context() if under is None else set_span_in_context(under, Context()),
            SpanKind.CLIENT if under is None else SpanKind.INTERNAL,
            attributes=attributes,
            start_time=start_ns,
        )

    @staticmethod
    def header_of(span: Span) -> str:
        """Return the header that makes an agent's spans children of a span (W3C)."""
        of = span.get_span_context()
        sampled = int(of.trace_flags.sampled)
        return f"traceparent: 00-{of.trace_id:032x}-{of.span_id:016x}-{sampled:02x}"

    @staticmethod
    def fail(span: Span, why: str) -> None:
        """Mark a span as failed."""
        span.set_status(Status(StatusCode.ERROR, text_without_secrets(why)))

    def count(
        self, name: str, value: float, attributes: Mapping[str, Any], span: Span | None = None
    ) -> None:
        """Add a figure; with a span that is sampled, it is an exemplar of its bucket."""
        context = Context() if span is None else set_span_in_context(span, Context())
        if name == TURNS:
            self._turns.add(value, attributes, context)
        else:
            self._histograms[name].record(max(value, 0.0), attributes, context)

    def flush(self) -> None:
        """Send all waiting data, except for a kind that the collector has refused before."""
        with _complaints() as complaints:
            self._provider.force_flush()
            self._meters.force_flush()
        if complaints and not self.why:
            self.why = printable(text_without_secrets(complaints[0]), MOST_SENTENCE)

    def close(self) -> None:
        """Send the rest and end the SDK's threads."""
        self.flush()
        with _complaints():
            self._provider.shutdown()
            self._meters.shutdown()


class _Spans(OTLPSpanExporter):
    """The SDK's exporter, which also notes the accepted spans; the batch processor hides them."""

    sent, failed = 0, False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for at in range(0, len(spans), MOST_AT_ONCE):
            some = spans[at : at + MOST_AT_ONCE]
            if self.failed or super().export(some) is not SpanExportResult.SUCCESS:
                self.failed = True
                return SpanExportResult.FAILURE
            self.sent += len(some)
        return SpanExportResult.SUCCESS


class _Figures(OTLPMetricExporter):
    """The SDK's exporter of figures, which also notes a failure; the reader hides it."""

    failed = False

    def export(self, *args: Any, **kwargs: Any) -> MetricExportResult:
        if self.failed:
            return MetricExportResult.FAILURE
        result = super().export(*args, **kwargs)
        self.failed = result is not MetricExportResult.SUCCESS
        return result


def processor_of(exporter: SpanExporter) -> BatchSpanProcessor:
    """Return the SDK's processor, which sends spans only when it is flushed."""
    return BatchSpanProcessor(exporter, MOST_WAITING, _HOUR_MS, MOST_WAITING)


def resource_of(name: str) -> Resource:
    """Return the OpenTelemetry resource.

    Its service is called `name`, unless the `OTEL_*` variables name another.
    """
    ours = {"service.version": __version__, "service.instance.id": str(uuid.uuid4())}
    return Resource.create({"service.name": name} | ours).merge(OTELResourceDetector().detect())


def _timeout_s() -> float | None:
    """Return how long a delivery may take; None for the environment's setting."""
    given = (name for name in os.environ if name.startswith("OTEL_EXPORTER_OTLP_"))
    return None if any(name.endswith("TIMEOUT") for name in given) else TIMEOUT_S


@contextmanager
def _complaints() -> Iterator[Sequence[str]]:
    """Keep the SDK's messages out of the log, as each attempt would repeat them."""
    logger, complaints = logging.getLogger("opentelemetry"), list[str]()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: complaints.append(record.getMessage())
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield complaints
    finally:
        logger.removeHandler(handler)
        logger.propagate = before
