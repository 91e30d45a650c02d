"""The real clock: it never wakes anybody early, and not by asyncio's two milliseconds late."""

import asyncio
import gc
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.descriptors import open_descriptors
from turngap import clocks
from turngap.clocks import LoopTimer, MonotonicClock, Sleepers, others_first, pace
from turngap.core.clock import Clock, ms_to_ns
from turngap.testing.virtual import LoopClock, in_virtual_time

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


async def test_all_sleepers_of_a_loop_share_one_descriptor_however_long_they_sleep() -> None:
    clock, before = MonotonicClock(), open_descriptors()
    tasks = [
        asyncio.ensure_future(clock.sleep_until_ns(clock.now_ns() + ms_to_ns(ms)))
        for ms in (50.0, 900.0, 600_000.0) * 1000
    ]
    await others_first()
    held = open_descriptors()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert held == before + (clocks._libc is not None)
    assert open_descriptors() == before


async def test_thousands_of_sleepers_are_all_woken_and_none_early() -> None:
    clock, start_ns = MonotonicClock(), MonotonicClock().now_ns()

    async def sleep(number: int) -> int:
        deadline_ns = start_ns + ms_to_ns(number % 50)
        await clock.sleep_until_ns(deadline_ns)
        return clock.now_ns() - deadline_ns

    late_ns = await asyncio.gather(*map(sleep, range(3000)))
    assert min(late_ns) >= 0


def test_each_loop_has_a_timer_of_its_own() -> None:
    clock = MonotonicClock(precise=True)  # one clock for all, as an agent's sockets have it

    async def sleep() -> list[int]:
        late_ns: list[int] = []
        for ms in (1, 20, 3):
            deadline_ns = clock.now_ns() + ms_to_ns(ms)
            await clock.sleep_until_ns(deadline_ns)
            late_ns.append(clock.now_ns() - deadline_ns)
        return late_ns

    before = open_descriptors()
    with ThreadPoolExecutor() as threads:
        ended = [threads.submit(asyncio.run, sleep()) for _ in range(4)]
        late_ns = [ns for each in ended for ns in each.result(timeout=60)]
    assert len(late_ns) == 12
    assert min(late_ns) >= 0
    gc.collect()  # a loop that is gone takes its timer with it
    assert open_descriptors() == before


async def test_many_precise_sleepers_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    early_ns: list[int] = []

    async def sleep(_: LoopTimer, instant_ns: int) -> None:
        early_ns.append(deadline_ns - instant_ns)
        await others_first()

    monkeypatch.setattr(LoopTimer, "sleep", sleep)
    clock = MonotonicClock(precise=True)
    deadline_ns = clock.now_ns() + ms_to_ns(5)
    await asyncio.gather(*(clock.sleep_until_ns(deadline_ns) for _ in range(12)))
    assert early_ns == [clocks._SPIN_NS] * clocks._MOST_SPINNING + [0] * 4
    assert clock.now_ns() >= deadline_ns


def test_a_loop_that_was_closed_while_somebody_slept_on_it_leaves_nothing() -> None:
    clock, left = MonotonicClock(), list[asyncio.Task[None]]()

    async def fall_asleep(for_ms: float) -> None:
        await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(for_ms))

    async def sleep_for_ever() -> None:
        task: Any = asyncio.create_task(fall_asleep(1e6))
        task._log_destroy_pending = False
        left.append(task)
        await others_first()

    def close_loops() -> None:
        for _ in range(20):
            loop = asyncio.new_event_loop()
            loop.run_until_complete(sleep_for_ever())
            loop.close()
        asyncio.run(fall_asleep(1))

    before, known = open_descriptors(), len(clocks._timers)
    close_loops()  # and the tasks live on, so that no collector helps
    assert (open_descriptors() - before, len(clocks._timers) - known) == (0, 0)


# --- in manual time ---------------------------------------------------------------------------

# Each falls asleep at an instant until another one, and may be cancelled at a third.
sleeps = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 60), st.none() | st.integers(1, 60)), max_size=15
)


