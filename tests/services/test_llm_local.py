"""The backend `local`: which server of this machine answers, and what does where there is none."""

import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fake_openai import FakeOpenAI, serving
from pipecat.frames.frames import LLMContextFrame, LLMFullResponseEndFrame, LLMTextFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from reserved_ports import reserved_port
from running_line import InstantClock, running
from tiny_gguf import write_tiny_gguf

from turngap.agent.stack import found_of
from turngap.core.errors import AgentError
from turngap.thoughts import BEGINS_IN_THOUGHT
from turngap_services.llm import local
from turngap_services.llm.llama import LlamaSettings
from turngap_services.llm.llama.model import LlamaLLMService
from turngap_services.llm.local import (
    WAIT_S,
    LocalSettings,
    chosen,
    create,
    model_of,
    ready,
    servers,
)
from turngap_services.llm.wire import REASONING_OFF, THOUGHTS


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have servers waited for on a busy machine, too."""
    monkeypatch.setattr(local, "servers", partial(servers, wait_s=60.0))


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a tiny model answer in this process."""
    own = partial(LlamaSettings, model=str(write_tiny_gguf(tmp_path / "tiny.gguf")))
    monkeypatch.setattr(local, "LlamaSettings", own)


def port_of(fake: FakeOpenAI) -> int:
    return int(fake.base_url.rpartition(":")[2].removesuffix("/v1"))


