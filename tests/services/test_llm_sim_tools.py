"""The simulated model with tools: it calls what the library says, and answers from the result."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData, TTFATMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import InstantClock, running
from scripted_line import Conversation, conversing

from turngap.agent.tools import toolbox, tools
from turngap.scenario.expectation import Call
from turngap.scenario.model import Scenario
from turngap_services.llm.plain import plain_messages
from turngap_services.llm.sim import FULL, ServedSettings, SimSettings
from turngap_services.llm.sim.service import (
    SimLLMService,
    create_served,
    filled,
    library_turns,
    offers,
    reply_to,
    results_of,
    wrong_reply,
)

SETTINGS = SimSettings(ttft_ms=1, tokens_per_s=5000, jitter=0)
UMBRELLA, SHOP = "do I need an umbrella", "where is order four"
SCRIPT = library_turns(
    [
        Scenario.model_validate(
            {
                "name": "a",
                "turns": [
                    {
                        "say": UMBRELLA,
                        "audio": "x.wav",
                        "calls": [{"name": "weather", "arguments": {"day": "tomorrow"}}],
                        "reply": "Yes: {sky}.",
                    },
                    {
                        "say": SHOP,
                        "audio": "x.wav",
                        "calls": [{"name": "order", "arguments": {"number": "4"}}],
                        "reply": "It {status}.",
                    },
                    {"say": "thank you", "audio": "x.wav", "reply": "You are {welcome}."},
                ],
            }
        )
    ]
)


def box(*names: Any) -> ToolsSchema:
    return toolbox(names or ("weather", "order"), InstantClock(), among=tools())


@asynccontextmanager
async def talking(*names: Any) -> AsyncIterator[Conversation]:
    model = SimLLMService(settings=SETTINGS, script=SCRIPT, clock=InstantClock())
    async with conversing(llm=model, tools=box(*names)) as c:
        yield c


async def says(c: Conversation, text: str, *, turn: int = 1) -> str:
    """Say something; what the agent remembers of its answer."""
    await c.begins()
    await c.is_read(text)
    await c.ends(confirmed=False)
    await c.answered(turn)
    return c.memory[-1][1]


async def test_it_calls_the_tool_and_says_what_it_gave() -> None:
    async with talking() as c:
        assert await says(c, UMBRELLA) == "Yes: light rain."
        assert [role for role, _ in c.memory] == ["user", "assistant", "tool", "assistant"]
        # A reply without a call stands as it is, braces and all.
        assert await says(c, "thank you", turn=2) == "You are {welcome}."
        assert len(c.memory) == 6
        # And the same question is looked up again.
        assert await says(c, UMBRELLA, turn=3) == "Yes: light rain."
        assert sum(role == "tool" for role, _ in c.memory) == 2


async def test_a_tool_that_gives_no_answer_leaves_it_without_one() -> None:
    async with talking() as c:
        assert await says(c, SHOP) == SETTINGS.default_reply
        assert "there is no order 4" in c.memory[2][1]


async def test_what_is_not_offered_is_not_called() -> None:
    async with talking("order") as c:
        assert await says(c, UMBRELLA) == SETTINGS.default_reply
        assert [role for role, _ in c.memory] == ["user", "assistant"]


async def test_a_guess_calls_nothing_and_its_turn_does() -> None:
    async with talking() as c:
        await c.begins()
        await c.guess(UMBRELLA)
        await c.until(lambda: bool(c.of(EagerEndOfTurnCancelFrame)))
        assert c.memory == []
        await c.is_read(UMBRELLA)
        await c.ends(confirmed=False)
        await c.answered()
        assert c.memory[-1] == ("assistant", "Yes: light rain.")
        assert sum(role == "tool" for role, _ in c.memory) == 1


async def test_a_call_is_billed_as_the_tokens_that_it_is() -> None:
    model = SimLLMService(settings=SETTINGS, script=SCRIPT, clock=InstantClock())
    messages: list[Any] = [{"role": "user", "content": UMBRELLA}]
    context = LLMContext(messages, box())
    params = PipelineParams(enable_metrics=True, enable_usage_metrics=True)
    async with running(model, params=params) as line:
        await line.send(LLMContextFrame(context))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    assert line.of(LLMTextFrame) == []
    data = [d for frame in line.of(MetricsFrame) for d in frame.data]
    (usage,) = [d.value for d in data if isinstance(d, LLMUsageMetricsData)]
    assert usage.completion_tokens >= 10
    # The call's first token is told before it is whole, as of any server: a race may wait for it.
    kinds = [type(d) for d in data]
    assert kinds.index(TTFATMetricsData) < kinds.index(LLMUsageMetricsData)


# --- what it knows of tools -------------------------------------------------------------------


def heard(*messages: Any) -> LLMContext:
    return LLMContext(list(messages))


ASKS: Any = {"role": "user", "content": "x"}


def result(content: Any) -> Any:
    return {"role": "tool", "content": content, "tool_call_id": "1"}


def test_results_are_those_since_the_persons_last_words() -> None:
    assert results_of(heard(ASKS)) is None
    assert results_of(heard(ASKS, result('{"a": 1}'), result('{"b": "2"}'))) == {"a": 1, "b": "2"}
    assert results_of(heard(ASKS, result('{"a": 1}'), ASKS)) is None


@pytest.mark.parametrize("content", ["CANCELLED", '"sorry"', "[1]", None, ""])
def test_a_tool_that_failed_was_called_and_gave_nothing(content: Any) -> None:
    assert results_of(heard(ASKS, result(content))) == {}


def test_a_reply_is_filled_or_not_said() -> None:
    assert filled("{a} and {b}, {a}", {"a": 1, "b": "x", "c": 2}) == "1 and x, 1"
    assert filled("{a} and {b}", {"a": 1}) is None
    assert filled("nothing", {}) == "nothing"
    assert reply_to([UMBRELLA], SCRIPT, "default") == "default"


def test_all_tools_of_a_turn_have_to_be_offered() -> None:
    calls = [Call(name="weather"), Call(name="order")]
    assert offers(LLMContext([ASKS], box("weather", "order")), calls)
    assert not offers(LLMContext([ASKS], box("weather")), calls)
    assert not offers(LLMContext([ASKS]), calls)
    assert offers(LLMContext([ASKS]), [])


def test_models_without_tools_are_told_of_none() -> None:
    called: Any = {"role": "assistant", "tool_calls": [{"id": "1"}]}
    said: Any = {"role": "assistant", "content": "Rain."}
    context = heard(ASKS, called, result("{}"), said)
    assert plain_messages(context) == [ASKS, said]
    assert [m["role"] for m in plain_messages(context, tools=True)] == [
        *("user", "tool", "tool", "assistant"),
    ]


async def test_a_served_model_that_is_wrong_calls_nothing_and_says_no_empty_places() -> None:
    settings = ServedSettings(accuracy=0.0)
    model = create_served(FULL, settings, InstantClock())
    model._script = SCRIPT
    assert model._calls([UMBRELLA]) == ()
    assert wrong_reply("You are {welcome}.", SCRIPT, "key") is None
    right = create_served(FULL, ServedSettings(accuracy=1.0), InstantClock())
    right._script = SCRIPT
    assert [call.name for call in right._calls([UMBRELLA])] == ["weather"]
