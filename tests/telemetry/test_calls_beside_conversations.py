"""Calls that are no conversation, such as those that find out a dialect: they ask for no trace."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from commandline import SCENARIOS
from otlp_collector import Collector, collector

from turngap.caller.endpoint import PIPECAT, Endpoint
from turngap.play import rounds
from turngap.play.target import AgentChoice, resolve
from turngap.telemetry import OFF, telemetry_to

AGENT = Endpoint("ws://127.0.0.1:9/ws", headers=("X-Key: a",))


@pytest.fixture
def there() -> Iterator[Collector]:
    with collector() as kept:
        yield kept


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Endpoint]:
    """Return the calls that find out what the agent speaks."""
    seen: list[Endpoint] = []

    async def identify(endpoint: Endpoint, *_: object) -> Endpoint:
        seen.append(endpoint)
        return replace(endpoint, dialect=PIPECAT)

    monkeypatch.setattr(rounds, "identify", identify)
    return seen


async def test_the_call_that_finds_out_the_dialect_asks_for_no_trace(
    called: list[Endpoint], there: Collector
) -> None:
    telemetry = telemetry_to(there.url)
    target = resolve(AgentChoice(AGENT.url), SCENARIOS)
    found = await rounds.identified(target, AGENT, telemetry)
    _, headers, _ = called[0].opening()
    version, trace_id, span_id, flags = headers["traceparent"].split("-")
    assert (version, len(trace_id), len(span_id), flags) == ("00", 32, 16, "00")
    assert headers["X-Key"] == "a"
    assert found == replace(AGENT, dialect=PIPECAT)  # each conversation has a header of its own
    telemetry.close()
    assert not there.requests


async def test_without_telemetry_it_has_no_header(called: list[Endpoint]) -> None:
    target = resolve(AgentChoice(AGENT.url), SCENARIOS)
    await rounds.identified(target, AGENT, OFF)
    assert called == [AGENT]
