"""The served profiles: rates, prices, wrong answers, and a server that all sessions share."""

import asyncio
import statistics
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest
from pipecat.frames.frames import (
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.pipeline.worker import PipelineParams
from pipecat.processors.aggregators.llm_context import LLMContext
from running_line import InstantClock, running

from turngap.backends import COUNTS, find
from turngap.core.clock import NS_PER_MS, NS_PER_S, Clock
from turngap.inference.server import H100, Server, StepCosts, find_model
from turngap.scenario.model import Scenario
from turngap.testing import ManualClock
from turngap_services.llm.sim import PROFILES, ServedSettings
from turngap_services.llm.sim.server import Background, LiveServer
from turngap_services.llm.sim.service import (
    WRONG,
    ServedLLMService,
    library_turns,
    server_of,
    wrong_reply,
)

SAID = {
    "a large oat latte to go": "One latte.",
    "two pepperoni pizzas": "Two pizzas, coming up.",
    "turn off the kitchen lights": "The lights are off.",
}
SCRIPT = library_turns(
    [
        Scenario.model_validate(
            {
                "name": "all",
                "turns": [{"say": s, "audio": "x.wav", "reply": r} for s, r in SAID.items()],
            }
        )
    ]
)
ALONE = Background(0)
GPU = Server(H100, find_model("llama-3.1-8b"), weights="fp8")


def live(
    clock: Clock, background: Background = ALONE, max_batch: int = 8, server: Server = GPU
) -> LiveServer:
    return LiveServer(server, background, max_batch=max_batch, seed=1, clock=clock)


def service(clock: Clock, accuracy: float = 1.0, **settings: object) -> ServedLLMService:
    return ServedLLMService(
        name="sim:test",
        model="a-model",
        settings=ServedSettings.model_validate(settings),
        accuracy=accuracy,
        server=live(clock),
        script=SCRIPT,
        clock=clock,
    )


def asked(text: str, turn: int = 1) -> LLMContextFrame:
    before = [{"role": "user", "content": "hm"}, {"role": "assistant", "content": "Yes?"}]
    messages = before * (turn - 1) + [{"role": "user", "content": text}]
    return LLMContextFrame(LLMContext(messages))  # type: ignore


async def answer(model: ServedLLMService, text: str) -> tuple[str, dict[str, float]]:
    async with running(model, params=PipelineParams()) as line:
        await line.send(asked(text))
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
    (start,) = line.of(LLMFullResponseStartFrame)
    return "".join(f.text for f in line.of(LLMTextFrame)), start.metadata[COUNTS]


async def instants(clock: Clock, tokens: AsyncIterator[int]) -> list[int]:
    return [clock.now_ns() async for _ in tokens]


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("sim:full", 60, 70), ("sim:full-low-batch", 165, 176), ("sim:distilled", 1000, 2000)],
)
async def test_each_profile_has_its_rate(name: str, low: float, high: float) -> None:
    (profile,) = (p for p in PROFILES if p.name == name)
    clock = InstantClock()
    server = server_of(profile, None, 1, clock)
    rates: list[float] = []
    for _ in range(40):
        at = await instants(clock, server.tokens(150, 40))
        assert len(at) == 40
        rates.append(39 * NS_PER_S / (at[-1] - at[0]))
        await clock.sleep_until_ns(clock.now_ns() + 4 * NS_PER_S)
    assert low <= statistics.mean(rates) <= high


def test_one_model_is_right_in_the_same_turns_however_it_is_served() -> None:
    def wrong(name: str) -> list[float]:
        spec = find("llm", name)
        made = spec.create(spec.settings({}), InstantClock())
        assert isinstance(made, ServedLLMService)
        heard = [[f"question {n}"] for n in range(200)]
        return [made.counts_of(said)[WRONG] for said in heard]

    assert wrong("sim:full") == wrong("sim:full-low-batch")
    assert 0 < sum(wrong("sim:full")) < sum(wrong("sim:distilled"))


