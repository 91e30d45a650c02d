"""pipecat's own traces of a conversation, under the caller's, where both sides want them.

The caller wants them if its handshake has a `traceparent` that is sampled, and whoever serves if
OTEL_EXPORTER_OTLP_ENDPOINT says where they go. In all other conversations nothing is traced.
"""

from collections.abc import Mapping
from concurrent.futures import Future
from functools import cache
from typing import TYPE_CHECKING

from loguru import logger

from turngap.core.errors import InputError
from turngap.telemetry.destination import Destination, remember_headers, why_unsendable

if TYPE_CHECKING:
    from turngap.agent.tracing_sdk import Tracing


def ready_to_trace() -> None:
    """Bring OpenTelemetry's SDK, where it is wanted: before anybody calls, as it takes long."""
    _tracing()


def under_the_caller(headers: Mapping[str, str]) -> bool:
    """Hang what this task traces from now on under the caller's span; return whether it is to."""
    if not headers.get("traceparent") or _tracing() is None:
        return False
    from opentelemetry import context, propagate, trace

    found = propagate.extract(headers)
    if not trace.get_current_span(found).get_span_context().trace_flags.sampled:
        return False
    context.attach(found)
    return True


def send_traces() -> "Future[None] | None":
    """Begin to send what a conversation left, which nobody needs to wait for.

    A collector that fails is the log's concern alone.
    """
    return None if (tracing := _tracing()) is None else tracing.send()


@cache
def _tracing() -> "Tracing | None":
    """What spans are made with in this process; None: nobody wants any, or they cannot be sent."""
    try:
        where = Destination.of_environment()
    except InputError as e:
        logger.warning(f"nothing is traced: {e.message}")
        return None
    if where is None or where.traces is None:
        return None
    if why := why_unsendable(where):
        logger.warning(f"nothing is traced: {why}")
        return None
    from turngap.agent.tracing_sdk import Tracing

    remember_headers()
    return Tracing(where.traces)
