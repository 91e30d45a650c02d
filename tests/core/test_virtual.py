"""Virtual time: sleeps take none, everything happens in its order and at its own instant."""

import asyncio
import time

import pytest

from turngap.core.clock import NS_PER_S, ms_to_ns
from turngap.testing import LoopClock, VirtualLoop, in_virtual_time

CLOCK = LoopClock()


def test_a_day_passes_at_once_and_to_the_nanosecond() -> None:
    async def day() -> list[int]:
        woken = list[int]()

        async def sleep(until_ns: int) -> None:
            await CLOCK.sleep_until_ns(until_ns)
            woken.append(CLOCK.now_ns())

        deadlines = (86_400 * NS_PER_S + 1, 3, 1_000_000_007)
        await asyncio.gather(*map(sleep, deadlines))
        return woken

    began_s = time.monotonic()
    assert in_virtual_time(day()) == [3, 1_000_000_007, 86_400 * NS_PER_S + 1]
    assert time.monotonic() - began_s < 60


def test_asyncios_own_waits_go_by_the_same_time() -> None:
    async def waits() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.5):
                await asyncio.Event().wait()
        return CLOCK.now_ns()

    assert in_virtual_time(waits()) == pytest.approx(2.5 * NS_PER_S, abs=10)


def test_a_deadline_that_has_passed_is_no_wait() -> None:
    async def late() -> int:
        await CLOCK.sleep_until_ns(100)
        await CLOCK.sleep_until_ns(50)
        return CLOCK.now_ns()

    assert in_virtual_time(late()) == 100


def test_no_time_passes_while_a_thread_is_at_work() -> None:
    async def work() -> tuple[int, str]:
        sleeper = asyncio.ensure_future(CLOCK.sleep_until_ns(1000))
        done = await asyncio.to_thread(lambda: time.sleep(0.05) or "done")
        seen = CLOCK.now_ns()
        await sleeper
        return seen, done

    assert in_virtual_time(work()) == (0, "done")


def test_a_call_that_does_not_return_makes_everybody_late() -> None:
    async def stall() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_at(0.010, loop.hold_up, 35.0)
        await CLOCK.sleep_until_ns(ms_to_ns(20))
        return CLOCK.now_ns()

    assert in_virtual_time(stall()) == ms_to_ns(45)


def test_waiting_forever_is_an_error_and_not_a_hanging_test() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="wait forever"):
        in_virtual_time(forever())


def test_a_sleeper_that_is_cancelled_is_forgotten() -> None:
    async def cancelled() -> int:
        task = asyncio.ensure_future(CLOCK.sleep_until_ns(10**15))
        await CLOCK.sleep_until_ns(5)
        task.cancel()
        await CLOCK.sleep_until_ns(7)
        assert task.cancelled()
        return CLOCK.now_ns()

    assert in_virtual_time(cancelled()) == 7


async def test_the_clock_of_a_virtual_loop_is_refused_in_another() -> None:
    with pytest.raises(RuntimeError, match="not in virtual time"):
        CLOCK.now_ns()
