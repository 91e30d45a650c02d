import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.clock import NS_PER_MS, Clock, ms_to_ns, ns_to_ms, ns_to_samples, samples_to_ns
from turngap.testing import ManualClock

RATES = st.sampled_from([8_000, 11_025, 16_000, 22_050, 24_000, 44_100, 48_000])


@given(st.integers(0, 10**9), RATES)
def test_samples_survive_the_way_to_nanoseconds_and_back(samples: int, rate: int) -> None:
    assert ns_to_samples(samples_to_ns(samples, rate), rate) == samples


@given(st.integers(0, 10**15), RATES)
def test_the_samples_that_fit_into_a_duration_do_not_outlast_it(ns: int, rate: int) -> None:
    assert samples_to_ns(ns_to_samples(ns, rate), rate) <= ns
    assert samples_to_ns(ns_to_samples(ns, rate) + 1, rate) > ns


@given(st.integers(-(10**15), 10**15))
def test_whole_milliseconds_survive(ms: int) -> None:
    assert ms_to_ns(ms) == ms * NS_PER_MS
    assert ns_to_ms(ms * NS_PER_MS) == ms


class Sleepers:
    """A task for each deadline; `woken` fills with (index, instant) as they wake."""

    def __init__(self, clock: Clock, deadlines: list[int]) -> None:
        self.woken: list[tuple[int, int]] = []
        self._clock = clock
        self._tasks = [asyncio.create_task(self._sleep(*each)) for each in enumerate(deadlines)]

    async def _sleep(self, index: int, deadline: int) -> None:
        await self._clock.sleep_until_ns(deadline)
        self.woken.append((index, self._clock.now_ns()))


@given(st.lists(st.integers(1, 50), max_size=20), st.lists(st.integers(0, 30), max_size=5))
def test_sleepers_wake_by_deadline_then_by_turn_each_at_its_own_instant(
    deadlines: list[int], steps: list[int]
) -> None:
    async def course() -> None:
        clock = ManualClock()
        sleepers = Sleepers(clock, deadlines)
        for step in [*steps, 50]:
            await clock.advance(step)
        expected = sorted(enumerate(deadlines), key=lambda pair: pair[1])
        assert sleepers.woken == expected

    asyncio.run(course())


async def test_time_stands_still_while_tasks_run() -> None:
    clock = ManualClock(start_ns=7)
    sleepers = Sleepers(clock, [9])
    await clock.advance(0)
    assert clock.now_ns() == 7
    assert sleepers.woken == []
    await clock.advance_to(8)
    assert (clock.now_ns(), sleepers.woken) == (8, [])
    await clock.advance_to(9)
    assert (clock.now_ns(), sleepers.woken) == (9, [(0, 9)])


async def test_a_deadline_that_has_passed_does_not_wait() -> None:
    clock = ManualClock(start_ns=5)
    await clock.sleep_until_ns(5)
    await clock.sleep_until_ns(1)


async def test_a_chain_of_sleeps_runs_within_one_advance() -> None:
    clock = ManualClock()
    instants: list[int] = []

    async def pacer() -> None:
        for packet in range(1, 6):
            await clock.sleep_until_ns(packet * 20)
            instants.append(clock.now_ns())

    task = asyncio.create_task(pacer())
    await clock.advance(1000)
    assert task.done()
    assert instants == [20, 40, 60, 80, 100]


async def test_what_a_woken_task_sets_off_happens_before_time_moves_on() -> None:
    clock = ManualClock()
    queue: asyncio.Queue[int] = asyncio.Queue()
    seen: list[tuple[int, int]] = []

    async def producer() -> None:
        for at in (10, 20, 30):
            await clock.sleep_until_ns(at)
            await queue.put(at)

    async def consumer() -> None:
        while True:
            seen.append((await queue.get(), clock.now_ns()))

    tasks = [asyncio.create_task(f()) for f in (consumer, producer)]
    await clock.advance(100)
    for task in tasks:
        task.cancel()
    assert seen == [(10, 10), (20, 20), (30, 30)]


async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep_until_ns(10))
    await clock.advance(1)
    assert clock.next_deadline_ns == 10
    task.cancel()
    await asyncio.wait([task])
    assert clock.next_deadline_ns is None
    await clock.advance(100)
    assert clock.now_ns() == 101


@pytest.mark.parametrize("move", [lambda c: c.advance(-1), lambda c: c.advance_to(4)])
async def test_it_never_goes_back(move: Callable[[ManualClock], Awaitable[None]]) -> None:
    clock = ManualClock(start_ns=5)
    with pytest.raises(ValueError, match="has passed"):
        await move(clock)
    assert clock.now_ns() == 5


async def test_only_one_task_moves_it() -> None:
    clock = ManualClock()
    refused: list[str] = []

    async def meddler() -> None:
        await clock.sleep_until_ns(10)
        try:
            await clock.advance(5)
        except RuntimeError as e:
            refused.append(str(e))

    task = asyncio.create_task(meddler())
    await clock.advance(20)
    await task
    assert refused == ["the clock is being moved already; one task at a time moves it"]
    await clock.advance(1)
    assert clock.now_ns() == 21
