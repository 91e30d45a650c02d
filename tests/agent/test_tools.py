"""The tools that an agent's LLM may call: what they give, and that pipecat runs them."""

import asyncio
from datetime import datetime
from typing import Any, ClassVar

import pytest
from pipecat.frames.frames import EagerEndOfTurnCancelFrame
from scripted_line import Conversation, EchoLLM, conversing

from turngap.agent.stack import TOOLS, Stack, load_stack, override, resolved
from turngap.agent.tools import Tool, toolbox, tools
from turngap.backends import find
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns
from turngap.core.errors import InputError
from turngap.marks.observer import MarksObserver
from turngap.testing import ManualClock

NOW = datetime(2026, 11, 21, 21, 5)


@pytest.fixture
def kit() -> dict[str, Tool]:
    return {tool.name: tool for tool in tools(lambda: NOW)}


def test_the_clock_tells_the_time_it_is(kit: dict[str, Tool]) -> None:
    assert kit["clock"].answer({}) == {"time": "21:05", "day": "Saturday", "date": "2026-11-21"}
    before = datetime.now().replace(second=0, microsecond=0)
    told = dict(next(t for t in tools() if t.name == "clock").answer({}))
    assert before <= datetime.fromisoformat(f"{told['date']} {told['time']}") <= datetime.now()


def test_the_weather_line_knows_two_days(kit: dict[str, Tool]) -> None:
    assert kit["weather"].answer({"day": "tomorrow"}) == {"sky": "light rain", "degrees": "14"}
    assert "'today' or 'tomorrow'" in kit["weather"].answer({"day": "friday"})["error"]


@pytest.mark.parametrize("number", ["47192", 47192, "4-7-1-9-2", " 47 192"])
def test_an_order_is_found_however_its_number_is_written(
    kit: dict[str, Tool], number: str | int
) -> None:
    assert kit["order"].answer({"number": number})["status"] == "arrives today"


def test_an_order_that_is_not_there_is_an_error_for_the_llm(kit: dict[str, Tool]) -> None:
    assert kit["order"].answer({"number": "1"}) == {"error": "there is no order 1"}
    assert kit["order"].answer({"number": "mine"}) == {"error": "there is no order mine"}


def test_the_calendar_is_written_to_and_read_again(kit: dict[str, Tool]) -> None:
    calendar = kit["calendar"].answer
    assert calendar({"day": "friday"}) == {"day": "friday", "entries": "nothing"}
    calendar({"day": "friday", "time": "13:00", "entry": "lunch"})
    added = calendar({"day": "friday", "time": "09:30", "entry": "bank"})
    assert added == {"day": "friday", "entries": "09:30 bank, 13:00 lunch"}
    assert calendar({"day": "monday"})["entries"] == "nothing"
    taken = calendar({"day": "friday", "time": "13:00", "entry": "nap"})
    assert taken == {"error": "13:00 is taken: lunch"}
    assert calendar({"day": "friday", "entry": "nap"}) == {"error": "an entry needs a time"}
    assert calendar({"day": "friday"}) == added
    # Another conversation's is another.
    others = next(t for t in tools() if t.name == "calendar")
    assert others.answer({"day": "friday"})["entries"] == "nothing"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("calendar", {"day": "friday", "time": "1 pm", "entry": "x"}, "time: "),
        ("calendar", {"day": "friday", "time": "25:00", "entry": "x"}, "time: "),
        ("calendar", {"day": "someday"}, "day: "),
        ("order", {}, "number: Field required"),
        ("clock", {"zone": "UTC"}, "zone: Extra inputs are not permitted"),
    ],
)
def test_what_a_tool_does_not_understand_is_told_to_the_llm(
    kit: dict[str, Tool], name: str, arguments: dict[str, Any], told: str
) -> None:
    assert told in kit[name].answer(arguments)["error"]


# --- as pipecat offers and runs them ----------------------------------------------------------


def test_only_the_named_ones_are_offered_with_what_they_need() -> None:
    box = toolbox(("weather", "clock"), ManualClock(), among=tools())
    schemas = {s.name: s.to_default_dict() for s in box.standard_tools}
    assert set(schemas) == {"clock", "weather"}
    weather = schemas["weather"]
    assert weather["description"].startswith("The weather line")
    assert weather["parameters"]["properties"]["day"]["enum"] == ["today", "tomorrow"]
    assert weather["parameters"]["required"] == ["day"]


async def test_a_call_takes_as_long_as_is_set() -> None:
    clock, given = ManualClock(), list[tuple[int, Any]]()
    box = toolbox(("weather",), clock, delay_ms=300, among=tools())

    class Params:
        arguments: ClassVar = {"day": "today"}

        async def result_callback(self, result: Any) -> None:
            given.append((clock.now_ns(), result["sky"]))

    handler: Any = box.standard_tools[0].handler
    call = asyncio.create_task(handler(Params()))
    await clock.advance(ms_to_ns(299))
    assert given == []
    await clock.advance(ms_to_ns(1))
    await call
    assert given == [(ms_to_ns(300), "sunny")]