@settings(deadline=None)
@given(sleeps)
def test_whoever_is_due_wakes_in_order_at_that_instant_unless_cancelled(
    plan: list[tuple[int, int, int | None]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        woken = asyncio.run(_play(plan, patch))
    expected = [
        (max(begins, due), number)
        for number, (begins, due, cancelled) in enumerate(plan)
        if cancelled is None or begins < cancelled >= due
    ]
    assert sorted(woken) == sorted(expected)
    assert [at for at, _ in woken] == sorted(at for at, _ in woken)


async def _play(
    plan: list[tuple[int, int, int | None]], patch: pytest.MonkeyPatch
) -> list[tuple[int, int]]:
    """Play sleeps on a timer that rings when the test says so; return who woke at which instant."""
    now_ns, woken = 0, list[tuple[int, int]]()
    set_to = list[int]()
    patch.setattr(clocks, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    patch.setattr(clocks, "_open_timer", lambda: os.eventfd(0))
    patch.setattr(clocks, "_set_timer", lambda _, instant_ns: set_to.append(instant_ns))
    clock = MonotonicClock()
    tasks: dict[int, asyncio.Task[None]] = {}

    async def sleep(number: int, due: int) -> None:
        await clock.sleep_until_ns(due)
        woken.append((now_ns, number))

    for now_ns in range(1, 62):
        timer = clocks._timers.get(asyncio.get_running_loop())
        if timer is not None and timer._set_to_ns is not None and timer._set_to_ns <= now_ns:
            assert set_to[-1] == timer._set_to_ns == now_ns  # and to nothing that has passed
            timer._ring()
        await _settled()
        for number, (begins, due, cancelled) in enumerate(plan):
            if cancelled == now_ns and number in tasks:
                tasks[number].cancel()
            if begins == now_ns and (cancelled is None or cancelled > begins):
                tasks[number] = asyncio.create_task(sleep(number, due))
        await _settled()
    assert all(task.done() for task in tasks.values())
    return woken


async def _settled() -> None:
    for _ in range(5):
        await others_first()


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=400))
def test_those_who_were_cancelled_are_forgotten(plan: list[tuple[int, bool]]) -> None:
    loop = asyncio.new_event_loop()
    sleepers, waiting = Sleepers(), list[tuple[int, int, asyncio.Future[None]]]()
    for order, (due, cancelled) in enumerate(plan):
        woken = loop.create_future()
        sleepers.add(due, woken)
        if cancelled:
            woken.cancel()
            sleepers.cancelled()
        else:
            waiting.append((due, order, woken))
    left = len(waiting)
    assert left <= len(sleepers) <= 2 * left + 2 * clocks._MOST_CANCELLED
    assert sleepers.next_ns() == min((due for due, _, _ in waiting), default=None)
    for now in range(100):
        sleepers.wake(now)
        assert [w for d, _, w in waiting if w.done()] == [w for d, _, w in waiting if d <= now]
    loop.close()


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


async def beats(clock: Clock, paces: int) -> list[list[tuple[int, int]]]:
    """Pace ten beats several times at once; return when each was due, and when it came."""
    told = [list[tuple[int, int]]() for _ in range(paces)]

    async def one(number: int) -> None:
        due_ns = clock.now_ns() + ms_to_ns(5 + number / 10)

        def beat() -> int | None:
            nonlocal due_ns
            told[number].append((due_ns, clock.now_ns()))
            due_ns += ms_to_ns(2)
            return due_ns if len(told[number]) < 10 else None

        await pace(clock, due_ns, beat)

    await asyncio.wait_for(asyncio.gather(*map(one, range(paces))), 60)
    return told


@each_way
@pytest.mark.parametrize("paces", [1, 30])
async def test_no_beat_comes_early_and_none_is_left_out(precise: bool, paces: int) -> None:
    for told in await beats(MonotonicClock(precise=precise), paces):
        assert len(told) == 10
        assert all(came >= due for due, came in told)


def test_on_other_clocks_beats_come_by_these() -> None:
    for told in in_virtual_time(beats(LoopClock(), 3)):
        assert len(told) == 10
        assert all(came == due for due, came in told)


@each_way
async def test_without_timers_of_the_kernel_beats_come_all_the_same(
    precise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "_open_timer", lambda: None)
    (told,) = await beats(MonotonicClock(precise=precise), 1)
    assert len(told) == 10
    assert all(came >= due for due, came in told)


@each_way
async def test_what_fails_in_a_beat_is_raised_and_no_other_beat_suffers(precise: bool) -> None:
    clock = MonotonicClock(precise=precise)

    def fail() -> int | None:
        raise LookupError("no packet")

    other = asyncio.create_task(beats(clock, 1))
    with pytest.raises(LookupError, match="no packet"):
        await pace(clock, clock.now_ns() + ms_to_ns(6), fail)
    assert len((await other)[0]) == 10


@each_way
async def test_a_pace_that_is_cancelled_has_no_further_beat_and_leaves_nothing_open(
    precise: bool,
) -> None:
    clock, before, came = MonotonicClock(precise=precise), open_descriptors(), list[int]()

    def beat() -> int:
        came.append(clock.now_ns())
        task.cancel()
        return clock.now_ns() + 1

    task = asyncio.create_task(pace(clock, clock.now_ns() + 1, beat))
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()
    assert len(came) <= 10  # those that were due before the task was told
    assert open_descriptors() <= before  # fewer where a closed loop had left a timer
    count = len(came)
    await clock.sleep_until_ns(clock.now_ns() + ms_to_ns(5))
    assert len(came) == count
