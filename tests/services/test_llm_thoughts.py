"""Thoughts on the way to an answer are not heard, and not the first token."""

from collections.abc import Sequence
from typing import Any

import pytest
from combined_line import TOKEN_MS, Actor, actors, one_reply
from fake_openai import FakeOpenAI, serving
from pipecat.frames.frames import (
    ErrorFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    LLMThoughtEndFrame,
    LLMThoughtStartFrame,
    LLMThoughtTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import TTFATMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import InstantClock, Line, running

from turngap.core.clock import Clock
from turngap.thoughts import BEGINS_IN_THOUGHT, guard_thoughts
from turngap_services.llm.combine import RaceSettings
from turngap_services.llm.combine.service import FULL_WON, RaceLLMService
from turngap_services.llm.vllm import VllmSettings
from turngap_services.llm.vllm.service import create

__all__ = ["actors"]


async def replied(words: Sequence[str], *, begun: bool = False, **fake: Any) -> Line:
    with serving(FakeOpenAI(words=words, **fake)) as server:
        service = create(VllmSettings(base_url=server.base_url), InstantClock())
        guard_thoughts(service)
        setattr(service, BEGINS_IN_THOUGHT, begun)
        async with running(service, params=PipelineParams(enable_metrics=True)) as line:
            await line.send(LLMContextFrame(LLMContext([{"role": "user", "content": "hi"}])))
            await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    return line


def said(line: Line) -> list[str]:
    return [frame.text for frame in line.of(LLMTextFrame)]


def thought(line: Line) -> str:
    return "".join(frame.text for frame in line.of(LLMThoughtTextFrame))


async def test_a_thought_cut_anywhere_is_told_apart_and_the_answer_is_timed_without_it() -> None:
    line = await replied(
        ["<th", "ink>", "Hm", ", <", "b>", "</th", "ink", ">\n\n", "Two ", "pizzas."]
    )
    assert said(line) == ["Two ", "pizzas."]
    assert thought(line) == "Hm, <b>"
    kinds = [
        type(frame)
        for frame in line.frames
        if isinstance(frame, LLMThoughtTextFrame | LLMTextFrame)
        or (isinstance(frame, MetricsFrame) and isinstance(frame.data[0], TTFATMetricsData))
    ]
    # pipecat's time to the answer's first token ends with the answer.
    assert kinds[-3:] == [MetricsFrame, LLMTextFrame, LLMTextFrame]
    assert set(kinds[:-3]) == {LLMThoughtTextFrame}
    assert line.of(ErrorFrame) == []


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_what_a_server_tells_apart_is_a_thought(field: str) -> None:
    line = await replied(["(Hm.", "(Well.", "Two ", "pizzas."], thoughts=field)
    assert (said(line), thought(line)) == (["Two ", "pizzas."], "(Hm.(Well.")


async def test_a_reply_that_ends_within_its_thought_says_nothing() -> None:
    line = await replied(["<think>", "Hm."])
    assert (said(line), thought(line)) == ([], "Hm.")


async def test_a_thought_that_the_template_begins_is_cut_where_that_is_known() -> None:
    words = ["Hm. ", "</think>", "Two ", "pizzas."]
    line = await replied(words, begun=True)
    assert (said(line), thought(line)) == (["Two ", "pizzas."], "Hm. ")
    assert line.of(ErrorFrame) == []


async def test_a_thought_that_the_server_tells_apart_is_not_in_the_text_as_well() -> None:
    line = await replied(["(Hm.", "Two ", "pizzas."], begun=True)
    assert (said(line), thought(line)) == (["Two ", "pizzas."], "(Hm.")
    line = await replied(["\n", "(Hm.", "Two ", "pizzas."], begun=True)
    assert said(line) == ["Two ", "pizzas."]


@pytest.mark.parametrize("words", [["<think>", "Hm.", "</think>", "Two ", "pizzas."], ["(Hm."]])
async def test_each_thought_is_framed_so_that_none_is_kept(words: list[str]) -> None:
    line = await replied(words)
    kinds = [type(frame) for frame in line.frames]
    thoughts = [kinds.index(kind) for kind in (LLMThoughtStartFrame, LLMThoughtTextFrame)]
    thoughts.append(kinds.index(LLMThoughtEndFrame))
    assert thoughts == sorted(thoughts)
    assert kinds.count(LLMThoughtStartFrame) == kinds.count(LLMThoughtEndFrame) == 1
    ends = [LLMTextFrame, LLMFullResponseEndFrame]
    assert thoughts[-1] < min(kinds.index(kind) for kind in ends if kind in kinds)


async def test_elsewhere_the_turn_is_an_error_as_it_was_heard(errors: list[str]) -> None:
    line = await replied(["Hm. ", "</think>", "Two ", "pizzas."])
    assert said(line) == ["Hm. ", "Two ", "pizzas."]
    assert "a thought that nothing announced" in errors[0]


async def test_an_answer_beside_the_conversation_is_without_thoughts_too() -> None:
    with serving(FakeOpenAI(whole="<think>\nIt is wrong.\n</think>\n\nRIGHT")) as server:
        service = create(VllmSettings(base_url=server.base_url), InstantClock())
        guard_thoughts(service)
        asked = LLMContext([{"role": "user", "content": "hi"}])
        assert await service.run_inference(asked) == "RIGHT"
        await service.cleanup()


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the errors that services push, which go up the pipeline and not down to the line."""
    from pipecat.services.llm_service import LLMService

    told: list[str] = []

    async def push_error(self: Any, error_msg: str, *args: Any, **kwargs: Any) -> None:
        told.append(error_msg)

    monkeypatch.setattr(LLMService, "push_error", push_error)
    return told


def race(text: str, **settings: Any) -> Any:
    values: dict[str, Any] = {
        "fast": "quick",
        "full": "large",
        "deadline_ms": 300,
        "fast_settings": {"text": "the fast answer", "ttft_ms": 50},
        "full_settings": {"text": text, "ttft_ms": 200},
        **settings,
    }

    def made(clock: Clock) -> RaceLLMService:
        return RaceLLMService(settings=RaceSettings.model_validate(values), clock=clock)

    return made


def test_a_thought_does_not_win_a_race(actors: dict[str, Actor]) -> None:
    """The full model thinks from 200 ms on, and the fast one speaks at the deadline."""
    slow = "<think> " + "hm " * 40 + "</think> the full answer"
    won = one_reply(race(slow))
    assert (won.text, won.counts[FULL_WON], won.first_ms) == ("the fast answer", 0, 300)


def test_a_winner_that_thought_first_tells_how_much(actors: dict[str, Actor]) -> None:
    won = one_reply(race("<think> hm hm hm </think> the full answer"))
    assert (won.text, won.counts[FULL_WON]) == ("the full answer", 1)
    assert won.first_ms == 200 + 5 * TOKEN_MS
    assert won.counts["llm_thought_tokens"] == 4  # the last is the space before the end mark
    assert won.counts["llm_thought_ms"] == 3 * TOKEN_MS


def test_a_part_that_only_thinks_has_failed_and_the_other_one_answers(
    actors: dict[str, Actor],
) -> None:
    won = one_reply(race("<think> hm hm", fast_settings={"text": "fast", "ttft_ms": 900}))
    assert (won.text, won.counts["combined_fell_back"]) == ("fast", 1)
