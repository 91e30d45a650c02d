"""Times of a reply, from a vLLM server's page of metrics to the turn's counts."""

import pytest
from fake_openai import FakeOpenAI, serving
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    MetricsFrame,
    UserStartedSpeakingFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import InstantClock, Line, running

from turngap.backends import COUNTS
from turngap_services.llm.vllm import VllmSettings
from turngap_services.llm.vllm.service import ServerTimes, between, create, reading

PARAMS = PipelineParams(enable_usage_metrics=True)


def page(requests: int, queue_s: float, prefill_s: float, decode_s: float) -> str:
    """Write a page of metrics as vLLM does, shortened: two engines, and other lines."""
    labels = 'engine="{}",model_name="m"'
    lines = ["# HELP vllm:request_queue_time_seconds Histogram of time spent in WAITING phase."]
    took = {"queue": queue_s, "prefill": prefill_s, "decode": decode_s}
    for phase, seconds in took.items():
        name = f"vllm:request_{phase}_time_seconds"
        lines.append(f'{name}_bucket{{{labels.format(0)},le="+Inf"}} {float(requests)}')
        lines.append(f"{name}_count{{{labels.format(0)}}} {float(requests)}")
        lines.append(f"{name}_count{{{labels.format(1)}}} 0.0")
        lines.append(f"{name}_sum{{{labels.format(0)}}} {seconds}")
        lines.append(f"{name}_sum{{{labels.format(1)}}} 0.0")
    return "\n".join([*lines, "python_info 1.0"])


def told(line: Line) -> list[dict[str, float]]:
    return [f.metadata[COUNTS] for f in line.of(MetricsFrame) if COUNTS in f.metadata]


async def ask(line: Line, replies: int = 1) -> None:
    await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "two pizzas"}])))
    await line.until(lambda: len(line.of(LLMFullResponseEndFrame)) == replies)


def test_a_requests_times_are_the_difference_of_two_readings() -> None:
    before, after = reading(page(3, 0.5, 1.0, 9.0)), reading(page(4, 0.75, 1.125, 9.5))
    assert between(before, after) == {
        "llm_queue_ms": 250,
        "llm_prefill_ms": 125,
        "llm_decode_ms": 500,
        "llm_others": 0,
    }


def test_where_others_ended_too_it_is_a_mean_and_says_of_how_many() -> None:
    before, after = reading(page(3, 0, 0, 0)), reading(page(7, 2, 4, 8))
    assert between(before, after) == {
        "llm_queue_ms": 500,
        "llm_prefill_ms": 1000,
        "llm_decode_ms": 2000,
        "llm_others": 3,
    }


@pytest.mark.parametrize("requests", [3, 0])
def test_no_request_that_ended_and_a_server_that_began_anew_have_no_times(requests: int) -> None:
    assert between(reading(page(3, 1, 1, 1)), reading(page(requests, 0, 0, 0))) == {}


@pytest.mark.parametrize("text", ["", "vllm:num_requests_running 1.0", "vllm:broken x"])
def test_another_page_is_none_of_vllms(text: str) -> None:
    with pytest.raises(ValueError, match=r"no vllm:|could not convert"):
        reading(text)


async def test_a_reply_is_followed_by_its_times_and_what_ended_before_it_is_not_in_them() -> None:
    pages = [page(1, 9, 9, 9), page(5, 90, 90, 90), page(6, 90.002, 90.03, 90.4)]
    with serving(FakeOpenAI(metrics=pages)) as fake:
        service = create(VllmSettings(base_url=fake.base_url), InstantClock())
        async with running(service, params=PARAMS) as line:
            await line.send(UserStartedSpeakingFrame())
            await ask(line)
            await line.until(lambda: bool(told(line)))
    (counts,) = told(line)
    assert counts == pytest.approx(
        {"llm_queue_ms": 2, "llm_prefill_ms": 30, "llm_decode_ms": 400, "llm_others": 0}
    )


async def test_a_reply_that_was_broken_off_is_not_told_of() -> None:
    pages = [page(n, n, n, n) for n in range(1, 9)]
    with serving(FakeOpenAI(metrics=pages)) as fake:
        service = create(VllmSettings(base_url=fake.base_url), InstantClock())
        async with running(service, params=PARAMS) as line:
            await ask(line)
            await line.until(lambda: len(told(line)) == 1)
            fake.dies_after = 1
            await ask(line, replies=2)
            fake.dies_after = None
            await line.send(InterruptionFrame())
            await ask(line, replies=3)
            await line.until(lambda: len(told(line)) == 2)
    assert len(told(line)) == 2


async def test_a_server_that_tells_nothing_is_asked_once() -> None:
    with serving(FakeOpenAI()) as fake:
        times = ServerTimes(fake.base_url, {})
        assert await times.since() == {}
        fake.metrics = [page(1, 1, 1, 1), page(2, 2, 2, 2)]
        assert (await times.since(), await times.since()) == ({}, {})
