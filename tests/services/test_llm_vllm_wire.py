"""The backend `vllm` against a server that checks what arrives."""

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from fake_openai import FakeOpenAI, serving
from openai._streaming import SSEDecoder
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
from pipecat.utils.errors import ErrorCategory
from running_line import PATIENCE_S, InstantClock, Line, running

from turngap.core.errors import AgentError, InputError
from turngap_services.llm.vllm import SPEC, VllmSettings
from turngap_services.llm.vllm.service import connected, create
from turngap_services.llm.wire import _Done

MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "two pizzas"},
]
PARAMS = PipelineParams(enable_metrics=True, enable_usage_metrics=True)


def settings(fake: FakeOpenAI, **values: Any) -> VllmSettings:
    return VllmSettings(base_url=fake.base_url, **values)


def asked() -> LLMContextFrame:
    return LLMContextFrame(LLMContext(MESSAGES))


async def answered(line: Line, *, replies: int = 1) -> str:
    await line.send(asked())
    await line.until(lambda: len(line.of(LLMFullResponseEndFrame)) == replies)
    return "".join(frame.text for frame in line.of(LLMTextFrame))


async def test_what_is_set_is_what_arrives() -> None:
    with serving(FakeOpenAI(models=("a", "b"))) as fake:
        chosen = settings(
            fake,
            model="b",
            max_tokens=33,
            temperature=0.25,
            seed=9,
            extra_body={"priority": -2, "chat_template_kwargs": {"enable_thinking": False}},
        )
        connected(chosen)
        async with running(create(chosen, InstantClock()), params=PARAMS) as line:
            assert await answered(line) == "Two pizzas."
    (chat,) = fake.chats
    assert chat.path == "/v1/chat/completions"
    assert chat.body["messages"] == MESSAGES
    assert {k: chat.body[k] for k in ("model", "max_tokens", "temperature", "seed")} == {
        "model": "b",
        "max_tokens": 33,
        "temperature": 0.25,
        "seed": 9,
    }
    assert chat.body["priority"] == -2
    assert chat.body["chat_template_kwargs"] == {"enable_thinking": False}
    told = [d for f in line.of(MetricsFrame) for d in f.data]
    (usage,) = [d.value for d in told if isinstance(d, LLMUsageMetricsData)]
    assert (usage.prompt_tokens, usage.completion_tokens) == (7, 2)


async def test_the_servers_only_model_needs_no_name_and_is_warmed_up_once() -> None:
    with serving(FakeOpenAI(models=("only",))) as fake:
        for _ in range(2):
            connected(settings(fake))
        async with running(create(settings(fake), InstantClock()), params=PARAMS) as line:
            await answered(line)
    assert [s.path for s in fake.seen] == ["/v1/models", *["/v1/chat/completions"] * 2]
    assert fake.seen[1].body["max_tokens"] == 8
    assert fake.chats[0].body["model"] == "only"


async def test_a_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(FakeOpenAI(key="s3cret")) as fake:
        monkeypatch.setenv("MY_KEY", "s3cret")
        mine = settings(fake, api_key_env="MY_KEY")
        connected(mine)
        async with running(create(mine, InstantClock()), params=PARAMS) as line:
            assert await answered(line) == "Two pizzas."
    assert {s.headers["authorization"] for s in fake.seen} == {"Bearer s3cret"}


