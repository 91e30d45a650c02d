import asyncio
import statistics

import pytest
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    MetricsFrame,
)
from pipecat.metrics.metrics import LLMUsageMetricsData
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import InstantClock, running

from turngap.core.clock import NS_PER_MS, NS_PER_S, Clock
from turngap.scenario.model import Scenario
from turngap.testing import ManualClock
from turngap_services.llm.sim import SimSettings
from turngap_services.llm.sim.service import (
    FLOOR,
    PromptCache,
    SimLLMService,
    due_ns,
    library_turns,
    reply_to,
    tokens,
)

DEFAULT = SimSettings().default_reply


def scenario(name: str, *turns: tuple[str, str | None]) -> Scenario:
    return Scenario.model_validate(
        {"name": name, "turns": [{"say": s, "audio": "x.wav", "reply": r} for s, r in turns]}
    )


SCRIPT = library_turns(
    [
        scenario(
            "coffee", ("A large oat latte to go", "One latte."), ("that's all", "Bye, latte.")
        ),
        scenario("pizza", ("two pepperoni pizzas", "Two pizzas."), ("that's all", "Bye, pizza.")),
        scenario("silent", ("is anybody there", None)),
    ]
)


def service(clock: Clock, **settings: object) -> SimLLMService:
    return SimLLMService(settings=SimSettings(**settings), script=SCRIPT, clock=clock)  # type: ignore


def asked(*texts: str) -> LLMContextFrame:
    """A conversation in which the user and a forgetful assistant take turns."""
    messages = [{"role": "system", "content": "Be brief."}]
    for text in texts:
        messages += [{"role": "user", "content": text}, {"role": "assistant", "content": "Yes?"}]
    return LLMContextFrame(LLMContext(messages[:-1]))  # type: ignore


async def answer(model: SimLLMService, *texts: str) -> str:
    async with running(model, params=PipelineParams()) as line:
        await line.send(asked(*texts))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    return "".join(frame.text for frame in line.of(LLMTextFrame))


@pytest.mark.parametrize(
    ("heard", "reply"),
    [
        (["a large oat latte to go"], "One latte."),
        (["a large old latte to go"], "One latte."),
        (["two pepperoni pizzas"], "Two pizzas."),
        (["a large oat latte to go", "that's all"], "Bye, latte."),
        (["two pepperoni pizzas", "that's all"], "Bye, pizza."),
        (["two pepper pizzas", "thats all"], "Bye, pizza."),
        (["is anybody there"], DEFAULT),
        (["mm hmm"], DEFAULT),
        (["what is the capital of france"], DEFAULT),
    ],
)
def test_reply_is_the_nearest_turns_and_fits_the_conversation(heard: list[str], reply: str) -> None:
    assert reply_to(heard, SCRIPT, DEFAULT) == reply


def test_being_in_place_does_not_outweigh_a_better_match() -> None:
    heard = ["two pepperoni pizzas", "a large oat latte to go"]
    assert reply_to(heard, SCRIPT, DEFAULT) == "One latte."


def test_likeness_below_the_floor_gets_the_default() -> None:
    script = library_turns([scenario("x", ("abcdefghij", "Hit."))])
    # Indel similarity of two strings of 10 letters that share k in order is k / 10.
    shared = round(FLOOR * 10)
    assert reply_to(["abcdefghij"[:shared] + "z" * (10 - shared)], script, "no") == "Hit."
    assert reply_to(["abcdefghij"[: shared - 1] + "z" * (11 - shared)], script, "no") == "no"


@pytest.mark.parametrize("text", ["That's 7.50, please!", "Extraordinarily  long\nwords ", "é_—"])
def test_tokens_join_to_the_text(text: str) -> None:
    assert "".join(tokens(text)) == text


def test_tokens_carry_the_space_before_them() -> None:
    assert tokens("Coming up, sir.") == ["Coming", " up", ",", " sir", "."]


def test_jitter_has_the_medians_that_were_asked_for() -> None:
    firsts, gaps = [], []
    for i in range(400):
        due = due_ns(0, key=f"{i}", ttft_ms=150, tokens_per_s=65, jitter=0.15)
        first, second = next(due), next(due)
        firsts.append(first / NS_PER_MS)
        gaps.append((second - first) / NS_PER_MS)
    # The standard error of a median of 400 lognormal factors with sigma 0.15 is 0.9 %.
    assert statistics.median(firsts) == pytest.approx(150, rel=0.04)
    assert statistics.median(gaps) == pytest.approx(1000 / 65, rel=0.04)
    assert statistics.stdev(firsts) > 15


async def test_two_runs_are_identical_and_another_seed_is_not() -> None:
    schedules = []
    for seed in (1, 1, 2):
        clock = InstantClock()
        await answer(service(clock, seed=seed), "two pepperoni pizzas")
        schedules.append(clock.deadlines)
    assert schedules[0] == schedules[1]
    assert schedules[0] != schedules[2]


async def test_the_turns_number_changes_the_jitter() -> None:
    first, later = InstantClock(), InstantClock()
    await answer(service(first), "that's all")
    await answer(service(later), "two pepperoni pizzas", "that's all")
    assert first.deadlines[0] != later.deadlines[0]


