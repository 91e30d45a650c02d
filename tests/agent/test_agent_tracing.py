"""Traces of the built-in agent: in which conversations, and under which span."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otlp_collector import Collector, collector

from turngap.agent import observer, session
from turngap.agent.server import plain_app

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that the environment names, for a process that has no provider yet."""
    for name in ("PROTOCOL", "TRACES_ENDPOINT", "METRICS_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    observer._provider.cache_clear()
    monkeypatch.setattr(trace, "set_tracer_provider", lambda _: None)  # one a process, for good
    monkeypatch.setattr(observer, "SEND_S", 30.0)  # a busy machine is no slow collector
    with collector() as kept:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", kept.url)
        yield kept
    observer._provider.cache_clear()


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
    assert not observer.under_the_caller(headers)


async def test_a_sampled_conversation_hangs_under_the_callers_span(there: Collector) -> None:
    async def conversation() -> None:
        assert observer.under_the_caller({"traceparent": f"00-{TRACE}-{SPAN}-01"})
        trace_a("conversation")

    await asyncio.create_task(conversation())  # a session has a task, and a context, of its own
    sent()
    (span,) = there.spans
    assert (span.trace, span.parent) == (TRACE, SPAN)
    assert span.service == "turngap-agent"
    assert not trace.get_current_span().get_span_context().is_valid


async def test_without_a_collector_nothing_is_traced(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    assert not observer.under_the_caller({"traceparent": f"00-{TRACE}-{SPAN}-01"})
    assert observer.send_traces() is None


async def test_a_collector_that_does_not_answer_holds_no_session(there: Collector) -> None:
    there.held.clear()
    trace_a("conversation")
    first = observer.send_traces()  # which does not wait for the collector
    assert first is not None
    there.held.set()
    first.result(30)
    assert [span.name for span in there.spans] == ["conversation"]


async def test_no_span_is_sent_before_a_conversation_is_over(there: Collector) -> None:
    for n in range(1500):
        trace_a(f"span {n}")
    assert not there.requests
    sent()
    assert len(there.spans) == 1500


def test_the_sdk_is_there_before_anybody_calls(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(session, "ready_to_trace", lambda: asked.append(True))
    bare: Any = SimpleNamespace(engines={}, offers=SimpleNamespace(prepare=bool), domain=None)
    session.Assembly.prepare(bare)
    assert asked
    observer.ready_to_trace()
    assert observer._provider.cache_info().currsize == 1


def made_provider() -> TracerProvider:
    made = observer._provider()
    assert made is not None
    return made


def trace_a(name: str) -> None:
    made_provider().get_tracer("pipecat.turn").start_span(name).end()


def sent() -> None:
    sending = observer.send_traces()
    assert sending is not None
    sending.result(30)


def test_what_is_no_conversation_is_not_traced(
    there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = made_provider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made)
    seats: Any = SimpleNamespace(taken=0)
    assert TestClient(plain_app("made", seats)).get("/healthz").status_code == 200
    made.force_flush()
    assert not there.requests
