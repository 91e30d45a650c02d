"""`openai` by the Responses API over a WebSocket, against a server that checks what arrives."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import LLMService
from running_line import PATIENCE_S, InstantClock, Line, running
from websockets.asyncio.server import ServerConnection, serve

from turngap.core.errors import InputError
from turngap_services.llm.hosted import OPENAI

KEY = "key of openai"
PARAMS = PipelineParams(enable_metrics=True, enable_usage_metrics=True)
WORDS = ("Two ", "pizzas.")
FIRST: Any = {"role": "user", "content": "two pizzas"}
SECOND: Any = {"role": "user", "content": "and a cola"}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@dataclass
class Peer:
    """A server of Responses: what it saw, and how it answers each request."""

    answers: list[Callable[["Peer", ServerConnection], Coroutine[Any, Any, None]]]
    url: str = ""
    connections: list[tuple[str, str | None]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        key = socket.request.headers.get("Authorization")
        self.connections.append((socket.request.path, key))
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "response.cancel":
                self.cancelled.set()
                await say(socket, "response.incomplete", response={"id": event["response_id"]})
                continue
            self.requests.append(event)
            await self.answers[len(self.requests) - 1](self, socket)


async def say(socket: ServerConnection, kind: str, **about: Any) -> None:
    await socket.send(json.dumps({"type": kind, **about}))


async def whole(peer: Peer, socket: ServerConnection) -> None:
    name = f"r{len(peer.requests)}"
    await say(socket, "response.created", response={"id": name})
    for word in WORDS:
        await say(socket, "response.output_text.delta", delta=word)
    text = [{"type": "output_text", "text": "".join(WORDS)}]
    output = [{"type": "message", "role": "assistant", "content": text}]
    usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    about = {"id": name, "model": "m", "output": output, "usage": usage}
    await say(socket, "response.completed", response=about)


async def half(peer: Peer, socket: ServerConnection) -> None:
    """Begins, and waits to be cancelled."""
    await say(socket, "response.created", response={"id": f"r{len(peer.requests)}"})
    await say(socket, "response.output_text.delta", delta=WORDS[0])


async def dying(peer: Peer, socket: ServerConnection) -> None:
    await half(peer, socket)
    await socket.close(1011)


async def failing(peer: Peer, socket: ServerConnection) -> None:
    await half(peer, socket)
    await say(socket, "response.failed", response={"error": {"message": "out of order"}})


async def at_its_end(peer: Peer, socket: ServerConnection) -> None:
    await half(peer, socket)
    why = {"incomplete_details": {"reason": "max_output_tokens"}}
    await say(socket, "response.incomplete", response=why)


@asynccontextmanager
async def peer(
    *answers: Callable[[Peer, ServerConnection], Coroutine[Any, Any, None]],
) -> AsyncIterator[Peer]:
    made = Peer(list(answers))
    async with serve(made.serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        made.url = f"http://127.0.0.1:{port}/v1"
        yield made


def created(to: Peer, errors: list[str], **values: Any) -> LLMService[Any]:
    settings = OPENAI.settings({"base_url": to.url, "transport": "websocket", **values})
    service = OPENAI.create(settings, InstantClock())

    async def on_error(_: object, frame: ErrorFrame) -> None:
        errors.append(frame.error)

    service.add_event_handler("on_error", on_error)
    return service


async def asked(line: Line, *messages: Any, replies: int = 1) -> None:
    await line.send(LLMContextFrame(LLMContext(list(messages))))
    await line.until(lambda: len(line.of(LLMFullResponseEndFrame)) == replies)


def text(line: Line) -> str:
    return "".join(frame.text for frame in line.of(LLMTextFrame))


async def test_one_connection_serves_a_conversation_and_only_what_is_new_is_sent() -> None:
    errors: list[str] = []
    async with peer(whole, whole) as server:
        service = created(
            server,
            errors,
            model="m",
            max_tokens=33,
            temperature=0.25,
            service_tier="priority",
            extra_body={"truncation": "auto"},
        )
        async with running(service, params=PARAMS) as line:
            await asked(line, FIRST)
            reply = {"role": "assistant", "content": "".join(WORDS)}
            await asked(line, FIRST, reply, SECOND, replies=2)
    assert errors == []
    assert server.connections == [("/v1/responses", f"Bearer {KEY}")]
    first, second = server.requests
    assert first["type"] == "response.create"
    assert {name: first[name] for name in ("model", "max_output_tokens", "temperature")} == {
        "model": "m",
        "max_output_tokens": 33,
        "temperature": 0.25,
    }
    assert (first["service_tier"], first["truncation"]) == ("priority", "auto")
    assert first["store"] is False
    assert "previous_response_id" not in first
    assert [item["content"] for item in first["input"]] == ["two pizzas"]
    assert second["previous_response_id"] == "r1"
    assert [item["content"] for item in second["input"]] == ["and a cola"]
    assert text(line) == "Two pizzas." * 2
    told = [d for f in line.of(MetricsFrame) for d in f.data]
    usages = [d.value for d in told if isinstance(d, LLMUsageMetricsData)]
    assert [(usage.prompt_tokens, usage.completion_tokens) for usage in usages] == [(7, 2)] * 2


async def test_an_interruption_cancels_the_reply_and_the_connection_goes_on() -> None:
    errors: list[str] = []
    async with (
        peer(half, whole) as server,
        running(created(server, errors), params=PARAMS) as line,
    ):
        await line.send(LLMContextFrame(LLMContext([FIRST])))
        await line.until(lambda: bool(line.of(LLMTextFrame)))
        await line.send(InterruptionFrame())
        async with asyncio.timeout(PATIENCE_S):
            await server.cancelled.wait()
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
        await asked(line, FIRST, SECOND, replies=2)
    assert len(server.connections) == 1
    assert len(server.requests) == 2
    assert text(line) == "Two Two pizzas."
    assert errors == []


async def test_a_connection_that_is_lost_in_mid_reply_fails_it_and_serves_the_next() -> None:
    errors: list[str] = []
    async with (
        peer(dying, whole) as server,
        running(created(server, errors), params=PARAMS) as line,
    ):
        await asked(line, FIRST)
        assert text(line) == "Two "
        await asked(line, FIRST, SECOND, replies=2)
    (error,) = errors
    assert "the server closed the connection instead of answering" in error
    assert len(server.requests) == 2  # and none of them twice
    assert len(server.connections) == 2
    # The new connection knows nothing of the old one's reply.
    assert "previous_response_id" not in server.requests[1]
    assert text(line) == "Two Two pizzas."


@pytest.mark.parametrize(
    ("answer", "told"), [(failing, ["LLM response error: out of order"]), (at_its_end, [])]
)
async def test_a_reply_that_fails_is_told_and_one_that_is_long_enough_is_none(
    answer: Callable[..., Any], told: list[str]
) -> None:
    errors: list[str] = []
    async with peer(answer) as server, running(created(server, errors), params=PARAMS) as line:
        await asked(line, FIRST)
    assert errors == told
    assert text(line) == "Two "


def test_a_seed_is_refused_where_it_would_not_be_sent() -> None:
    with pytest.raises(InputError, match="the Responses API has no seed"):
        OPENAI.settings({"transport": "websocket", "seed": 1})
    OPENAI.settings({"seed": 1})  # over HTTP there is one


def test_a_connection_a_request_is_refused_where_there_is_one_for_the_session() -> None:
    with pytest.raises(InputError, match="a WebSocket stays open"):
        OPENAI.settings({"transport": "websocket", "keep_alive": False})