@pytest.fixture
def closed() -> Iterator[int]:
    """A port on which nobody listens."""
    with reserved_port() as port:
        yield port


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.fixture
def other() -> Iterator[int]:
    """A web server that answers everything with a page."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


async def reply(settings: LocalSettings, said: str = "hi") -> str:
    context = LLMContext(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": said}]
    )
    async with running(create(settings, InstantClock()), params=PipelineParams()) as line:
        await line.send(LLMContextFrame(context))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    return "".join(frame.text for frame in line.of(LLMTextFrame))


async def test_the_first_server_with_a_model_answers_and_the_others_are_named(
    closed: int, other: int
) -> None:
    with serving(FakeOpenAI(models=("embed-m", "m"))) as one, serving(FakeOpenAI()) as two:
        settings = LocalSettings(ports=(closed, other, port_of(one), port_of(two)))
        ready(settings)
        assert await reply(settings) == "Two pizzas."
        why = chosen(settings).why
    assert why.startswith(f"m of a server at {one.base_url}, found on this machine; also there: ")
    assert two.base_url in why
    assert [chat.body["model"] for chat in one.chats] == ["m"]
    assert {s.path for s in two.seen} == {"/v1/models"}


def test_a_server_that_does_not_answer_is_not_waited_for(silent: int) -> None:
    with serving(FakeOpenAI()) as fake:
        assert [found.port for found in servers((silent, port_of(fake)), wait_s=5.0)] == [
            port_of(fake)
        ]
    assert WAIT_S <= 0.5


def test_a_model_that_is_asked_for_chooses_the_server() -> None:
    with serving(FakeOpenAI()) as one, serving(FakeOpenAI(models=("other", "mine"))) as two:
        settings = LocalSettings(ports=(port_of(one), port_of(two)), model="mine")
        assert chosen(settings).why.startswith(f"mine of a server at {two.base_url}")
    assert "with the model 'mine'" in chosen(LocalSettings(ports=(), model="mine")).why


@pytest.mark.parametrize("fails", [{"whole_status": 500}, {"key": "wanted"}])
async def test_a_server_that_does_not_answer_a_question_is_passed_over(
    fails: dict[str, Any],
) -> None:
    with serving(FakeOpenAI(**fails)) as bad, serving(FakeOpenAI()) as good:
        settings = LocalSettings(ports=(port_of(bad), port_of(good)))
        ready(settings)
        assert await reply(settings) == "Two pizzas."
        assert chosen(settings).why.startswith(f"m of a server at {good.base_url}")
    if "key" not in fails:  # what lists no models without a key was never a choice
        assert f"not m of a server at {bad.base_url}, because" in chosen(settings).why


def test_if_no_server_answers_a_question_the_model_in_process_does() -> None:
    with serving(FakeOpenAI(whole_status=500)) as bad:
        settings = LocalSettings(ports=(port_of(bad),))
        ready(settings)
        assert isinstance(create(settings, InstantClock()), LlamaLLMService)
        assert f"not m of a server at {bad.base_url}, because" in chosen(settings).why
        with pytest.raises(AgentError, match="500"):
            ready(LocalSettings(base_url=bad.base_url))


def test_of_many_models_at_an_address_the_first_that_talks_is_taken() -> None:
    with serving(FakeOpenAI(models=("bge-m3", "m", "n"))) as fake:
        settings = LocalSettings(base_url=fake.base_url)
        ready(settings)
    assert {s.body.get("model") for s in fake.seen if s.body} == {"m"}


@pytest.mark.parametrize(
    "name",
    [
        *("nomic-embed-text:latest", "bge-m3", "BAAI/bge-reranker-v2-m3", "all-minilm:33m"),
        *("whisper-1", "Systran/faster-whisper-tiny", "intfloat/e5-large", "qwen3-reranker:0.6b"),
    ],
)
def test_a_model_for_another_task_is_not_taken(name: str) -> None:
    assert model_of([name]) is None
    assert model_of([name, "qwen3:0.6b"]) == "qwen3:0.6b"


@pytest.mark.parametrize("name", ["gpt-oss:20b", "gemma3:4b", "phi4", "clipper-7b", "llama3.2:1b"])
def test_a_model_that_talks_is(name: str) -> None:
    assert model_of([name]) == name


def test_a_key_goes_to_no_server_that_was_only_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "a-secret")
    monkeypatch.setenv("MINE", "another")
    with serving(FakeOpenAI()) as found, serving(FakeOpenAI(key="another")) as given:
        ready(LocalSettings(ports=(port_of(found),)))
        ready(LocalSettings(base_url=given.base_url, api_key_env="MINE"))
    assert found.seen
    assert not any("secret" in s.headers.get("authorization", "") for s in found.seen)


def test_a_run_is_told_which_model_answers_and_what_is_known_of_it(closed: int) -> None:
    with serving(FakeOpenAI(models=("bge-m3", "m"))) as fake:
        served = LocalSettings(base_url=fake.base_url)
        ready(served)
    assert found_of([(local.SPEC, served)]) == {
        "llm": f"m of the server at {fake.base_url}, as llm.base_url says"
    }


async def test_without_a_server_a_model_in_process_answers_and_says_so(closed: int) -> None:
    settings = LocalSettings(ports=(closed,))
    ready(settings)
    assert isinstance(create(settings, InstantClock()), LlamaLLMService)
    assert "in this process, a very small model: no server answers" in chosen(settings).why
    assert "calls no tools" in (local.SPEC.why_no_tools(settings) or "")
    assert await reply(settings, "what's the weather like today")


def test_the_model_in_process_is_fetched_only_where_no_server_is(
    closed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LlamaSettings", LlamaSettings)
    with serving(FakeOpenAI()) as fake:
        assert local.SPEC.downloads(LocalSettings(ports=(port_of(fake),))) == []
    (weights,) = local.SPEC.downloads(LocalSettings(ports=(closed,)))
    assert weights.files[0].path.endswith(".gguf")


@pytest.mark.parametrize("refuses", ["", "reasoning_effort", "chat_template_kwargs"])
async def test_reasoning_is_off_as_far_as_the_server_has_a_switch(refuses: str) -> None:
    """Check that a refused key is left out from the first turn on, and never sent again."""
    with serving(FakeOpenAI(refuses=refuses)) as fake:
        settings = LocalSettings(base_url=fake.base_url)
        ready(settings)
        asked = len(fake.seen)
        assert await reply(settings) == "Two pizzas."
        assert len(fake.seen) == asked + 1
    (chat,) = fake.chats
    off = REASONING_OFF[-1 if refuses else 0]
    assert {key: chat.body.get(key) for key in REASONING_OFF[0]} == {
        key: off.get(key) for key in REASONING_OFF[0]
    }


@pytest.mark.parametrize(
    "asked", [{"reasoning_effort": "high"}, {"chat_template_kwargs": {"enable_thinking": True}}]
)
async def test_a_switch_that_is_asked_for_takes_the_place_of_both(asked: dict[str, Any]) -> None:
    with serving(FakeOpenAI()) as fake:
        await reply(LocalSettings(base_url=fake.base_url, extra_body={**asked, "top_k": 3}))
    body = fake.chats[0].body
    assert {key: body[key] for key in (*REASONING_OFF[0], "top_k") if key in body} == {
        **asked,
        "top_k": 3,
    }


@pytest.mark.parametrize(
    ("shows", "begins"),
    [
        ({}, False),
        ({"/tokenize": {"token_strs": ["<|im_start|>", "assistant", "Ċ"]}}, False),
        ({"/tokenize": {"token_strs": ["assistant", "Ċ", "<think>", "Ċ"]}}, True),
        ({"/tokenize": {"token_strs": ["<think>", "ĊĊ", "</think>", "ĊĊ"]}}, False),
        ({"/apply-template": {"prompt": "<|Assistant|><think>\n"}}, True),
    ],
)
def test_a_template_that_begins_a_thought_is_found_where_the_server_shows_it(
    shows: dict[str, Any], begins: bool
) -> None:
    with serving(FakeOpenAI(shows=shows)) as fake:
        service = create(LocalSettings(base_url=fake.base_url), InstantClock())
    assert getattr(service, BEGINS_IN_THOUGHT) is begins


@pytest.mark.parametrize("field", THOUGHTS)
def test_what_a_template_begins_does_not_count_if_the_server_tells_thoughts_apart(
    field: str,
) -> None:
    shows = {"/apply-template": {"prompt": "<|Assistant|><think>\n"}}
    with serving(FakeOpenAI(shows=shows, thoughts=field, whole_thought="Hm.")) as fake:
        service = create(LocalSettings(base_url=fake.base_url), InstantClock())
    assert getattr(service, BEGINS_IN_THOUGHT) is False
