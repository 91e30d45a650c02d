import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pipecat.frames.frames import (
    ErrorFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData, TTFBMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import PATIENCE_S, InstantClock, Line, running

from turngap.core.errors import AgentError
from turngap_services.llm.plain import InProcessLLMService, InProcessModel, Reply
from turngap_services.llm.small import SmallSettings
from turngap_services.llm.small.model import create, model_of


def asked(*texts: str) -> LLMContextFrame:
    return LLMContextFrame(LLMContext([{"role": "user", "content": text} for text in texts]))


def service(model: InProcessModel) -> InProcessLLMService:
    return InProcessLLMService(model)


def text(line: Line) -> str:
    return "".join(frame.text for frame in line.of(LLMTextFrame))


class Steered:
    """A model that says a word whenever the test lets it, until it is told to stop."""

    name = "steered"

    def __init__(self) -> None:
        self.executor = ThreadPoolExecutor(1)
        self.go = threading.Semaphore(0)
        self.stops: list[threading.Event] = []
        self.ended = threading.Event()
        self.error: AgentError | None = None

    def reply(
        self, messages: Sequence[dict[str, Any]], hear: Callable[[str], None], stop: threading.Event
    ) -> Reply:
        self.stops.append(stop)
        for count in range(1, 100):
            # As in the engine, whether to stop is asked once a token.
            while not self.go.acquire(timeout=0.01):
                if stop.is_set():
                    self.ended.set()
                    return Reply(len(messages), count, False)
            if self.error is not None:
                raise self.error
            hear(f"{messages[-1]['content']}{count} ")
        raise AssertionError("never stopped")


@pytest.mark.parametrize("settings", [{}, {"model": "student"}], ids=["teacher", "student"])
async def test_the_shipped_models_answer(settings: dict[str, Any]) -> None:
    model = model_of(SmallSettings(**settings))
    params = PipelineParams(enable_metrics=True, enable_usage_metrics=True)
    async with running(create(SmallSettings(**settings), InstantClock()), params=params) as line:
        await line.send(asked("turn off the kitchen lights"))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    assert text(line) == "the kitchen lights are off."
    assert len(line.of(LLMTextFrame)) > 3
    told = [d for f in line.of(MetricsFrame) for d in f.data]
    (usage,) = [d.value for d in told if isinstance(d, LLMUsageMetricsData)]
    prompt = model.prompt([{"role": "user", "content": "turn off the kitchen lights"}])
    assert usage.prompt_tokens == len(prompt)
    assert usage.completion_tokens >= len(line.of(LLMTextFrame))
    assert any(d.value > 0 for d in told if isinstance(d, TTFBMetricsData))


async def test_words_are_passed_on_as_they_come() -> None:
    model = Steered()
    async with running(service(model), params=PipelineParams()) as line:
        await line.send(asked("a"))
        await line.until(lambda: bool(line.of(LLMFullResponseStartFrame)))
        for count in (1, 2, 3):
            model.go.release()
            await line.until(lambda n=count: len(line.of(LLMTextFrame)) == n)
        await line.send(InterruptionFrame())
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    assert text(line) == "a1 a2 a3 "


async def test_an_interruption_stops_the_model_itself() -> None:
    model = Steered()
    async with running(service(model), params=PipelineParams()) as line:
        await line.send(asked("a"))
        model.go.release()
        await line.until(lambda: len(line.of(LLMTextFrame)) == 1)
        assert not model.stops[0].is_set()
        await line.send(InterruptionFrame())
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
        assert model.ended.is_set()
        # And the next request is answered as if nothing had happened.
        await line.send(asked("b"))
        model.go.release()
        await line.until(lambda: len(line.of(LLMTextFrame)) == 2)
        await line.send(InterruptionFrame())
        await line.until(lambda: len(line.of(LLMFullResponseEndFrame)) == 2)
    assert text(line) == "a1 b1 "


async def test_the_pipeline_goes_on_while_the_model_works() -> None:
    model = Steered()
    async with running(service(model), params=PipelineParams()) as line:
        await line.send(asked("a"))
        await line.until(lambda: bool(model.stops))
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(100):
                await asyncio.to_thread(lambda: None)
        assert not model.stops[0].is_set()
        await line.send(InterruptionFrame())
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))


@pytest.mark.filterwarnings("default")
async def test_a_model_that_fails_ends_the_reply_and_says_why() -> None:
    model = Steered()
    model.error = AgentError("model.failed", "out of memory", hint="a smaller model")
    errors: list[ErrorFrame] = []
    small = service(model)

    async def on_error(_: object, frame: ErrorFrame) -> None:
        errors.append(frame)

    small.add_event_handler("on_error", on_error)
    async with running(small, params=PipelineParams()) as line:
        await line.send(asked("a"))
        model.go.release()
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
        model.error = None
        await line.send(asked("b"))
        model.go.release()
        await line.until(lambda: bool(line.of(LLMTextFrame)))
        await line.send(InterruptionFrame())
        await line.until(lambda: len(line.of(LLMFullResponseEndFrame)) == 2)
    assert [e.error for e in errors] == ["out of memory (a smaller model)"]
    assert text(line) == "b1 "
