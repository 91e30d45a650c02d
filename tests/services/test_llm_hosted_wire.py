"""The providers' backends against servers that check what arrives."""

import json
from contextlib import AbstractContextManager
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

from turngap.backends import BackendSpec
from turngap.core.errors import AgentError, InputError
from turngap_services.llm.hosted import ANTHROPIC, CEREBRAS, GROQ, OPENAI
from turngap_services.llm.vllm import SPEC as VLLM

OPENAIS = pytest.mark.parametrize("spec", [OPENAI, CEREBRAS, GROQ], ids=lambda s: s.name)
ALL = [OPENAI, CEREBRAS, GROQ, ANTHROPIC]
PROVIDERS = pytest.mark.parametrize("spec", ALL, ids=lambda s: s.name)
MESSAGES: list[Any] = [{"role": "user", "content": "two pizzas"}]
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
        message = {
            "id": "1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "small",
        }
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
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in ALL:
        monkeypatch.setenv(spec.requires[-1].name, f"key of {spec.name}")


def serving_as(spec: BackendSpec, **values: Any) -> AbstractContextManager[FakeOpenAI]:
    key = None if spec is VLLM else f"key of {spec.name}"
    fake = FakeOpenAI(models=("big", "small"), key=key, **values)
    return serving(fake, AnthropicHandler if spec is ANTHROPIC else OpenAIHandler)


def settings(spec: BackendSpec, server: FakeOpenAI, **values: Any) -> Any:
    url = server.base_url.removesuffix("/v1") if spec is ANTHROPIC else server.base_url
    return spec.settings({"base_url": url, "model": "small", **values})


async def replies(service: Any, turns: int = 1) -> Line:
    async with running(service, params=PARAMS) as line:
        for turn in range(turns):
            await line.send(LLMContextFrame(LLMContext(MESSAGES)))
            await line.until(lambda n=turn: len(line.of(LLMFullResponseEndFrame)) > n)
    return line


def text_of(line: Line) -> str:
    return "".join(frame.text for frame in line.of(LLMTextFrame))


@OPENAIS
async def test_what_is_set_is_what_arrives_and_nothing_else(spec: BackendSpec) -> None:
    assert spec.prepare is not None
    with serving_as(spec) as server:
        asked = {"max_tokens": 44, "temperature": 0.5, "seed": 3, "service_tier": "priority"}
        chosen = settings(spec, server, **asked, extra_body={"reasoning_effort": "none"})
        spec.prepare(chosen)
        assert text_of(await replies(spec.create(chosen, InstantClock()))) == "Two pizzas."
    (chat,) = server.chats
    assert chat.headers["authorization"] == f"Bearer key of {spec.name}"
    assert chat.body == {
        "model": "small",
        "messages": MESSAGES,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 44,
        "temperature": 0.5,
        "seed": 3,
        "service_tier": "priority",
        "reasoning_effort": "none",
    }


@OPENAIS
async def test_what_is_not_set_is_left_to_the_provider(spec: BackendSpec) -> None:
    with serving_as(spec) as server:
        service = spec.create(settings(spec, server), InstantClock())
        assert text_of(await replies(service)) == "Two pizzas."
    assert set(server.chats[0].body) == {
        *("model", "messages", "stream", "stream_options", "max_completion_tokens")
    }


def made(server: FakeOpenAI, **values: Any) -> Any:
    return ANTHROPIC.create(settings(ANTHROPIC, server, **values), InstantClock())


async def test_standard_mode_asks_for_no_beta_of_ours() -> None:
    assert ANTHROPIC.prepare is not None
    with serving_as(ANTHROPIC) as server:
        ANTHROPIC.prepare(settings(ANTHROPIC, server))
        line = await replies(made(server, max_tokens=55))
    assert text_of(line) == "Two pizzas."
    (chat,) = server.chats
    assert chat.path == "/v1/messages?beta=true"
    assert chat.headers["x-api-key"] == "key of anthropic"
    assert chat.body["model"] == "small"
    assert chat.body["max_tokens"] == 55
    assert chat.body["messages"][0]["role"] == "user"
    assert "two pizzas" in json.dumps(chat.body["messages"])
    assert "speed" not in chat.body
    assert "fast-mode" not in chat.headers["anthropic-beta"]
    told = [d for f in line.of(MetricsFrame) for d in f.data]
    (usage,) = [d.value for d in told if isinstance(d, LLMUsageMetricsData)]
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 4)


