"""OpenTelemetry's SDK, used so that nothing of it runs during a turn.

Spans are made of what has been stored, once a conversation is over, and wait in memory until they
are sent. What sends them is a thread of ours and not the SDK's, which would wake whenever it likes.
"""

import math
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Event
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from turngap import __version__
from turngap.core.budget import GAP_BUCKETS_S
from turngap.core.secrets import text_without_secrets
from turngap.telemetry.complaints import in_words, told_why
from turngap.telemetry.destination import Destination
from turngap.telemetry.exporters import FigureExporter, SpanExporters
from turngap.telemetry.names import CLAIMED, GAP, METRICS, STAGE_S, STAGES, TURNS, YIELD

# So many spans go out in one request, as with the SDK's own processor.
BATCH = 512
# A collector that takes nothing must not fill the memory: about 2 KB a span.
MOST_KEPT = 50_000
_BUCKETS = {**dict.fromkeys((GAP, CLAIMED, YIELD), GAP_BUCKETS_S), STAGES: STAGE_S}


@dataclass(frozen=True, slots=True)
class Ids:
    """The identity of a conversation's trace, given out before its first span is made."""

    trace_id: int
    span_id: int
    sampled: bool

    @property
    def header(self) -> str:
        """The header that hangs what an agent traces under the conversation (W3C)."""
        ids = f"{self.trace_id:032x}-{self.span_id:016x}"
        return f"traceparent: 00-{ids}-{int(self.sampled):02x}"


