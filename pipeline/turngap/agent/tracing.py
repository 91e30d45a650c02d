"""pipecat's own traces of a conversation, under the caller's, where both sides want them.

The caller wants them if its handshake has a `traceparent` that is sampled, and whoever serves if
OTEL_EXPORTER_OTLP_ENDPOINT says where they go. In all other conversations nothing is traced.
"""

import asyncio
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from loguru import logger

from turngap.core.errors import InputError
from turngap.telemetry.destination import Destination, remember_headers, why_unsendable

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

# Spans are sent when a conversation is over. Until then they wait, so many at most.
MOST_WAITING = 4096
_NEVER_MS = 3_600_000


def under_the_caller(headers: Mapping[str, str]) -> bool:
    """Hang what this task traces from now on under the caller's span; return whether it is to."""
    if not headers.get("traceparent") or _provider() is None:
        return False
    from opentelemetry import context, propagate, trace

    found = propagate.extract(headers)
    if not trace.get_current_span(found).get_span_context().trace_flags.sampled:
        return False
    context.attach(found)
    return True


async def send_traces() -> None:
    """Send what a conversation left; a collector that fails is the log's concern alone."""
    if (provider := _provider()) is not None:
        await asyncio.to_thread(provider.force_flush)


@cache
def _provider() -> "TracerProvider | None":
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
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from turngap.telemetry.sender import resource_of

    remember_headers()
    provider = TracerProvider(resource=resource_of("turngap-agent"))
    provider.add_span_processor(
        BatchSpanProcessor(
            OTLPSpanExporter(where.traces),
            max_queue_size=MOST_WAITING,
            max_export_batch_size=MOST_WAITING,
            schedule_delay_millis=_NEVER_MS,
        )
    )
    trace.set_tracer_provider(provider)
    return provider