async def test_fast_mode_and_its_beta_reach_the_wire() -> None:
    with serving_as(ANTHROPIC) as server:
        standard = await replies(made(server))
        fast = await replies(made(server, speed="fast"))
    assert text_of(standard) == text_of(fast) == "Two pizzas."
    before, after = server.chats
    assert after.body["speed"] == "fast"
    betas = set(after.headers["anthropic-beta"].split(","))
    # Those that pipecat sends by itself have to be there still: our header takes their place.
    assert betas == {"fast-mode-2026-02-01", *before.headers["anthropic-beta"].split(",")}


async def test_the_effort_that_is_set_arrives() -> None:
    with serving_as(ANTHROPIC) as server:
        await replies(made(server, effort="medium"))
    assert server.chats[0].body["output_config"] == {"effort": "medium"}


@pytest.mark.parametrize("spec", [*ALL, VLLM], ids=lambda s: s.name)
@pytest.mark.parametrize(("keep_alive", "connections"), [(True, 1), (False, 3)])
async def test_a_connection_lasts_for_the_session_or_for_a_turn(
    spec: BackendSpec, keep_alive: bool, connections: int
) -> None:
    with serving_as(spec) as server:
        service = spec.create(settings(spec, server, keep_alive=keep_alive), InstantClock())
        assert text_of(await replies(service, 3)) == "Two pizzas." * 3
    assert len(server.chats) == 3
    assert len({chat.connection for chat in server.chats}) == connections


@OPENAIS
def test_the_provider_is_asked_once_before_the_first_conversation(spec: BackendSpec) -> None:
    assert spec.prepare is not None
    with serving_as(spec) as server:
        for _ in range(2):
            spec.prepare(settings(spec, server))
    assert [seen.path for seen in server.seen] == ["/v1/models"]


@PROVIDERS
def test_a_wrong_key_is_one_clear_line(spec: BackendSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spec.prepare is not None
    monkeypatch.setenv(spec.requires[-1].name, "wrong")
    with serving_as(spec) as server, pytest.raises(AgentError, match="not accept the key") as e:
        spec.prepare(settings(spec, server))
    assert e.value.kind == "llm.key"
    assert "wrong" not in f"{e.value.message} {e.value.hint}"


@PROVIDERS
def test_a_model_that_is_not_there_is_told_with_those_that_are(spec: BackendSpec) -> None:
    assert spec.prepare is not None
    with serving_as(spec) as server, pytest.raises(AgentError, match="no model 'huge'") as e:
        spec.prepare(settings(spec, server, model="huge"))
    assert "big, small" in e.value.hint


@PROVIDERS
def test_a_missing_key_is_an_instruction(
    spec: BackendSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(spec.requires[-1].name)
    with pytest.raises(AgentError, match=f"needs env {spec.requires[-1].name}") as e:
        spec.require()
    assert e.value.hint == f"export {spec.requires[-1].name}=… (your key)"


FAILS: list[tuple[BackendSpec, dict[str, Any], str]] = [
    *((spec, {"status": status}, "") for spec in ALL[:3] for status in (401, 429, 500)),
    (ANTHROPIC, {"status": 529}, ""),
    (ANTHROPIC, {"dies_after": 1}, "Two "),
    (ANTHROPIC, {"dies_after": 1, "dies_in_order": True}, "Two "),
]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("spec", "change", "said"), FAILS)
async def test_a_request_that_fails_is_sent_once_and_told(
    spec: BackendSpec, change: dict[str, Any], said: str
) -> None:
    errors: list[str] = []
    with serving_as(spec, **change) as server:
        service = spec.create(settings(spec, server), InstantClock())

        async def on_error(_: object, frame: ErrorFrame) -> None:
            errors.append(frame.error)

        service.add_event_handler("on_error", on_error)
        assert text_of(await replies(service)) == said
    assert (len(server.chats), len(errors)) == (1, 1)


@OPENAIS
def test_settings_are_checked(spec: BackendSpec) -> None:
    with pytest.raises(InputError, match="base_url"):
        spec.settings({"base_url": "api.example"})
