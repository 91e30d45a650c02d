"""The real clock: it never wakes anybody early, and not by asyncio's two milliseconds late."""

import asyncio
import os
from pathlib import Path

import pytest

from turngap import clocks
from turngap.clocks import MonotonicClock
from turngap.core.clock import ms_to_ns

each_way = pytest.mark.parametrize("precise", [False, True])


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


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