class Sender:
    """Makes spans and figures of what was measured, and sends them when it is told to.

    Its methods are for one thread; only `send` is for another one.
    """

    def __init__(self, where: Destination) -> None:
        self._ids = _GivenIds()
        self._kept = Kept()
        resource = resource_of("turngap")
        self._provider = TracerProvider(
            resource=resource, id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(self._kept)
        self._tracer = self._provider.get_tracer("turngap", __version__)
        self._spans = None if where.traces is None else SpanExporters(where.traces)
        self._figures = None if where.metrics is None else FigureExporter(where.metrics)
        readers = []
        if self._figures is not None:
            # Of an endless interval, so that it is read when we say so and never by itself.
            readers = [PeriodicExportingMetricReader(self._figures, math.inf)]
        self._meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        self._instruments = self._made_instruments()
        self.sent = 0
        self._told = False  # whether there are figures that have not been sent

    # --- what is measured -----------------------------------------------------------------------

    def ids(self, *, sampled: bool = True) -> Ids:
        """Give out the identity of a trace; `OTEL_TRACES_SAMPLER` decides whether it is kept."""
        trace_id, span_id = self._ids.fresh()
        if sampled:
            decision = self._provider.sampler.should_sample(None, trace_id, "conversation")
            sampled = decision.decision.is_sampled()
        return Ids(trace_id, span_id, sampled and self._spans is not None)

    def span(
        self,
        name: str,
        start_ns: int,
        attributes: Mapping[str, Any],
        under: Span | None = None,
        ids: Ids | None = None,
    ) -> Span:
        """Begin a span at an instant of the wall clock; whoever gets it ends it."""
        if ids is not None:
            self._ids.given(ids)
        return self._tracer.start_span(
            name,
            Context() if under is None else set_span_in_context(under, Context()),
            SpanKind.INTERNAL if ids is None else SpanKind.CLIENT,
            attributes=attributes,
            start_time=start_ns,
        )

    @staticmethod
    def fail(span: Span, why: str) -> None:
        """Mark a span as failed."""
        span.set_status(Status(StatusCode.ERROR, text_without_secrets(why)))

    def count(
        self, name: str, value: float, attributes: Mapping[str, Any], span: Span | None = None
    ) -> None:
        """Add a figure; with a span that is sampled, it is an exemplar of its bucket."""
        instrument = self._instruments[name]
        context = Context() if span is None else set_span_in_context(span, Context())
        if name == TURNS:
            instrument.add(value, attributes, context)
        else:
            instrument.record(max(value, 0.0), attributes, context)
        self._told = True

    def _made_instruments(self) -> dict[str, Any]:
        meter = self._meters.get_meter("turngap", __version__)
        return {
            name: meter.create_counter(name, unit, words)
            if kind == "counter"
            else meter.create_histogram(
                name, unit, words, explicit_bucket_boundaries_advisory=_BUCKETS[name]
            )
            for name, (unit, kind, words) in METRICS.items()
        }

    # --- sending --------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Count the spans that have not been sent, including those that were dropped."""
        return len(self._kept.spans) + self._kept.dropped

    @property
    def why_dropped(self) -> str:
        return f"turngap keeps {MOST_KEPT:,} spans at most until they are sent"

    @property
    def figures_waiting(self) -> bool:
        return self._told and self._figures is not None

    def send(self, stop: Event, *, brief: bool = False) -> str | None:
        """Send what waits; return why that failed, or None.

        A request may take the exporter's timeout, and with `brief` `BRIEF_S` at most. None is begun
        once `stop` is set: what is left waits, and is no failure.
        """
        with told_why() as why:
            try:
                failed = self._send(stop, brief=brief)
            except Exception as e:  # an exporter's own fault must not end a measurement
                failed = f"{type(e).__name__}: {e}"
        return None if failed is None else in_words([failed, *why])

    def _send(self, stop: Event, *, brief: bool) -> str | None:
        kept = self._kept.spans
        while kept and self._spans is not None and not stop.is_set():
            batch = kept[:BATCH]
            if not self._spans.export(batch, brief=brief):
                return "the collector did not take the spans"
            del kept[: len(batch)]
            self.sent += len(batch)
        if self.figures_waiting and self._figures is not None and not stop.is_set():
            self._told = False
            self._figures.brief = brief
            self._meters.force_flush()
            if not self._figures.taken:
                self._told = True
                return "the collector did not take the figures"
        return None

    def stop(self) -> None:
        """Let go of what is being sent."""
        for exporters in (self._spans, self._figures):
            if exporters is not None:
                exporters.shutdown()


class Thread:
    """A thread for one delivery, which does not keep the process alive.

    Args:
        sender: what it sends with.
        brief: whether somebody waits to play on, so that no request takes long.

    Attributes:
        stop: ends it once it is set, when the request that is under way has ended.
    """

    def __init__(self, sender: Sender, *, brief: bool = False) -> None:
        self.done: Future[str | None] = Future()
        self.stop = threading.Event()
        # Nobody can take it back: it runs, and whoever waits for it sees its end.
        self.done.set_running_or_notify_cancel()

        def run() -> None:
            self.done.set_result(sender.send(self.stop, brief=brief))

        threading.Thread(target=run, name="turngap-otlp", daemon=True).start()


class Kept(SpanProcessor):
    """Keeps spans until they are sent."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.dropped = 0

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is None or not span.context.trace_flags.sampled:
            return
        if len(self.spans) < MOST_KEPT:
            self.spans.append(span)
        else:
            self.dropped += 1


class _GivenIds(RandomIdGenerator):
    """Random ids, but for a span whose ids were given out before."""

    def __init__(self) -> None:
        self._trace_id: int | None = None
        self._span_id: int | None = None

    def given(self, ids: Ids) -> None:
        self._trace_id, self._span_id = ids.trace_id, ids.span_id

    def fresh(self) -> tuple[int, int]:
        return super().generate_trace_id(), super().generate_span_id()

    def generate_trace_id(self) -> int:
        given, self._trace_id = self._trace_id, None
        return super().generate_trace_id() if given is None else given

    def generate_span_id(self) -> int:
        given, self._span_id = self._span_id, None
        return super().generate_span_id() if given is None else given


def resource_of(name: str) -> Resource:
    """Describe the sender as the environment does, with this name if that has none."""
    given = Resource.create().attributes
    ours = {
        "service.name": name,
        "service.version": __version__,
        "service.instance.id": str(uuid.uuid4()),
    }
    if str(given.get("service.name", "")).startswith("unknown_service"):
        given = {key: value for key, value in given.items() if key != "service.name"}
    return Resource.create({key: value for key, value in ours.items() if key not in given})
