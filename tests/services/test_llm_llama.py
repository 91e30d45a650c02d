"""The backend `llama`: a GGUF model in process."""

import asyncio
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
from pipecat.frames.frames import LLMContextFrame, LLMFullResponseEndFrame, LLMTextFrame
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import InstantClock, running
from tiny_gguf import write_tiny_gguf

from turngap.backends import WeighsWords
from turngap.core.errors import AgentError, InputError
from turngap_services.llm.llama import LlamaSettings
from turngap_services.llm.llama.model import Attempt, LlamaModel, create, prepare


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def settings(file: Path) -> LlamaSettings:
    return LlamaSettings(model=str(file), context=512, max_tokens=20, threads=1)


@pytest.fixture(scope="module")
def model(settings: LlamaSettings) -> LlamaModel:
    return LlamaModel(settings)


def asked(*texts: str) -> list[Any]:
    system = {"role": "system", "content": "Be brief."}
    return [system, *({"role": "user", "content": text} for text in texts)]


def talk(messages: int) -> list[Any]:
    """A conversation of that many messages."""
    roles = itertools.cycle(("user", "assistant"))
    said = [{"role": next(roles), "content": "one two three"} for _ in range(messages)]
    return [*asked(), *said, {"role": "user", "content": "and now"}]


def test_a_conversation_is_answered_piece_by_piece(model: LlamaModel) -> None:
    pieces: list[str] = []
    reply = model.reply(asked("hello"), pieces.append, threading.Event())
    assert (reply.tokens, reply.finished) == (20, True)
    assert len(pieces) > 5
    assert reply.prompt_tokens > len("system: Be brief.\nuser: hello\nassistant: ")
    again: list[str] = []
    model.reply(asked("hello"), again.append, threading.Event())
    assert again == pieces


def test_a_reply_ends_at_the_next_token_once_it_is_stopped(model: LlamaModel) -> None:
    stop = threading.Event()
    pieces: list[str] = []

    def hear(piece: str) -> None:
        pieces.append(piece)
        stop.set()

    reply = model.reply(asked("hello"), hear, stop)
    assert len(pieces) == 1
    assert not reply.finished
    assert reply.tokens < 20


def test_neighbours_of_one_role_are_one_message(model: LlamaModel) -> None:
    one = model.reply(asked("hello", "again"), lambda _: None, threading.Event())
    other = model.reply(asked("hello again"), lambda _: None, threading.Event())
    assert one == other


def test_the_oldest_messages_of_a_long_conversation_are_left_out(model: LlamaModel) -> None:
    reply = model.reply(talk(100), lambda _: None, threading.Event())
    assert 0 < reply.prompt_tokens <= 512 - 20
    with pytest.raises(AgentError, match="exceeds the available context") as error:
        model.reply(asked("word " * 200), lambda _: None, threading.Event())
    assert "llm.context" in error.value.hint


def chunk(piece: str | None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": piece}}]}


@pytest.mark.parametrize(
    ("pieces", "most", "said"),
    [
        (["It's nine.", " It", "'s", " late.", " Bye", "."], 2, "It's nine. It's late. "),
        (["It's nine. It's late. Bye."], 2, "It's nine. It's late. "),
        (["Dr. Who", " is here.", " Yes."], 1, "Dr. Who is here. "),
        (["Wait... ", "what?!", " No."], 2, "Wait... what?! "),
        (["It costs 3.50 now.", " Yes."], 1, "It costs 3.50 now. "),
        (["One.", " Two.", " Three."], None, "One. Two. Three."),
    ],
)
def test_a_reply_ends_with_its_last_sentence(
    pieces: list[str], most: int | None, said: str
) -> None:
    heard: list[str] = []
    attempt = Attempt(heard.append, threading.Event(), most, room=100)
    for piece in pieces:
        if attempt.on_chunk(chunk(piece)):
            break
    assert "".join(heard) == said


async def test_words_are_weighed_and_then_answered(settings: LlamaSettings) -> None:
    service = create(settings, InstantClock())
    assert isinstance(service, WeighsWords)
    context = LLMContext(asked("hello"))
    whole = await service.whole(context, "what time is it?")
    assert whole is not None
    assert 0 < whole < 1
    assert whole == pytest.approx(await service.whole(context, "what time is it"))
    assert await service.whole(context, "word " * 2000) is None  # too long: it says nothing
    assert await service.whole(LLMContext(talk(100)), "what time is it") is not None


async def test_a_service_reads_ahead_and_answers(settings: LlamaSettings) -> None:
    prepare(settings)
    service = create(settings, InstantClock())
    context = LLMContext(asked("hello"))
    assert len(await service.run_inference(context, max_tokens=1) or "") == 1
    async with running(service, params=PipelineParams()) as line:
        await line.send(LLMContextFrame(context))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    assert len(line.of(LLMTextFrame)) > 5


async def test_reading_ahead_ends_when_it_is_given_up(
    settings: LlamaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = create(settings, InstantClock())
    begun, ended = threading.Event(), threading.Event()

    def reply(self: LlamaModel, messages: Any, hear: Any, stop: threading.Event, most: int) -> None:
        begun.set()
        stop.wait()
        ended.set()

    monkeypatch.setattr(LlamaModel, "reply", reply)
    reading = asyncio.create_task(service.run_inference(LLMContext(asked("hello")), max_tokens=1))
    await asyncio.to_thread(begun.wait)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await asyncio.to_thread(ended.wait)


@pytest.mark.parametrize("content", [b"", b"hello", None], ids=["empty", "text", "cut short"])
def test_a_file_that_is_no_model_is_refused(
    tmp_path: Path, file: Path, content: bytes | None
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(file.read_bytes()[:50_000] if content is None else content)
    with pytest.raises(AgentError, match="cannot load") as error:
        LlamaModel(LlamaSettings(model=str(bad)))
    assert error.value.kind == "model.damaged"


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no model at"):
        LlamaModel(LlamaSettings(model=str(tmp_path / "none.gguf")))
    with pytest.raises(InputError, match="unknown model 'gpt-9'") as error:
        LlamaModel(LlamaSettings(model="gpt-9"))
    assert "SmolLM2-135M-Instruct" in error.value.hint
