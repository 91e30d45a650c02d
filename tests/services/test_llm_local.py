"""The backend `local`: which server of this machine answers, and what does where there is none."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from fake_openai import FakeOpenAI, serving
from pipecat.frames.frames import LLMContextFrame, LLMFullResponseEndFrame, LLMTextFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import InstantClock, running

from turngap.thoughts import BEGINS_IN_THOUGHT
from turngap_services.llm.local import SPEC, LocalSettings, create, finds, prepare
from turngap_services.llm.local.finding import WAIT_S, servers
from turngap_services.llm.small.service import SmallLLMService
from turngap_services.llm.wire import REASONING_OFF


def port_of(fake: FakeOpenAI) -> int:
    return int(fake.base_url.rpartition(":")[2].removesuffix("/v1"))


@pytest.fixture
def closed() -> int:
    """A port on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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


async def reply(settings: LocalSettings) -> str:
    context = LLMContext([{"role": "user", "content": "hi"}])
    async with running(create(settings, InstantClock()), params=PipelineParams()) as line:
        await line.send(LLMContextFrame(context))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    return "".join(frame.text for frame in line.of(LLMTextFrame))


async def test_the_first_server_with_a_model_answers_and_the_others_are_named(
    closed: int, other: int
) -> None:
    with serving(FakeOpenAI(models=("embed-m", "m"))) as one, serving(FakeOpenAI()) as two:
        settings = LocalSettings(ports=(closed, other, port_of(one), port_of(two)))
        prepare(settings)
        assert await reply(settings) == "Two pizzas."
        why = finds(settings)
    assert why.startswith(f"m of a server at {one.base_url}, found on this machine; also there: ")
    assert two.base_url in why
    assert [chat.body["model"] for chat in one.chats] == ["m"]
    assert {s.path for s in two.seen} == {"/v1/models"}


def test_a_server_that_does_not_answer_is_not_waited_for(silent: int) -> None:
    with serving(FakeOpenAI()) as fake:
        assert [found.port for found in servers((silent, port_of(fake)))] == [port_of(fake)]
    assert WAIT_S <= 0.5


def test_a_model_that_is_asked_for_chooses_the_server() -> None:
    with serving(FakeOpenAI()) as one, serving(FakeOpenAI(models=("other", "mine"))) as two:
        settings = LocalSettings(ports=(port_of(one), port_of(two)), model="mine")
        assert finds(settings).startswith(f"mine of a server at {two.base_url}")
    assert "with the model 'mine'" in finds(LocalSettings(ports=(), model="mine"))


async def test_without_a_server_the_projects_own_model_answers_and_says_so(closed: int) -> None:
    settings = LocalSettings(ports=(closed,))
    prepare(settings)
    assert isinstance(create(settings, InstantClock()), SmallLLMService)
    assert "which knows its own domain only" in finds(settings)
    assert "calls no tools" in (SPEC.why_no_tools(settings) or "")
    assert await reply(settings)


@pytest.mark.parametrize("refuses", ["", "reasoning_effort", "chat_template_kwargs"])
async def test_reasoning_is_off_as_far_as_the_server_has_a_switch(refuses: str) -> None:
    """What it refuses is left out from the first turn on, in none of which it is asked again."""
    with serving(FakeOpenAI(refuses=refuses)) as fake:
        settings = LocalSettings(base_url=fake.base_url)
        prepare(settings)
        asked = len(fake.seen)
        assert await reply(settings) == "Two pizzas."
        assert len(fake.seen) == asked + 1
    (chat,) = fake.chats
    off = REASONING_OFF[-1 if refuses else 0]
    assert {key: chat.body.get(key) for key in REASONING_OFF[0]} == {
        key: off.get(key) for key in REASONING_OFF[0]
    }


async def test_what_is_asked_for_goes_before_the_switch() -> None:
    with serving(FakeOpenAI()) as fake:
        settings = LocalSettings(base_url=fake.base_url, extra_body={"reasoning_effort": "high"})
        await reply(settings)
    assert fake.chats[0].body["reasoning_effort"] == "high"


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
