"""OpenTelemetry's exporters: those that may take their time, and those while somebody waits."""

import os
from collections.abc import Sequence
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricsData
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

# The exporter tries again for so long, unless the environment says otherwise. Its own default,
# 10 s, would keep whoever waits at the end of a run for a collector that is down.
TIMEOUT_S = 3.0
# And for so long between two conversations, whatever the environment says.
BRIEF_S = 0.5


class SpanExporters:
    """Sends spans, in one request at a time."""

    def __init__(self, url: str) -> None:
        self._patient = OTLPSpanExporter(url, timeout=_timeout_s("TRACES"))
        self._brief = OTLPSpanExporter(url, timeout=_brief_s("TRACES"))

    def export(self, spans: Sequence[ReadableSpan], *, brief: bool) -> bool:
        """Return whether the collector took them."""
        exporter = self._brief if brief else self._patient
        return exporter.export(spans) is SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Let go of what is being sent."""
        self._patient.shutdown()
        self._brief.shutdown()


class FigureExporter(MetricExporter):
    """Sends figures, and notes whether they were taken, which the SDK's reader tells nobody.

    Attributes:
        brief: whether somebody waits to play on.
        taken: whether the collector took the last ones.
    """

    def __init__(self, url: str) -> None:
        self._patient = OTLPMetricExporter(url, timeout=_timeout_s("METRICS"))
        self._brief = OTLPMetricExporter(url, timeout=_brief_s("METRICS"))
        super().__init__(self._patient._preferred_temporality, self._patient._preferred_aggregation)
        self.brief = self.taken = False

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        exporter = self._brief if self.brief else self._patient
        result = exporter.export(metrics_data, timeout_millis, **kwargs)
        self.taken = result is MetricExportResult.SUCCESS
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._patient.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._patient.shutdown(timeout_millis, **kwargs)
        self._brief.shutdown(timeout_millis, **kwargs)


def _timeout_s(signal: str) -> float | None:
    """Return how long the exporter may take; None if the environment sets it."""
    return TIMEOUT_S if _of_environment(signal) is None else None


def _brief_s(signal: str) -> float:
    """Return how long it may take while a user waits: not longer than otherwise."""
    try:
        return min(BRIEF_S, float(_of_environment(signal) or BRIEF_S))
    except ValueError:
        return BRIEF_S


def _of_environment(signal: str) -> str | None:
    names = (f"OTEL_EXPORTER_OTLP_{signal}_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    return next(filter(None, map(os.environ.get, names)), None)
