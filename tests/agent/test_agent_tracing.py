"""When the built-in agent traces a conversation, and under which span."""

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from otlp_collector import Collector, collector

from turngap.agent import tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the environment names, for a process that has no provider yet."""
    for name in ("PROTOCOL", "TRACES_ENDPOINT", "METRICS_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    tracing._provider.cache_clear()
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _: None)  # one a process, for good
    with collector() as kept:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", kept.url)
        yield kept
    tracing._provider.cache_clear()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"traceparent": f"00-{TRACE}-{SPAN}-00"},
        {"traceparent": "nonsense"},
        {"traceparent": "00-" + "f" * 100_000},
    ],
)
async def test_what_the_caller_does_not_ask_for_is_not_traced(
    headers: dict[str, str], there: Collector
) -> None:
    assert not tracing.under_the_caller(headers)


async def test_a_sampled_conversation_hangs_under_the_callers_span(there: Collector) -> None:
    async def conversation() -> None:
        assert tracing.under_the_caller({"traceparent": f"00-{TRACE}-{SPAN}-01"})
        provider = tracing._provider()
        assert provider is not None
        provider.get_tracer("pipecat.turn").start_span("conversation").end()
        await tracing.send_traces()

    await asyncio.create_task(conversation())  # a session has a task, and a context, of its own
    (span,) = there.spans
    assert (span.trace, span.parent) == (TRACE, SPAN)
    assert span.service == "turngap-agent"
    assert not trace.get_current_span().get_span_context().is_valid


async def test_without_a_collector_nothing_is_traced(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    assert not tracing.under_the_caller({"traceparent": f"00-{TRACE}-{SPAN}-01"})
    await tracing.send_traces()