async def test_a_step_is_over_when_the_clock_says_so() -> None:
    clock = ManualClock()
    server = live(clock)
    costs = StepCosts(GPU)
    first_ps = costs.step_ps(0, 0, 50, 0, 50 * 51 // 2)
    second_ps = costs.step_ps(1, 51)
    out: list[int] = []

    async def ask() -> None:
        out.extend([n async for n in server.tokens(50, 3)])

    task = asyncio.create_task(ask())
    await clock.advance(first_ps // 1000 - 1)
    assert out == []
    await clock.advance(2 + second_ps // 1000)
    await clock.advance(NS_PER_S)
    await task
    assert out == [1, 2, 3]


async def test_sessions_share_the_server() -> None:
    clock = ManualClock()
    server = live(clock, max_batch=1)
    done: dict[str, int] = {}

    async def ask(name: str) -> None:
        await instants(clock, server.tokens(50, 20))
        done[name] = clock.now_ns()

    tasks = [asyncio.create_task(ask(name)) for name in ("first", "second")]
    await clock.advance(10 * NS_PER_S)
    await asyncio.gather(*tasks)
    alone_ns = done["first"]
    # A batch of one: the second waits for the first to end.
    assert done["second"] == pytest.approx(2 * alone_ns, rel=0.02)


async def test_whoever_stops_listening_costs_nothing_more() -> None:
    clock = ManualClock()
    server = live(clock)
    step_ns = StepCosts(GPU).step_ps(1, 100) // 1000

    async def ask_a_little() -> None:
        async with aclosing(server.tokens(50, 1000)) as tokens:
            async for out in tokens:
                if out == 3:
                    return

    task = asyncio.create_task(ask_a_little())
    await clock.advance(5 * step_ns + 10 * NS_PER_MS)
    await task
    assert server.load == 0


async def test_an_idle_server_does_not_catch_up_with_hours() -> None:
    clock = InstantClock()
    server = live(clock, Background(40), max_batch=200)
    await instants(clock, server.tokens(50, 5))
    steps = server.steps
    await clock.sleep_until_ns(clock.now_ns() + 3600 * NS_PER_S)
    await instants(clock, server.tokens(50, 5))
    assert server.steps < steps + 1000


@pytest.mark.parametrize(("streams", "prompt_us"), [(20, 0), (150, 0), (80, 5_000)])
async def test_the_background_is_as_large_as_asked(streams: int, prompt_us: float) -> None:
    clock, part = InstantClock(), replace(GPU.accelerator, prompt_us=prompt_us)
    gpu = replace(GPU, accelerator=part)
    server = live(clock, Background(streams), max_batch=4 * streams, server=gpu)
    loads: list[int] = []
    for _ in range(400):
        await instants(clock, server.tokens(50, 1))
        loads.append(server.load)
        await clock.sleep_until_ns(clock.now_ns() + NS_PER_S // 4)
    assert statistics.mean(loads) == pytest.approx(streams, rel=0.15)


class HurriedClock(InstantClock):
    """Time passes with every look at it, as it does on a busy machine."""

    def now_ns(self) -> int:
        self._now_ns += 3 * NS_PER_MS
        return self._now_ns


async def test_time_that_passes_while_the_background_is_played_puts_nothing_out_of_order() -> None:
    clock = HurriedClock()
    server = live(clock, Background(40), max_batch=200)
    for _ in range(50):
        assert len(await instants(clock, server.tokens(50, 3))) <= 3


async def test_right_answers_are_the_librarys_and_recorded_as_right() -> None:
    for said, reply in SAID.items():
        assert await answer(service(InstantClock()), said) == (reply, {WRONG: 0.0})


async def test_wrong_answers_are_another_turns_and_recorded_as_wrong() -> None:
    for said, reply in SAID.items():
        heard, counts = await answer(service(InstantClock(), accuracy=0.0), said)
        assert heard in set(SAID.values()) - {reply}
        assert counts == {WRONG: 1.0}


async def test_as_many_answers_are_wrong_as_the_accuracy_says_the_same_ones_each_time() -> None:
    def wrong(seed: int, accuracy: float) -> list[bool]:
        model = service(InstantClock(), accuracy=accuracy, seed=seed)
        return [bool(model.counts_of([f"question {n}"])[WRONG]) for n in range(2000)]

    first = wrong(1, 0.773)
    # The standard error of 2,000 draws is 0.9 %.
    assert sum(first) / 2000 == pytest.approx(1 - 0.773, abs=0.03)
    assert first == wrong(1, 0.773) != wrong(2, 0.773)
    # Who is right at the lower accuracy is right at the higher one too.
    worse = wrong(1, 0.584)
    assert all(w for w, f in zip(worse, first, strict=True) if f)


async def test_an_interruption_ends_the_request_at_the_server() -> None:
    clock = ManualClock()
    model = service(clock)
    async with running(model, params=PipelineParams()) as line:
        await line.send(asked("two pepperoni pizzas"))
        await line.until(lambda: bool(line.of(LLMFullResponseStartFrame)))
        await clock.advance(9 * NS_PER_MS)
        await line.until(lambda: bool(line.of(LLMTextFrame)))
        await line.send(InterruptionFrame())
        await line.until(lambda: bool(line.of(LLMFullResponseEndFrame)))
        await clock.advance(NS_PER_S)
    assert model.server.load == 0
    text = "".join(f.text for f in line.of(LLMTextFrame))
    assert text != SAID["two pepperoni pizzas"]
    assert SAID["two pepperoni pizzas"].startswith(text)


async def test_the_network_comes_before_the_first_token() -> None:
    near, far = InstantClock(), InstantClock()
    await answer(service(near), "two pepperoni pizzas")
    await answer(service(far, network_ms=80), "two pepperoni pizzas")
    assert far.now_ns() - near.now_ns() == 80 * NS_PER_MS


def test_a_library_of_one_reply_has_no_wrong_one() -> None:
    (line, *_) = SCRIPT
    assert line.reply is not None
    assert wrong_reply(line.reply, [line, replace(line, said="x")], "k") is None