async def test_words_are_passed_on_as_they_come_and_an_interruption_hangs_up() -> None:
    go = threading.Semaphore(0)
    words = [f"word{n} " for n in range(2000)]
    with serving(FakeOpenAI(words=words, go=go)) as fake:
        async with running(create(settings(fake), InstantClock()), params=PARAMS) as line:
            await line.send(asked())
            for count in (1, 2):
                go.release()
                await line.until(lambda n=count: len(line.of(LLMTextFrame)) == n)
            await line.send(InterruptionFrame())
            await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
            go.release(len(words))
            assert fake.hung_up.wait(PATIENCE_S)
    assert [f.text for f in line.of(LLMTextFrame)] == ["word0 ", "word1 "]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("change", "said", "words", "category"),
    [
        ({"dies_after": 1}, "Two ", "Connection error", ErrorCategory.CONNECTIVITY),
        (
            {"dies_after": 1, "dies_in_order": True},
            "Two ",
            "ended its reply in the middle",
            ErrorCategory.CONNECTIVITY,
        ),
        (
            {"finish_reason": None, "done": False},
            "Two pizzas.",
            "ended its reply in the middle",
            ErrorCategory.CONNECTIVITY,
        ),
        ({"status": 500}, "", "as the test wants it", ErrorCategory.SERVER),
        ({"status": 429}, "", "429", ErrorCategory.RATE_LIMIT),
        ({"status": 401}, "", "401", ErrorCategory.AUTHENTICATION),
    ],
)
async def test_a_server_that_fails_is_told_once_and_not_asked_again(
    change: dict[str, Any], said: str, words: str, category: ErrorCategory
) -> None:
    errors: list[ErrorFrame] = []
    with serving(FakeOpenAI()) as fake:
        service = create(settings(fake), InstantClock())

        async def on_error(_: object, frame: ErrorFrame) -> None:
            errors.append(frame)

        service.add_event_handler("on_error", on_error)
        for name, value in change.items():
            setattr(fake, name, value)
        async with running(service, params=PARAMS) as line:
            assert await answered(line) == said
    assert len(fake.chats) == 1
    (error,) = errors
    assert words in error.error
    assert error.category == category


@pytest.mark.parametrize(
    "ends", [{"finish_reason": None}, {"done": False}, {"finish_reason": "length"}]
)
async def test_a_reply_is_whole_whichever_way_its_server_says_so(ends: dict[str, Any]) -> None:
    """By a `finish_reason`, or by `[DONE]` alone, as many servers do."""
    errors: list[ErrorFrame] = []
    with serving(FakeOpenAI(**ends)) as fake:
        service = create(settings(fake), InstantClock())

        async def on_error(_: object, frame: ErrorFrame) -> None:
            errors.append(frame)

        service.add_event_handler("on_error", on_error)
        async with running(service, params=PARAMS) as line:
            assert await answered(line) == "Two pizzas."
    assert errors == []


def test_a_client_that_hides_the_end_of_a_stream_is_believed() -> None:
    """The test above fails where `openai` shows it no more; conversations go on."""
    assert _Done(object()).seen
    assert not _Done(SimpleNamespace(_decoder=SSEDecoder())).seen


def test_nobody_there_is_one_clear_line() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        with pytest.raises(AgentError, match="no language model answers at") as e:
            connected(VllmSettings(base_url=url))
    assert e.value.kind == "llm.unreachable"
    assert "--set llm.base_url=http://HOST:PORT/v1 (compare and judge: --llm NAME," in e.value.hint


@pytest.mark.parametrize(
    ("fake", "values", "kind", "words", "remedy"),
    [
        (
            FakeOpenAI(key="right"),
            {"api_key_env": "NO_SUCH_KEY"},
            "llm.key",
            "does not accept a request without a key",
            "export NO_SUCH_KEY=",
        ),
        (
            FakeOpenAI(key="right"),
            {"api_key_env": "PATH"},
            "llm.key",
            "does not accept the key",
            "export PATH=",
        ),
        (FakeOpenAI(models=("a", "b")), {}, "llm.model", "not exactly one model", "one of: a, b"),
        (FakeOpenAI(), {"model": "x"}, "llm.model", "has no model 'x'", "one of: m"),
    ],
)
def test_a_server_that_does_not_fit_is_one_clear_line(
    fake: FakeOpenAI, values: dict[str, Any], kind: str, words: str, remedy: str
) -> None:
    with serving(fake), pytest.raises(AgentError, match=words) as e:
        connected(settings(fake, **values))
    assert e.value.kind == kind
    assert "\n" not in e.value.message
    assert remedy in e.value.hint


def test_another_kind_of_server_is_one_clear_line() -> None:
    with (
        serving(FakeOpenAI()) as fake,
        pytest.raises(AgentError, match="does not speak this protocol"),
    ):
        connected(VllmSettings(base_url=f"{fake.base_url}/elsewhere"))


def test_neither_a_server_nor_a_model_is_bad_input() -> None:
    with pytest.raises(InputError, match="neither a server nor a model"):
        SPEC.settings({})
