"""What telemetry gets of conversations at the page: each once it is over, while nobody talks."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from foreign_talk import a_turn, answers, foreign
from live_server import CLOCK, serving
from made_records import USER_END_NS, make_turn
from opentelemetry.sdk.trace import ReadableSpan
from otlp_collector import Collector, collector
from websockets.asyncio.client import connect

from turngap.caller.endpoint import Endpoint
from turngap.clocks import wall_ns
from turngap.core.clock import NS_PER_S
from turngap.live.keeping import Keeping
from turngap.live.telling import Telling
from turngap.telemetry.exporters import SpanExporters
from turngap.telemetry.telemetry import Telemetry, telemetry_to
from turngap.testing.clock import ManualClock


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in ("TRACES_ENDPOINT", "METRICS_ENDPOINT", "PROTOCOL", "HEADERS"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    monkeypatch.setattr("turngap.telemetry.exporters.BRIEF_S", 30.0)  # on a busy machine, too
    with collector() as kept:
        yield kept


async def until_told(there: Collector, conversations: int = 1) -> None:
    async with asyncio.timeout(20):
        while sum(not span.parent for span in there.spans) < conversations:
            await CLOCK.sleep_until_ns(CLOCK.now_ns() + 20_000_000)


async def test_a_conversation_is_sent_when_it_is_over_and_its_agent_is_told_the_trace(
    tmp_path: Path, there: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = telemetry_to(there.url)
    keeping = Keeping(tmp_path / "runs", telemetry=telemetry)
    begun_ns = wall_ns()
    async with answers() as agent:
        opened: list[str] = []
        opens = Endpoint.open

        def noted(endpoint: Endpoint, *where: Any, **how: Any) -> Any:
            opened.append(endpoint.opening()[1].get("traceparent", ""))
            return opens(endpoint, *where, **how)

        monkeypatch.setattr(Endpoint, "open", noted)
        url = agent.url
        answering = foreign(f"{url}/?key=s3cr3t-s3cr3t")
        async with serving(tmp_path, answering=answering, keeping=keeping) as served:
            async with served.page() as page:
                await a_turn(page)
                assert not there.requests, "nothing is sent while somebody talks"
            await until_told(there)
    (root,) = (span for span in there.spans if not span.parent)
    (turn,) = (span for span in there.spans if span.name == "turngap.turn")
    (folder,) = (tmp_path / "runs").iterdir()
    where = url.partition("://")[2]
    assert root.name == f"invoke_agent {where}/"
    assert root.attributes["gen_ai.conversation.id"] == f"{folder.name}/remote-live/1/0"
    assert root.attributes["turngap.dialect"] == "pipecat"
    assert root.attributes["turngap.turns"] == 1
    assert (turn.attributes["turngap.outcome"], turn.parent) == ("answered", root.id)
    # Not on the page's clock, which began at 0; its stand-in says a second of speech at once.
    assert begun_ns - 60 * NS_PER_S < turn.start_ns < turn.end_ns <= root.end_ns
    assert root.end_ns < wall_ns() + 60 * NS_PER_S
    assert opened == [f"00-{root.trace}-{root.id}-01"]
    assert "s3cr3t" not in str(there.requests)
    assert str(telemetry.close()).startswith("telemetry of 1 conversation sent")


async def test_what_is_over_while_another_talks_waits_and_a_close_loses_nothing(
    there: Collector,
) -> None:
    telemetry, clock, talking = telemetry_to(there.url), ManualClock(), True
    telling = Telling(telemetry, clock, lambda: not talking)
    await telling.over(telling.begin("agent"), {}, None)
    assert not there.requests
    talking = False
    await telling.over(telling.begin("agent"), {}, "the line was lost")
    assert [span.failed for span in there.spans] == [None, "the line was lost"]
    telling.close()
    await telling.over(telling.begin("agent"), {}, None)
    await telling.closed()
    assert len(there.spans) == 2
    assert str(telemetry.close()).startswith("telemetry of 3 conversations sent")
    assert len(there.spans) == 3


@pytest.mark.parametrize("path", ["/live", "/ws"])
async def test_whoever_calls_stops_what_is_sent_and_waits_for_one_brief_request(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    briefly: list[bool] = []
    export = SpanExporters.export

    def noted(exporters: SpanExporters, spans: Sequence[ReadableSpan], *, brief: bool) -> bool:
        briefly.append(brief)
        return export(exporters, spans, brief=brief)

    monkeypatch.setattr(SpanExporters, "export", noted)
    with collector(holds=True) as slow:
        telemetry = telemetry_to(slow.url)
        keeping = Keeping(None, telemetry=telemetry)
        async with serving(tmp_path, keeping=keeping) as served:
            telling = Telling(telemetry, CLOCK, lambda: True)
            over = asyncio.create_task(telling.over(telling.begin("agent"), {}, None))
            while (thread := telemetry._thread) is None:  # until it has begun to send
                await CLOCK.sleep_until_ns(CLOCK.now_ns() + 1_000_000)
            async with connect(served.url(path, "ws")):
                await served.becomes(1)
                await asyncio.to_thread(thread.stop.wait, 20)
                assert thread.stop.is_set()
            await over
        slow.held.set()
        telemetry.close()
    assert briefly[0] is True


@pytest.mark.parametrize(
    ("offset_ns", "ends_at_ns"),
    [(30 * NS_PER_S, 36), (None, 60), (2**61, 60), (-(2**61), 60)],
    ids=["as the page says", "unknown", "in the future", "before the call"],
)
async def test_a_turn_lies_where_the_page_says_unless_that_cannot_be(
    offset_ns: int | None, ends_at_ns: int, there: Collector
) -> None:
    telemetry, clock = telemetry_to(there.url), ManualClock(start_ns=0)
    telling = Telling(telemetry, clock, lambda: True)
    talk = telling.begin("agent")
    assert talk is not None
    await clock.advance(60 * NS_PER_S)
    page = make_turn()
    talk.turn(page, USER_END_NS + NS_PER_S, offset_ns)
    await telling.over(talk, {}, None)
    telemetry.close()
    (root,) = (span for span in there.spans if not span.parent)
    (turn,) = (span for span in there.spans if span.name == "turngap.turn")
    assert (root.end_ns - turn.end_ns) / NS_PER_S == pytest.approx(60 - ends_at_ns)
    stages = [span for span in there.spans if span.parent == turn.id]
    assert sum(span.end_ns - span.start_ns for span in stages) == page.gap_ns


async def test_a_turn_without_an_instant_is_told_all_the_same(there: Collector) -> None:
    telemetry, clock = telemetry_to(there.url), ManualClock()
    telling = Telling(telemetry, clock, lambda: True)
    talk = telling.begin("agent")
    assert talk is not None
    talk.turn(make_turn(marks_ms=None, ended="timeout").model_copy(update={"marks": ()}), 5, None)
    await telling.over(talk, {}, None)
    assert "could not be told" not in str(telemetry.close())
    assert [span.name for span in there.spans if span.parent] == ["turngap.turn"]


def test_nobody_is_told_of_anything_without_a_collector() -> None:
    assert Telling(Telemetry(), CLOCK, lambda: True).begin("agent") is None
