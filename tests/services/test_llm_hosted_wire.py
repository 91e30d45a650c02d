"""The providers' backends against a server that checks what arrives."""

from typing import Any

import pytest
from fake_openai import FakeOpenAI, serving
from pipecat.frames.frames import ErrorFrame, LLMContextFrame, LLMFullResponseEndFrame, LLMTextFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import InstantClock, running

from turngap.backends import BackendSpec
from turngap.core.errors import AgentError, InputError
from turngap_services.llm.hosted import CEREBRAS, GROQ, OPENAI

PROVIDERS = pytest.mark.parametrize("spec", [OPENAI, CEREBRAS, GROQ], ids=lambda s: s.name)
MESSAGES: list[Any] = [{"role": "user", "content": "two pizzas"}]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in (OPENAI, CEREBRAS, GROQ):
        monkeypatch.setenv(spec.requires[0].name, f"key of {spec.name}")


def fake(spec: BackendSpec, **values: Any) -> FakeOpenAI:
    return FakeOpenAI(models=("big", "small"), key=f"key of {spec.name}", **values)


async def reply(service: Any, turns: int = 1) -> str:
    async with running(service, params=PipelineParams()) as line:
        for turn in range(turns):
            await line.send(LLMContextFrame(LLMContext(MESSAGES)))
            await line.until(lambda n=turn: len(line.of(LLMFullResponseEndFrame)) > n)
    return "".join(frame.text for frame in line.of(LLMTextFrame))


@PROVIDERS
async def test_what_is_set_is_what_arrives_and_nothing_else(spec: BackendSpec) -> None:
    assert spec.prepare is not None
    with serving(fake(spec)) as server:
        settings = spec.settings(
            {
                "base_url": server.base_url,
                "model": "small",
                "max_tokens": 44,
                "temperature": 0.5,
                "seed": 3,
                "service_tier": "priority",
                "extra_body": {"reasoning_effort": "none"},
            }
        )
        spec.prepare(settings)
        assert await reply(spec.create(settings, InstantClock())) == "Two pizzas."
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


@PROVIDERS
async def test_what_is_not_set_is_left_to_the_provider(spec: BackendSpec) -> None:
    with serving(fake(spec)) as server:
        settings = spec.settings({"base_url": server.base_url, "model": "big"})
        assert await reply(spec.create(settings, InstantClock())) == "Two pizzas."
    assert set(server.chats[0].body) == {
        *("model", "messages", "stream", "stream_options", "max_completion_tokens")
    }


@PROVIDERS
@pytest.mark.parametrize(("keep_alive", "connections"), [(True, 1), (False, 3)])
async def test_a_connection_lasts_for_the_session_or_for_a_turn(
    spec: BackendSpec, keep_alive: bool, connections: int
) -> None:
    with serving(fake(spec)) as server:
        settings = spec.settings(
            {"base_url": server.base_url, "model": "big", "keep_alive": keep_alive}
        )
        assert await reply(spec.create(settings, InstantClock()), 3) == "Two pizzas." * 3
    assert len(server.chats) == 3
    assert len({chat.connection for chat in server.chats}) == connections


@PROVIDERS
def test_the_provider_is_asked_once_before_the_first_conversation(spec: BackendSpec) -> None:
    assert spec.prepare is not None
    with serving(fake(spec)) as server:
        for _ in range(2):
            spec.prepare(spec.settings({"base_url": server.base_url, "model": "big"}))
    assert [seen.path for seen in server.seen] == ["/v1/models"]


@PROVIDERS
def test_a_wrong_key_is_one_clear_line(spec: BackendSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    assert spec.prepare is not None
    monkeypatch.setenv(spec.requires[0].name, "wrong")
    with serving(fake(spec)) as server, pytest.raises(AgentError, match="not accept the key") as e:
        spec.prepare(spec.settings({"base_url": server.base_url, "model": "big"}))
    assert e.value.kind == "llm.key"
    assert "wrong" not in f"{e.value.message} {e.value.hint}"


@PROVIDERS
def test_a_model_that_is_not_there_is_told_with_those_that_are(spec: BackendSpec) -> None:
    assert spec.prepare is not None
    with serving(fake(spec)) as server, pytest.raises(AgentError, match="no model 'huge'") as e:
        spec.prepare(spec.settings({"base_url": server.base_url, "model": "huge"}))
    assert "big, small" in e.value.hint


@PROVIDERS
def test_a_missing_key_is_an_instruction(
    spec: BackendSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(spec.requires[0].name)
    with pytest.raises(AgentError, match=f"needs env {spec.requires[0].name}") as e:
        spec.require()
    assert e.value.hint == f"export {spec.requires[0].name}=… (your key)"


@PROVIDERS
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("status", [401, 429, 500])
async def test_a_request_that_fails_is_sent_once_and_told(spec: BackendSpec, status: int) -> None:
    errors: list[str] = []
    with serving(fake(spec, status=status)) as server:
        service = spec.create(
            spec.settings({"base_url": server.base_url, "model": "big"}), InstantClock()
        )

        async def on_error(_: object, frame: ErrorFrame) -> None:
            errors.append(frame.error)

        service.add_event_handler("on_error", on_error)
        assert await reply(service) == ""
    assert (len(server.chats), len(errors)) == (1, 1)


@PROVIDERS
def test_settings_are_checked(spec: BackendSpec) -> None:
    with pytest.raises(InputError, match="base_url"):
        spec.settings({"base_url": "api.example"})
