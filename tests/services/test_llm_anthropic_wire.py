"""The backend `anthropic` against a server that checks what arrives."""

import json
from typing import Any

import pytest
from fake_openai import FakeOpenAI, OpenAIHandler, serving
from pipecat.frames.frames import (
    ErrorFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import InstantClock, Line, running

from turngap.core.errors import AgentError
from turngap_services.llm.hosted import ANTHROPIC, AnthropicSettings

MESSAGES: list[Any] = [{"role": "user", "content": "two pizzas"}]
MODEL = "claude-haiku-4-5"
PARAMS = PipelineParams(enable_metrics=True, enable_usage_metrics=True)


class AnthropicHandler(OpenAIHandler):
    """Speaks enough of Anthropic's Messages API."""

    def _admitted(self) -> bool:
        if self.headers.get("x-api-key") != self.server_fake.key:
            self._json(401, {"type": "error", "error": {"type": "authentication_error"}})
            return False
        return True

    def _stream(self, fake: FakeOpenAI) -> None:
        kept = self._begin_stream(fake)
        usage = {"input_tokens": 7, "output_tokens": 1}
        message = {"id": "1", "type": "message", "role": "assistant", "content": [], "model": MODEL}
        self._named("message_start", {"message": {**message, "usage": usage}})
        block = {"type": "text", "text": ""}
        self._named("content_block_start", {"index": 0, "content_block": block})
        for count, word in enumerate(fake.words):
            if count == fake.dies_after:
                return
            delta = {"type": "text_delta", "text": word}
            self._named("content_block_delta", {"index": 0, "delta": delta})
        self._named("content_block_stop", {"index": 0})
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        self._named("message_delta", {"delta": end, "usage": {"output_tokens": 4}})
        self._named("message_stop", {})
        self._chunk(b"")
        self.close_connection = not kept

    def _named(self, name: str, data: dict[str, Any]) -> None:
        self._chunk(f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n".encode())


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the key")


def fake(**values: Any) -> FakeOpenAI:
    return FakeOpenAI(models=(f"{MODEL}-20251001", "claude-sonnet-4-6"), key="the key", **values)


def prepare(chosen: AnthropicSettings) -> None:
    assert ANTHROPIC.prepare is not None
    ANTHROPIC.prepare(chosen)


def settings(server: FakeOpenAI, **values: Any) -> AnthropicSettings:
    base_url = server.base_url.removesuffix("/v1")
    return AnthropicSettings(base_url=base_url, model=MODEL, **values)


async def reply(service: Any, turns: int = 1) -> tuple[str, Line]:
    async with running(service, params=PARAMS) as line:
        for turn in range(turns):
            await line.send(LLMContextFrame(LLMContext(MESSAGES)))
            await line.until(lambda n=turn: len(line.of(LLMFullResponseEndFrame)) > n)
    return "".join(frame.text for frame in line.of(LLMTextFrame)), line


async def test_standard_mode_asks_for_no_beta_of_ours() -> None:
    with serving(fake(), AnthropicHandler) as server:
        prepare(settings(server))
        text, line = await reply(ANTHROPIC.create(settings(server, max_tokens=55), InstantClock()))
    assert text == "Two pizzas."
    (chat,) = server.chats
    assert chat.path == "/v1/messages?beta=true"
    assert chat.headers["x-api-key"] == "the key"
    assert chat.body["model"] == MODEL
    assert chat.body["max_tokens"] == 55
    assert chat.body["messages"][0]["role"] == "user"
    assert "two pizzas" in json.dumps(chat.body["messages"])
    assert "speed" not in chat.body
    assert "fast-mode" not in chat.headers["anthropic-beta"]
    told = [d for f in line.of(MetricsFrame) for d in f.data]
    (usage,) = [d.value for d in told if isinstance(d, LLMUsageMetricsData)]
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 4)


async def test_fast_mode_and_its_beta_reach_the_wire() -> None:
    with serving(fake(), AnthropicHandler) as server:
        standard, _ = await reply(ANTHROPIC.create(settings(server), InstantClock()))
        fast, _ = await reply(ANTHROPIC.create(settings(server, speed="fast"), InstantClock()))
    assert standard == fast == "Two pizzas."
    before, after = server.chats
    assert after.body["speed"] == "fast"
    betas = set(after.headers["anthropic-beta"].split(","))
    # Those that pipecat sends by itself have to be there still: our header takes their place.
    assert betas == {"fast-mode-2026-02-01", *before.headers["anthropic-beta"].split(",")}


async def test_the_effort_that_is_set_arrives() -> None:
    with serving(fake(), AnthropicHandler) as server:
        await reply(ANTHROPIC.create(settings(server, effort="medium"), InstantClock()))
    assert server.chats[0].body["output_config"] == {"effort": "medium"}


@pytest.mark.parametrize(("keep_alive", "connections"), [(True, 1), (False, 3)])
async def test_a_connection_lasts_for_the_session_or_for_a_turn(
    keep_alive: bool, connections: int
) -> None:
    with serving(fake(), AnthropicHandler) as server:
        service = ANTHROPIC.create(settings(server, keep_alive=keep_alive), InstantClock())
        assert (await reply(service, 3))[0] == "Two pizzas." * 3
    assert len(server.chats) == 3
    assert len({chat.connection for chat in server.chats}) == connections


def test_a_wrong_key_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "wrong")
    with (
        serving(fake(), AnthropicHandler) as server,
        pytest.raises(AgentError, match="does not accept the key") as e,
    ):
        prepare(settings(server))
    assert e.value.kind == "llm.key"


def test_a_model_that_is_not_there_is_told_with_those_that_are() -> None:
    with (
        serving(fake(), AnthropicHandler) as server,
        pytest.raises(AgentError, match="no model 'llama'") as e,
    ):
        prepare(settings(server).model_copy(update={"model": "llama"}))
    assert "claude-sonnet-4-6" in e.value.hint


def test_a_missing_key_is_an_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(AgentError, match="needs env ANTHROPIC_API_KEY"):
        ANTHROPIC.require()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dies_after": 1}, "Two "),
        ({"dies_after": 1, "dies_in_order": True}, "Two "),
        ({"status": 529}, ""),
    ],
)
async def test_a_request_that_fails_is_sent_once_and_told(
    change: dict[str, Any], said: str
) -> None:
    errors: list[str] = []
    with serving(fake(**change), AnthropicHandler) as server:
        service = ANTHROPIC.create(settings(server), InstantClock())

        async def on_error(_: object, frame: ErrorFrame) -> None:
            errors.append(frame.error)

        service.add_event_handler("on_error", on_error)
        assert (await reply(service))[0] == said
    assert (len(server.chats), len(errors)) == (1, 1)
