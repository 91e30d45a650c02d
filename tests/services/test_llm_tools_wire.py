"""Tools with the backends of other people's models: what goes over the wire, and what is run."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_openai import FakeOpenAI, serving
from pipecat.frames.frames import LLMRunFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
    LLMUserAggregatorParams,
)
from pipecat.turns.user_start import BaseUserTurnStartStrategy
from pipecat.turns.user_stop import BaseUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from running_line import InstantClock, Line, running
from test_llm_hosted_wire import AnthropicHandler
from test_llm_responses_wire import Peer, peer, say, whole
from websockets.asyncio.server import ServerConnection

from turngap.agent.tools import toolbox, tools
from turngap.backends import BackendSpec, find
from turngap.clocks import MonotonicClock
from turngap_services.llm.hosted import ANTHROPIC, CEREBRAS, GROQ, OPENAI
from turngap_services.llm.small import SPEC as SMALL
from turngap_services.llm.vllm import SPEC as VLLM

QUESTION: Any = {"role": "user", "content": "do I need an umbrella tomorrow"}
RESULT = '{"sky": "light rain", "degrees": "14"}'
ASKED = ("weather", {"day": "tomorrow"})


def conversation() -> LLMContext:
    box = toolbox(("clock", "weather"), InstantClock(), among=tools())
    return LLMContext([QUESTION], box)


@asynccontextmanager
async def asking(service: Any, context: LLMContext) -> AsyncIterator[Line]:
    """A conversation whose LLM is asked at once."""
    strategies = UserTurnStrategies(
        start=[BaseUserTurnStartStrategy()], stop=[BaseUserTurnStopStrategy()]
    )
    params = LLMUserAggregatorParams(user_turn_strategies=strategies)
    pair = LLMContextAggregatorPair(context, user_params=params)
    steps = (pair.user(), service, pair.assistant())
    async with running(*steps, params=PipelineParams()) as line:
        await line.send(LLMRunFrame())
        yield line


async def answered(service: Any, context: LLMContext) -> str:
    """Ask, and wait for words. Returns what was said."""
    async with asking(service, context) as line:
        await line.until(lambda: bool(_said(context)))
    return _said(context)


def _said(context: LLMContext) -> str:
    last: Any = context.get_messages()[-1]
    return last.get("content") or "" if last["role"] == "assistant" else ""


def offered(tools_sent: list[dict[str, Any]]) -> set[str]:
    return {tool.get("function", tool)["name"] for tool in tools_sent}


@pytest.mark.parametrize("spec", [OPENAI, CEREBRAS, GROQ, VLLM], ids=lambda s: s.name)
async def test_chat_completions_offer_the_tools_and_get_their_results(
    spec: BackendSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    for need in spec.requires:
        monkeypatch.setenv(need.name, "the key")
    with serving(FakeOpenAI(calls=[ASKED])) as server:
        settings = spec.settings({"base_url": server.base_url, "model": "m"})
        assert spec.prepare is not None
        spec.prepare(settings)
        assert (
            await answered(spec.create(settings, InstantClock()), conversation()) == "Two pizzas."
        )
    first, second = server.chats
    assert offered(first.body["tools"]) == offered(second.body["tools"]) == {"clock", "weather"}
    weather = next(t["function"] for t in first.body["tools"] if "weather" in str(t))
    assert weather["parameters"]["properties"]["day"]["enum"] == ["today", "tomorrow"]
    assert first.body["messages"] == [QUESTION]
    question, call, result = second.body["messages"]
    assert question == QUESTION
    function = call["tool_calls"][0]["function"]
    assert (function["name"], json.loads(function["arguments"])) == ASKED
    assert (result["role"], result["content"]) == ("tool", RESULT)
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]


async def test_a_call_of_several_runs_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the key")
    with serving(FakeOpenAI(calls=[ASKED, ("weather", {"day": "today"})])) as server:
        settings = OPENAI.settings({"base_url": server.base_url, "model": "m"})
        assert await answered(OPENAI.create(settings, InstantClock()), conversation())
    results = [m["content"] for m in server.chats[-1].body["messages"] if m["role"] == "tool"]
    assert sorted(results) == [RESULT, '{"sky": "sunny", "degrees": "20"}']
    assert len(server.chats) == 2  # once both are there


async def test_a_prompt_that_is_read_ahead_offers_the_tools_and_runs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the key")
    with serving(FakeOpenAI(calls=[ASKED])) as server:
        settings = OPENAI.settings({"base_url": server.base_url, "model": "m"})
        service, context = OPENAI.create(settings, InstantClock()), conversation()
        await service.run_inference(context, max_tokens=1)
        await service.cleanup()
    assert offered(server.seen[-1].body["tools"]) == {"clock", "weather"}
    assert context.get_messages() == [QUESTION]


class AnthropicTools(AnthropicHandler):
    """Calls a tool where no result has come yet."""

    def _stream(self, fake: FakeOpenAI) -> None:
        if "tool_result" in json.dumps(self.server_fake.chats[-1].body["messages"]):
            super()._stream(fake)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        name, arguments = ASKED
        usage = {"input_tokens": 7, "output_tokens": 1}
        message = {"id": "1", "type": "message", "role": "assistant", "content": [], "model": "m"}
        self._named("message_start", {"message": {**message, "usage": usage}})
        block = {"type": "tool_use", "id": "toolu_1", "name": name, "input": {}}
        self._named("content_block_start", {"index": 0, "content_block": block})
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        self._named("content_block_delta", {"index": 0, "delta": delta})
        self._named("content_block_stop", {"index": 0})
        end = {"stop_reason": "tool_use", "stop_sequence": None}
        self._named("message_delta", {"delta": end, "usage": {"output_tokens": 4}})
        self._named("message_stop", {})
        self._chunk(b"")


async def test_anthropics_messages_do_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the key")
    with serving(FakeOpenAI(key="the key"), AnthropicTools) as server:
        base_url = server.base_url.removesuffix("/v1")
        settings = ANTHROPIC.settings({"base_url": base_url, "model": "m"})
        said = await answered(ANTHROPIC.create(settings, InstantClock()), conversation())
    assert said == "Two pizzas."
    first, second = server.chats
    assert offered(first.body["tools"]) == {"clock", "weather"}
    (result,) = second.body["messages"][-1]["content"]
    assert (result["type"], result["tool_use_id"], result["content"]) == (
        "tool_result",
        "toolu_1",
        RESULT,
    )


async def calling(peer_: Peer, socket: ServerConnection) -> None:
    """A response that is one call."""
    name, arguments = ASKED
    item = {"type": "function_call", "id": "f1", "call_id": "call_1", "name": name}
    await say(socket, "response.created", response={"id": "r1"})
    await say(socket, "response.output_item.added", item={**item, "arguments": ""})
    text = json.dumps(arguments)
    await say(socket, "response.function_call_arguments.delta", item_id="f1", delta=text)
    await say(socket, "response.function_call_arguments.done", item_id="f1", arguments=text)
    done = {**item, "arguments": text, "status": "completed"}
    await say(socket, "response.output_item.done", item=done)
    usage = {"input_tokens": 7, "output_tokens": 2, "total_tokens": 9}
    about = {"id": "r1", "model": "m", "output": [done], "usage": usage}
    await say(socket, "response.completed", response=about)


async def test_the_responses_api_does_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the key")
    async with peer(calling, whole) as server:
        values = {"base_url": server.url, "transport": "websocket", "model": "m"}
        service = OPENAI.create(OPENAI.settings(values), InstantClock())
        assert await answered(service, conversation()) == "Two pizzas."
    first, second = server.requests
    assert offered(first["tools"]) == {"clock", "weather"}
    result = second["input"][-1]
    assert (result["type"], result["call_id"]) == ("function_call_output", "call_1")
    assert result["output"] == RESULT


@pytest.mark.parametrize("which", ["route", "race", "opener", "best-of"])
async def test_a_combined_model_calls_what_its_parts_would_have_called(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "the key")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the key")
    with (
        serving(FakeOpenAI(calls=[ASKED])) as openai,
        serving(FakeOpenAI(key="the key"), AnthropicTools) as anthropic,
    ):
        names = ["anthropic", "openai"]
        urls = [anthropic.base_url.removesuffix("/v1"), openai.base_url]
        own = [{"base_url": url, "model": "m"} for url in urls]
        values: dict[str, Any] = {"candidates": names, "candidate_settings": own}
        if which != "best-of":
            values = dict(zip(("full", "fast"), names, strict=True))
            values |= dict(zip(("full_settings", "fast_settings"), own, strict=True))
        spec = find("llm", which)
        # However busy this machine is.
        settings = spec.settings(values | {"first_token_ms": 20_000})
        context = conversation()
        said = await answered(spec.create(settings, MonotonicClock()), context)
    assert said == "Two pizzas."
    roles = [message["role"] for message in context.get_messages() if isinstance(message, dict)]
    assert roles == ["user", "assistant", "tool", "assistant"]
    # One of them was asked with the result.
    asked = [json.dumps(chat.body["messages"]) for chat in (*openai.chats, *anthropic.chats)]
    assert sum("light rain" in messages for messages in asked) == 1


@pytest.mark.parametrize("spec", [SMALL], ids=lambda s: s.name)
def test_who_calls_no_tools_says_so(spec: BackendSpec) -> None:
    assert not spec.tools
