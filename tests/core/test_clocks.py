"""The real clock: it never wakes anybody early, and not by asyncio's two milliseconds late."""

import asyncio
import os

import pytest

from helpers.descriptors import open_descriptors
from turngap import clocks
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns

each_way = pytest.mark.parametrize("precise", [False, True])


@each_way
async def test_nobody_is_woken_early(precise: bool) -> None:
    clock = MonotonicClock(precise=precise)
    for ms in (0.05, 0.3, 1.5, 9.0):
        deadline_ns = clock.now_ns() + ms_to_ns(ms)
        await clock.sleep_until_ns(deadline_ns)
        assert clock.now_ns() >= deadline_ns


@each_way
async def test_a_deadline_that_has_passed_is_no_wait(precise: bool) -> None:
    clock = MonotonicClock(precise=precise)
    for ago_ms in (0, 1, 1e9):
        task = asyncio.ensure_future(clock.sleep_until_ns(clock.now_ns() - ms_to_ns(ago_ms)))
        await asyncio.wait([task], timeout=10)
        assert task.done()


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    clock, woken = MonotonicClock(), list[int]()

    async def sleep(ms: int) -> None:
        await clock.sleep_until_ns(start_ns + ms_to_ns(ms))
        woken.append(ms)

    start_ns = clock.now_ns()
    await asyncio.gather(*map(sleep, (150, 50, 100)))
    assert woken == [50, 100, 150]


@pytest.mark.skipif(clocks._libc is None, reason="no timers of the kernel here")
async def test_a_sleep_is_not_rounded_up_to_milliseconds() -> None:
    # epoll makes at least 10 ms of 9.01. One wake-up of fifty has to be prompt on any machine.
    clock, late_ns = MonotonicClock(), list[int]()
    for _ in range(50):
        deadline_ns = clock.now_ns() + ms_to_ns(9.01)
        await clock.sleep_until_ns(deadline_ns)
        late_ns.append(clock.now_ns() - deadline_ns)
    assert min(late_ns) < ms_to_ns(0.9)


async def test_a_sleep_that_is_cancelled_leaves_nothing_open() -> None:
    clock, before = MonotonicClock(), open_descriptors()
    tasks = [
        asyncio.ensure_future(clock.sleep_until_ns(clock.now_ns() + 10**12)) for _ in range(20)
    ]
    await asyncio.wait(tasks, timeout=0.05)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert open_descriptors() == before


async def test_long_sleeps_hold_no_descriptors() -> None:
    clock, before = MonotonicClock(), open_descriptors()
    deadline_ns = clock.now_ns() + ms_to_ns(600_000)
    tasks = [asyncio.ensure_future(clock.sleep_until_ns(deadline_ns)) for _ in range(50)]
    await asyncio.wait(tasks, timeout=0.05)
    held = open_descriptors()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert held == before


@each_way
async def test_a_long_sleep_ends_on_a_timer_of_the_kernel(
    precise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept_s, woken = list[float](), list[int]()

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    async def wake_at(instant_ns: int) -> None:
        woken.append(instant_ns)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(clocks, "_wake_at", wake_at)
    clock = MonotonicClock(precise=precise)
    monkeypatch.setattr(clock, "_spin_ns", 0)
    deadline_ns = clock.now_ns() + ms_to_ns(600_000)
    await clock.sleep_until_ns(deadline_ns)
    assert [round(seconds, 1) for seconds in slept_s] == [599.9]
    assert woken == [deadline_ns]


@each_way
async def test_without_timers_of_the_kernel_asyncio_sleeps(
    precise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "_open_timer", lambda: None)
    clock = MonotonicClock(precise=precise)
    deadline_ns = clock.now_ns() + ms_to_ns(20)
    await clock.sleep_until_ns(deadline_ns)
    assert clock.now_ns() >= deadline_ns


def test_a_timer_that_the_kernel_does_not_know_is_an_error() -> None:
    with pytest.raises(OSError, match="a timer cannot be set"), os.fdopen(os.dup(0)) as no_timer:
        clocks._set_timer(no_timer.fileno(), 1)