async def test_tokens_come_when_they_are_due_and_not_before() -> None:
    clock = ManualClock()
    model = service(clock, ttft_ms=100, tokens_per_s=50, jitter=0)
    async with running(model, params=PipelineParams()) as line:
        await line.send(asked("two pepperoni pizzas"))
        await line.until(lambda: bool(line.of(LLMFullResponseStartFrame)))
        await clock.advance(99 * NS_PER_MS)
        assert line.of(LLMTextFrame) == []
        await clock.advance(1 * NS_PER_MS)
        await line.until(lambda: len(line.of(LLMTextFrame)) == 1)
        await clock.advance(NS_PER_S)
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    assert "".join(f.text for f in line.of(LLMTextFrame)) == "Two pizzas."


async def test_interruption_ends_the_reply() -> None:
    clock = ManualClock()
    model = service(clock, ttft_ms=100, tokens_per_s=50, jitter=0)
    async with running(model, params=PipelineParams()) as line:
        await line.send(asked("a large oat latte to go"))
        await line.until(lambda: bool(line.of(LLMFullResponseStartFrame)))
        await clock.advance(125 * NS_PER_MS)
        await line.until(lambda: len(line.of(LLMTextFrame)) == 2)
        await line.send(InterruptionFrame())
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
        assert clock.next_deadline_ns is None
        await clock.advance(NS_PER_S)
        assert "".join(f.text for f in line.of(LLMTextFrame)) == "One latte"
        # And it answers the next request as if nothing had happened.
        await line.send(asked("two pepperoni pizzas"))
        await line.until(lambda: len(line.of(LLMFullResponseStartFrame)) == 2)
        await clock.advance(NS_PER_S)
        await line.until(lambda: len(line.of(LLMFullResponseEndFrame)) == 2)
    assert "".join(f.text for f in line.of(LLMTextFrame)) == "One latteTwo pizzas."


async def test_messages_without_an_answer_between_them_are_one_turn() -> None:
    context = LLMContext(
        [{"role": "user", "content": "a large oat"}, {"role": "user", "content": "latte to go"}]
    )
    async with running(service(InstantClock()), params=PipelineParams()) as line:
        await line.send(LLMContextFrame(context))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    assert "".join(f.text for f in line.of(LLMTextFrame)) == "One latte."


async def test_usage_is_reported_by_pipecats_metrics() -> None:
    params = PipelineParams(enable_metrics=True, enable_usage_metrics=True)
    async with running(service(InstantClock()), params=params) as line:
        await line.send(asked("two pepperoni pizzas"))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    reported = [d for f in line.of(MetricsFrame) for d in f.data]
    (usage,) = [d.value for d in reported if isinstance(d, LLMUsageMetricsData)]
    assert usage.completion_tokens == len(tokens("Two pizzas."))
    assert usage.prompt_tokens == len(tokens("Be brief.")) + len(tokens("two pepperoni pizzas"))


async def test_two_models_in_one_process_do_not_share_a_conversation() -> None:
    replies = await asyncio.gather(
        answer(service(InstantClock()), "a large oat latte to go"),
        answer(service(InstantClock()), "two pepperoni pizzas"),
    )
    assert replies == ["One latte.", "Two pizzas."]


def test_a_prompt_is_read_from_where_it_differs_from_the_last_one():
    cache = PromptCache()
    assert cache.unread(["a", "b"]) == 2
    cache.read(["a", "b", "c"])
    assert cache.unread(["a", "b", "c", "d"]) == 1
    assert cache.unread(["a", "x", "c"]) == 2
    assert cache.unread(["a", "b"]) == 0


async def waited_ns(clock: ManualClock, task: asyncio.Task[object]) -> int:
    """Return how much time passes on the clock before the task is done."""
    start_ns = clock.now_ns()
    while not task.done():
        await clock.advance(NS_PER_MS)
    return clock.now_ns() - start_ns


async def test_reading_the_prompt_takes_its_time_once():
    clock = ManualClock()
    model = service(clock, prefill_tokens_per_s=100, ttft_ms=0, tokens_per_s=1e6, jitter=0)
    context = asked("a large oat latte to go").context
    prompt = sum(len(tokens(str(m["content"]))) for m in context.get_messages())  # type: ignore

    cold_ns = await waited_ns(clock, asyncio.create_task(model.run_inference(context, 1)))
    warm_ns = await waited_ns(clock, asyncio.create_task(model.run_inference(context, 1)))

    assert abs(cold_ns - prompt * NS_PER_S // 100) <= 2 * NS_PER_MS
    assert warm_ns <= 2 * NS_PER_MS


async def test_without_a_set_rate_the_prompt_takes_no_time_of_its_own():
    clock = ManualClock()
    model = service(clock, ttft_ms=0, tokens_per_s=1e6, jitter=0)
    context = asked("a large oat latte to go").context
    took_ns = await waited_ns(clock, asyncio.create_task(model.run_inference(context, 1)))
    assert took_ns <= 2 * NS_PER_MS


async def test_a_question_beside_the_pipeline_is_answered_as_far_as_asked():
    model = service(InstantClock())
    context = asked("a large oat latte to go").context
    assert await model.run_inference(context) == "One latte."
    assert await model.run_inference(context, max_tokens=1) == "One"
    assert await model.run_inference(LLMContext([])) == DEFAULT