class AskingLLM(EchoLLM):
    """Calls the weather line before it answers, unless its context says that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.call = ("weather", {"day": "tomorrow"})

    async def _answer(self, said: str, context: Any) -> None:
        self.wants_tool = not any(m["role"] == "tool" for m in context.get_messages())
        await super()._answer(said, context)


def weather_line(**options: Any) -> Any:
    box = toolbox(("weather",), MonotonicClock(), among=tools())
    return conversing(llm=AskingLLM(), tools=box, **options)


def tool_messages(c: Conversation) -> list[str]:
    return [text for role, text in c.memory if role == "tool"]


async def test_a_tool_runs_and_the_answer_is_made_of_its_result() -> None:
    async with weather_line() as c:
        await c.begins()
        await c.is_read("umbrella")
        await c.ends(confirmed=False)
        await c.answered()
        assert tool_messages(c) == ['{"sky": "light rain", "degrees": "14"}']
        # The LLM is asked again, and what it is asked with ends with the result.
        assert c.memory[-1][1].startswith('You said {"sky": "light rain"')


@pytest.mark.parametrize("rounds", range(0, 60, 6))
async def test_whenever_a_guess_is_confirmed_the_tool_runs_once_and_never_before(
    rounds: int,
) -> None:
    async with weather_line() as c:
        await c.begins()
        await c.is_read("umbrella")
        await c.guess("umbrella")
        await c.pause(rounds)
        assert tool_messages(c) == []
        # As turn-taking has it: a guess that was refused is not confirmed.
        await c.ends(confirmed=not c.refused)
        await c.answered()
        assert len(tool_messages(c)) == 1
        assert c.heard_letters > 0


@pytest.mark.parametrize("guessed", [True, False])
async def test_the_answer_after_a_tool_is_its_turns_whether_it_was_guessed_or_not(
    guessed: bool,
) -> None:
    async with weather_line(observer=MarksObserver()) as c:
        await c.begins()
        await c.is_read("umbrella")
        if guessed:
            await c.guess("umbrella")
        await c.ends(confirmed=guessed)
        await c.answered()
        await c.llm.broadcast_interruption()
        await c.until(lambda: bool(c.client_heard("server-message")))
    report = c.client_heard("server-message")[-1]
    marks = report["marks"]
    order = ("llm_request", "tool_call", "tool_result", "llm_first_token", "tts_request")
    instants = [marks[name] for name in order]
    assert instants == sorted(instants)
    (call,) = report["calls"]
    assert (call["name"], call["error"]) == ("weather", None)


async def test_of_a_guess_that_is_withdrawn_nothing_was_called() -> None:
    async with weather_line() as c:
        await c.begins()
        await c.guess("umbrella")
        await c.until(lambda: bool(c.of(EagerEndOfTurnCancelFrame)))
        await c.withdraw()
        await c.begins(interrupt=True)
        assert tool_messages(c) == []


# --- as a stack names them --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "use"),
    [
        ("all", TOOLS),
        ("clock", ("clock",)),
        ("clock, weather", ("clock", "weather")),
        ('["order"]', ("order",)),
        ("[]", ()),
    ],
)
def test_tools_are_chosen_by_a_setting(text: str, use: tuple[str, ...]) -> None:
    assert override(load_stack("embedded"), {}, [f"tools.use={text}"]).tools.use == use


def test_an_unknown_tool_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"tools\.use\.0: .*'clock', 'weather', 'order'") as e:
        override(load_stack("embedded"), {}, ["tools.use=fax"])
    assert e.value.exit_code == 2


def with_tools(llm: str, *assignments: str) -> Stack:
    return override(load_stack("embedded"), {"llm": llm}, ["tools.use=clock", *assignments])


def test_an_llm_that_calls_no_tools_is_refused_with_those_that_do() -> None:
    with pytest.raises(InputError, match="llm backend 'small' calls no tools\n") as e:
        list(resolved(with_tools("small"), None))
    assert (
        "anthropic, cerebras, groq, local, openai, vllm; or, simulated, sim, sim:" in e.value.hint
    )
    assert e.value.kind == "tools.not_called"


def test_one_that_calls_them_is_taken() -> None:
    assert len(list(resolved(with_tools("sim"), None))) == 4


@pytest.mark.parametrize(
    ("llm", "assignment", "ok"),
    [
        ("race", 'llm.fast="sim"', True),
        ("race", 'llm.fast="small"', False),
        ("race", 'llm.full="small"', False),
        ("route", 'llm.fast="small"', True),
        ("route", 'llm.full="small"', False),
        ("opener", 'llm.fast="small"', True),
        ("opener", 'llm.full="small"', False),
        ("best-of", 'llm.candidates=["sim", "sim:full"]', True),
        ("best-of", 'llm.candidates=["sim", "small"]', False),
    ],
)
def test_whose_parts_do_not_call_is_refused_by_the_parts_name(
    llm: str, assignment: str, ok: bool
) -> None:
    stack = with_tools(llm, assignment)
    spec = find("llm", llm)
    settings = spec.settings(stack.llm.settings)
    if ok:
        assert spec.why_no_tools(settings) is None
        return
    with pytest.raises(
        InputError, match=f"'{llm}' calls no tools: its part 'small' calls none"
    ) as e:
        list(resolved(stack, None))
    assert "make it of parts that do: anthropic" in e.value.hint
    assert e.value.exit_code == 2
