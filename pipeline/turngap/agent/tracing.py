"""pipecat's own traces of a conversation, under the caller's, where both sides want them.

The caller wants them if its handshake has a `traceparent` that is sampled, and the server if
OTEL_EXPORTER_OTLP_ENDPOINT says where they go. In all other conversations nothing is traced.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING

from loguru import logger

from turngap.core.errors import InputError
from turngap.telemetry.telemetry import destination_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# A conversation's end may fall into the turns of others: a delivery takes no longer than this.
SEND_S = 1.0
_thread = ThreadPoolExecutor(1, "turngap-traces")


def ready_to_trace() -> None:
    """Import OpenTelemetry's SDK, where it is wanted: before anybody calls, as it takes long."""
    _provider()


def under_the_caller(headers: Mapping[str, str]) -> bool:
    """Hang what this task traces from now on under the caller's span; return whether it is to."""
    if not headers.get("traceparent") or _provider() is None:
        return False
    from opentelemetry import context, propagate, trace

    caller = propagate.extract(headers)
    if not trace.get_current_span(caller).get_span_context().trace_flags.sampled:
        return False
    context.attach(caller)
    return True


def send_traces() -> "Future[bool] | None":
    """Begin to send what a conversation left, which nobody needs to wait for.

    What a collector does not take is lost, and the log says so.
    """
    provider = _provider()
    return None if provider is None else _thread.submit(provider.force_flush)


@cache
def _provider() -> "TracerProvider | None":
    """Return the process's provider of tracers; None if nobody wants traces or they cannot go."""
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
