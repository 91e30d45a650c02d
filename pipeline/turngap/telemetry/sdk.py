"""OpenTelemetry's SDK, used so that nothing of it runs during a turn.

Spans are made when a conversation is over, and its batch processor is flushed before the next one
begins: its own thread finds nothing to do.
"""

import logging
import math
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExportResult, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from turngap import __version__
from turngap.core.budget import GAP_BUCKETS_S
from turngap.core.secrets import text_without_secrets
from turngap.core.untrusted import MOST_SENTENCE, printable

# The exporter tries again for this long, unless the environment says otherwise. Its own default,
# 10 s, would keep the next conversation waiting for a collector that is down.
TIMEOUT_S = 3.0
# Spans that wait for a flush, and spans of one request: the processor's own thread sends none.
MOST_WAITING = 8192
_HOUR_MS = 3_600_000.0
SPANS, HISTOGRAMS = "spans", "histograms"

GAP = "turngap.turn.gap"
CLAIMED = "turngap.turn.agent_gap"
STAGES = "turngap.stage.duration"
YIELD = "turngap.turn.yield"
TURNS = "turngap.turn.outcomes"
STAGE_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.5, 3.0, 6.0)
_HISTOGRAMS = {
    GAP: ("The heard gap of turns with a reply after the person's end.", GAP_BUCKETS_S),
    CLAIMED: ("The same gap as the agent claims it.", GAP_BUCKETS_S),
    STAGES: ("What each stage of these turns took.", STAGE_S),
    YIELD: ("Barge-in: from the person's onset to silence.", GAP_BUCKETS_S),
}


@dataclass(frozen=True, slots=True)
class Ids:
    """The identity of a conversation's trace, given out before its first span is made."""

    trace_id: int
    span_id: int
    sampled: bool

    @property
    def header(self) -> str:
        """Return the header that hangs what an agent traces under the conversation (W3C)."""
        ids = f"{self.trace_id:032x}-{self.span_id:016x}"
        return f"traceparent: 00-{ids}-{int(self.sampled):02x}"


class Sender:
    """Makes spans and figures of what was measured, and sends them when it is flushed.

    Attributes:
        sent: spans that the collector took.
        failed: which of spans and histograms it did not take; no more of these are sent then.
        why: what the exporter logged of the first failure.
    """

    def __init__(self, traces: str | None, metrics: str | None) -> None:
        self.sent, self.why = 0, ""
        self.failed: list[str] = []
        resource = resource_of("turngap")
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._traces = traces is not None
        if traces is not None:
            exporter = OTLPSpanExporter(traces, timeout=_timeout_s("TRACES"))
            self._provider.add_span_processor(processor_of(_Spans(exporter, self)))
        self._tracer = self._provider.get_tracer("turngap", __version__)
        readers: list[PeriodicExportingMetricReader] = []
        if metrics is not None:
            # Of an endless interval, so that it is read when it is flushed and never by itself.
            readers.append(PeriodicExportingMetricReader(_Figures(metrics, self), math.inf))
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        meter = self._meters.get_meter("turngap", __version__)
        self._turns = meter.create_counter(TURNS, "{turn}", "Turns by outcome.")
        self._histograms = {
            name: meter.create_histogram(
                name, "s", about, explicit_bucket_boundaries_advisory=buckets
            )
            for name, (about, buckets) in _HISTOGRAMS.items()
        }

    def ids(self, *, sampled: bool = True) -> Ids:
        """Give out the identity of a trace; `OTEL_TRACES_SAMPLER` decides whether it is kept."""
        trace_id, span_id = self._ids.generate_trace_id(), self._ids.generate_span_id()
        if sampled:
            decision = self._provider.sampler.should_sample(None, trace_id, "conversation")
            sampled = decision.decision.is_sampled()
        return Ids(trace_id, span_id, sampled and self._traces)

    def span(
        self,
        name: str,
        start_ns: int,
        attributes: Mapping[str, Any],
        under: Span | None = None,
        ids: Ids | None = None,
    ) -> Span:
        """Begin a span at an instant of the wall clock; whoever gets it ends it."""
        self._ids.given = None if ids is None else (ids.trace_id, ids.span_id)
        span = self._tracer.start_span(
            name,
            Context() if under is None else set_span_in_context(under, Context()),
            SpanKind.INTERNAL if ids is None else SpanKind.CLIENT,
            attributes=attributes,
            start_time=start_ns,
        )
        self._ids.given = None
        return span

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
        """Send what there is, unless the collector has failed to take such before."""
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


class _Spans(SpanExporter):
    """The SDK's exporter; it notes what was taken, which the batch processor keeps to itself."""

    def __init__(self, exporter: OTLPSpanExporter, sender: Sender) -> None:
        self._exporter, self._sender = exporter, sender

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if SPANS in self._sender.failed:
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._sender.sent += len(spans)
        else:
            self._sender.failed.append(SPANS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Figures(OTLPMetricExporter):
    """The SDK's exporter of figures; it notes a failure, which the reader keeps to itself."""

    def __init__(self, url: str, sender: Sender) -> None:
        super().__init__(url, timeout=_timeout_s("METRICS"))
        self._sender = sender

    def export(self, *args: Any, **kwargs: Any) -> MetricExportResult:
        if HISTOGRAMS in self._sender.failed:
            return MetricExportResult.FAILURE
        result = super().export(*args, **kwargs)
        if result is not MetricExportResult.SUCCESS:
            self._sender.failed.append(HISTOGRAMS)
        return result


class _GivenIds(RandomIdGenerator):
    """Random ids, but for a span whose ids were given out before."""

    given: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.given is None else self.given[0]

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.given is None else self.given[1]


def processor_of(exporter: SpanExporter) -> BatchSpanProcessor:
    """Return the SDK's processor, which sends spans when it is flushed and not by itself."""
    return BatchSpanProcessor(exporter, MOST_WAITING, _HOUR_MS, MOST_WAITING)


def resource_of(name: str) -> Resource:
    """Return what sends: as the environment describes it, and this name where that has none."""
    given = Resource.create().attributes
    ours = {
        "service.name": name,
        "service.version": __version__,
        "service.instance.id": str(uuid.uuid4()),
    }
    if str(given.get("service.name", "")).startswith("unknown_service"):
        given = {key: value for key, value in given.items() if key != "service.name"}
    return Resource.create({key: value for key, value in ours.items() if key not in given})


def _timeout_s(signal: str) -> float | None:
    """Return how long the exporter may take; None: as the environment says."""
    names = (f"OTEL_EXPORTER_OTLP_{signal}_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    return None if any(map(os.environ.get, names)) else TIMEOUT_S


@contextmanager
def _complaints() -> Iterator[Sequence[str]]:
    """Take what the exporter logs out of the log, where it would be repeated at each attempt."""
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
