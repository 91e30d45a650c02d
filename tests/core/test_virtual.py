"""Virtual time: sleeps take none, everything happens in its order and at its own instant."""

import asyncio
import threading
import time

import pytest

from turngap.core.clock import NS_PER_S, ms_to_ns
from turngap.testing import LoopClock, VirtualLoop, in_virtual_time
from turngap.testing.virtual import virtual_clocks

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


def test_work_in_a_thread_takes_as_long_as_it_is_said_to_and_others_go_on() -> None:
    def count() -> int:
        return 3

    async def work() -> tuple[int, int, list[int]]:
        others = list[int]()
        asyncio.get_running_loop().call_later(0.010, lambda: others.append(CLOCK.now_ns()))
        counted = await asyncio.get_running_loop().run_in_executor(None, count)
        return counted, CLOCK.now_ns(), others

    def thread_ms(func: object) -> float:
        return 48.0 if func is count else 0.0

    counted, ended_ns, others = in_virtual_time(work(), thread_ms)
    assert counted == 3
    assert ended_ns == pytest.approx(ms_to_ns(48), abs=10)
    assert others == [pytest.approx(ms_to_ns(10), abs=10)]


def test_what_fails_in_a_thread_fails_where_it_is_awaited() -> None:
    async def work() -> None:
        await asyncio.to_thread(int, "three")

    with pytest.raises(ValueError, match="three"):
        in_virtual_time(work())


def test_pythons_clocks_show_virtual_time_inside_and_the_real_one_beside_it() -> None:
    before = time.monotonic()
    beside = list[float]()

    async def read() -> tuple[float, float, int]:
        await CLOCK.sleep_until_ns(5 * NS_PER_S)
        thread = threading.Thread(target=lambda: beside.append(time.monotonic()))
        thread.start()
        thread.join()
        return time.monotonic(), time.perf_counter(), time.perf_counter_ns()

    with virtual_clocks():
        assert in_virtual_time(read()) == (5.0, 5.0, 5 * NS_PER_S)
    assert before <= beside[0] <= time.monotonic()


def test_a_call_that_does_not_return_makes_everybody_late() -> None:
    async def stall() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_at(0.010, loop.hold_up, 35.0)
        await CLOCK.sleep_until_ns(ms_to_ns(20))
        return CLOCK.now_ns()

    assert in_virtual_time(stall()) == ms_to_ns(45)


def test_a_task_that_sleeps_lets_all_that_is_due_by_then_go_first() -> None:
    async def sleeps() -> list[object]:
        loop, said = asyncio.get_running_loop(), list[object]()
        loop.call_at(0.005, said.append, "a timer of the same instant")
        await CLOCK.sleep_until_ns(ms_to_ns(5))
        loop.call_soon(said.append, "what is ready")
        await CLOCK.sleep_until_ns(ms_to_ns(9))
        said.append(CLOCK.now_ns())
        await CLOCK.sleep_until_ns(ms_to_ns(11))  # nothing else is due
        return [*said, CLOCK.now_ns()]

    expected = ["a timer of the same instant", "what is ready", ms_to_ns(9), ms_to_ns(11)]
    assert in_virtual_time(sleeps()) == expected


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
