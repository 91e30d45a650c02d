"""A collector that keeps what it is sent by OTLP over HTTP, decoded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """A span as it arrived; `parent` is empty for a root."""

    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    failed: str | None
    service: str

    @property
    def ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


@dataclass
class Collector:
    """The received data; `status` is answered after `held` is set, and 405 to what it refuses."""

    url: str = ""
    status: int = 200
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    held: Event = field(default_factory=Event)
    refuses: str = ""

    @property
    def spans(self) -> list[Span]:
        return [
            _span(span, _values(resource.resource.attributes).get("service.name", ""))
            for path, _, body in self.requests
            if path.endswith("/v1/traces")
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def points(self) -> list[tuple[str, str, dict[str, Any], Any]]:
        """Each point of the last delivery of figures: name, unit, attributes, and the point."""
        return [
            (metric.name, metric.unit, _values(point.attributes), point)
            for metric in self._metrics
            for point in (*metric.histogram.data_points, *metric.sum.data_points)
        ]

    @property
    def texts(self) -> dict[str, str]:
        """The description of each figure in the last delivery, by its name."""
        return {metric.name: metric.description for metric in self._metrics}

    @property
    def _metrics(self) -> list[Any]:
        bodies = [body for path, _, body in self.requests if path.endswith("/v1/metrics")]
        return [
            metric
            for resource in ExportMetricsServiceRequest.FromString(bodies[-1]).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]


@contextmanager
def collector(*, status: int = 200, holds: bool = False) -> Iterator[Collector]:
    """Serve one on loopback; `holds`: it answers nothing before `held` is set."""
    kept = Collector(status=status)
    if not holds:
        kept.held.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            kept.held.wait(30)
            kept.requests.append((self.path, dict(self.headers), body))
            self.send_response(405 if self.path == kept.refuses else kept.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    kept.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield kept
    finally:
        kept.held.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _span(span: Any, service: str) -> Span:
    return Span(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        failed=span.status.message if span.status.code == 2 else None,
        service=service,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
