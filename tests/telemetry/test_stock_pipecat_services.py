"""Stock services of pipecat's, traced by pipecat itself: their spans lie under the heard turns.

The bot is the example's, with pipecat's own services for OpenAI in place of turngap's engines. They
speak to OpenAI's HTTP API in memory, so that all of it plays in virtual time.
"""

import importlib.util
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commandline import ROOT, SCENARIOS, turngap_here
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otlp_collector import Collector, Span, collector
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.stt import OpenAISTTService
from pipecat.services.openai.tts import OpenAITTSService
from virtual_agents import VirtualAgents

from turngap.core.clock import Clock, ms_to_ns
from turngap.testing import agent
from turngap.testing.memory import End, offered
from turngap.testing.virtual import LoopClock, virtual_clocks

# How long each of the services takes, by the stage that it makes.
TAKES_MS = {"transcript": 120.0, "llm_first_token": 60.0, "tts_first_audio": 80.0}
LATENCY = "turn.user_bot_latency_seconds"
SERVICES = {"stt": OpenAISTTService, "llm": OpenAILLMService, "tts": OpenAITTSService}
RATE_HZ = 24_000  # of OpenAI's voices

# The HTTP library under this version of OpenAI's client: httpx, or what came after it.
http = importlib.import_module(DefaultAsyncHttpxClient.__mro__[1].__module__.partition(".")[0])


async def takes(stage: str) -> None:
    await passes(TAKES_MS[stage])


async def passes(ms: float) -> None:
    clock = LoopClock()
    await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(ms))


async def answer(request: Any) -> Any:
    """Answer as OpenAI's API does."""
    path = request.url.path
    if path.endswith("/audio/transcriptions"):
        await takes("transcript")
        return http.Response(200, json={"text": "what time is it"})
    if path.endswith("/chat/completions"):
        return http.Response(200, headers={"content-type": "text/event-stream"}, content=tokens())
    assert path.endswith("/audio/speech")
    return http.Response(200, content=voice())


async def tokens() -> AsyncIterator[bytes]:
    await takes("llm_first_token")
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}
    deltas: list[dict[str, Any]] = [{"content": "It is "}, {"content": "noon."}, {}]
    for event in [
        *({"choices": [{"index": 0, "delta": delta}]} for delta in deltas),
        {"choices": [], "usage": usage},
    ]:
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", **event}
        yield f"data: {json.dumps(chunk)}\n\n".encode()
    yield b"data: [DONE]\n\n"


async def voice() -> AsyncIterator[bytes]:
    await takes("tts_first_audio")
    yield agent.voice(1000, RATE_HZ).tobytes()


def stock(kind: str, *_: object, **__: object) -> Any:
    """A service as pipecat ships it, whose client reaches the API above."""
    service = SERVICES[kind](api_key="none")
    client = DefaultAsyncHttpxClient(transport=http.MockTransport(answer))
    service._client = AsyncOpenAI(api_key="none", http_client=client)
    return service


@pytest.fixture
def there() -> Iterator[Collector]:
    with collector() as kept:
        yield kept


@pytest.fixture
def example(there: Collector, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example's bot, of stock services, with marks, and with what `setup_tracing` sets up."""
    spec = importlib.util.spec_from_file_location("bot", ROOT / "examples" / "pipecat_bot.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.app.state.marks, module.app.state.otlp = True, there.url
    monkeypatch.setattr(module, "engine", stock)
    provider = TracerProvider(resource=Resource.create({"service.name": "pipecat-bot"}))
    exporter = OTLPSpanExporter(f"{there.url}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)  # one a process, otherwise for good
    module.app.state.traces = provider
    return module


@pytest.fixture
def spans(
    example: ModuleType,
    there: Collector,
    virtual_agents: VirtualAgents,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> list[Span]:
    """Return the spans of three turns that the collector has, from both sides."""

    async def course(end: End, clock: Clock) -> None:
        await passes(1)  # at 0, pipecat's clock takes itself for one that has not begun
        _, headers, _ = virtual_agents.opened[-1].opening()
        await example.from_client(offered(end, headers))

    with virtual_clocks():
        done = turngap_here(
            capsys, "replay", SCENARIOS / "quick-questions.yaml", "--calibration", "0",
            "--agent", virtual_agents.url_of(course), "--out", tmp_path, "--otlp", there.url,
        )  # fmt: skip
    assert done.code in (0, 1, 3), done.err
    example.app.state.traces.shutdown()  # which sends what is left
    # On a busy machine a request may be broken off and sent again, with the same spans.
    return list({span.id: span for span in there.spans}.values())


def test_the_spans_of_stock_services_hang_under_the_callers(spans: list[Span]) -> None:
    by_id = {span.id: span for span in spans}

    def path(span: Span) -> list[str]:
        above = path(by_id[span.parent]) if span.parent else []
        return [*above, span.name]

    # One tree, in which nothing lacks the span above it.
    assert len({span.trace for span in spans}) == 1
    (root,) = (span.name for span in spans if not span.parent)
    assert root.startswith("invoke_agent ")
    of_the_bot = [span for span in spans if span.service == "pipecat-bot"]
    found = Counter(tuple(path(span)) for span in of_the_bot)
    turn = (root, "conversation", "turn")
    assert found == {turn[:2]: 1, turn: 3, **{(*turn, service): 3 for service in SERVICES}}
    # Each of pipecat's turns has one of each service, and says the claim that the heard turn tells.
    turns = [span for span in of_the_bot if span.name == "turn"]
    for span in turns:
        below = Counter(each.name for each in of_the_bot if each.parent == span.id)
        assert below == dict.fromkeys(SERVICES, 1)
    heard = [span for span in spans if path(span) == [root, "turngap.turn"]]
    assert [span.attributes["turngap.turn"] for span in heard] == [1, 2, 3]
    claimed = {s.attributes["turn.number"]: s.attributes[LATENCY] * 1000 for s in turns}
    for span in heard:
        told = span.attributes
        assert told["turngap.agent.gap_ms"] == pytest.approx(claimed[told["turngap.turn"]])
        assert told["turngap.agent.gap_source"] == "pipecat"
        difference_ms = told["turngap.gap_ms"] - told["turngap.agent.gap_ms"]
        assert told["turngap.gap_difference_ms"] == pytest.approx(difference_ms)
        stages = {s.name: s.attributes for s in spans if s.parent == span.id}
        took = {name: stages[f"turngap.{name}"]["turngap.stage_ms"] for name in TAKES_MS}
        assert took == pytest.approx(TAKES_MS)


def test_without_the_extra_the_example_names_it(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(SystemExit, match=r'pip install "\./turngap\[otlp\]"'):
        example.trace_to("http://127.0.0.1:4318")
