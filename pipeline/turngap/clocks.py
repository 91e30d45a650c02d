"""The real clock: the one place in turngap that reads time and sleeps."""

import asyncio
import ctypes
import gc
import heapq
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from weakref import WeakKeyDictionary, finalize

from turngap.core.clock import NS_PER_S, Clock

# A woken process learns of a timer about 0.17 ms after its instant (p50, a virtual machine).
# Waking so much too early and yielding for the rest keeps pacing within 0.03 ms.
_SPIN_NS = 200_000

# Who paces 50 packets a second spins for 1 % of a core. When more of them than this sleep on one
# event loop, no one spins: they would take the core from each other and from those who listen, and
# a process that is woken so often learns sooner.
_MOST_SPINNING = 8

# And the timer rings no sooner than so long after it rang: to set it and to be woken by it costs as
# much as a packet does (20 µs to set it, a virtual machine), and 100 lines have 5,000 a second.
_TOGETHER_NS = 300_000

# Sleepers that were cancelled stay in the heap until they are due, or this many have gathered.
_MOST_CANCELLED = 100


class MonotonicClock:
    """CLOCK_MONOTONIC: on Linux the same for every process of one machine.

    It sleeps on a timer of the kernel, which all sleepers of an event loop share. asyncio's own
    sleep returns up to 2 ms late: epoll's timeout is whole milliseconds, and Python rounds up to
    them twice.

    Args:
        precise: wake a little early and spin on the event loop for the rest, while only few tasks
            do so at the same time. It is for the caller's sender, not for servers.
    """

    def __init__(self, *, precise: bool = False) -> None:
        self._precise = precise

    def now_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep to an absolute deadline, so that lateness never accumulates."""
        if deadline_ns <= time.monotonic_ns():
            return
        timer = _loop_timer()
        if not self._precise:
            await timer.sleep(deadline_ns)
            return
        timer.precise += 1
        try:
            await timer.sleep(deadline_ns - timer.early_ns)
            while time.monotonic_ns() < deadline_ns:
                await asyncio.sleep(0)
        finally:
            timer.precise -= 1

    async def pace(self, instant_ns: int, beat: Callable[[], int | None]) -> None:
        """Call `beat` as the function `pace` does, and wake no task for it."""
        timer = _loop_timer()
        if not timer.opened():
            await _pace_by_sleeping(self, instant_ns, beat)
            return
        timer.precise += self._precise
        try:
            await _Pacer(timer, beat, precise=self._precise).run(instant_ns)
        finally:
            timer.precise -= self._precise


def unhurried(clock: Clock) -> Clock:
    """Return a clock of the same time that leaves the spinning to those who send."""
    return MonotonicClock() if isinstance(clock, MonotonicClock) else clock


def wall_ns() -> int:
    """Return the date in ns since 1970, for other tools; do not compute durations from it."""
    return time.time_ns()


async def pace(clock: Clock, instant_ns: int, beat: Callable[[], int | None]) -> None:
    """Call `beat` at an instant, and then at each instant that it returns, until that is None.

    On the real clock no task is woken for a beat: that would cost as much as the beat itself.
    """
    if isinstance(clock, MonotonicClock):
        await clock.pace(instant_ns, beat)
    else:
        await _pace_by_sleeping(clock, instant_ns, beat)


async def _pace_by_sleeping(clock: Clock, instant_ns: int, beat: Callable[[], int | None]) -> None:
    due_ns: int | None = instant_ns
    while due_ns is not None:
        await clock.sleep_until_ns(due_ns)
        due_ns = beat()


async def others_first() -> None:
    """Let every ready task run before this one continues."""
    await asyncio.sleep(0)


class Sleepers:
    """The sleepers and their deadlines, without a time of its own."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[None], Callable[[], None] | None]] = []
        self._order = count()
        self._cancelled = 0

    def __len__(self) -> int:
        """Count the sleepers, including some cancelled ones."""
        return len(self._heap)

    def add(
        self,
        instant_ns: int,
        woken: asyncio.Future[None],
        call: Callable[[], None] | None = None,
    ) -> None:
        """Take a task that waits for `woken`, which may be cancelled at any time.

        At the deadline `call`, if given, is called unless `woken` is done.
        """
        heapq.heappush(self._heap, (instant_ns, next(self._order), woken, call))

    def next_ns(self) -> int | None:
        """Return when the next sleeper is due; None if none sleeps."""
        while self._heap and self._heap[0][2].done():
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def wake(self, now_ns: int) -> None:
        """Wake all sleepers that are due by `now_ns`, in the order of their deadlines."""
        while self._heap and self._heap[0][0] <= now_ns:
            _, _, woken, call = heapq.heappop(self._heap)
            if woken.done():
                continue
            if call is None:
                woken.set_result(None)
            else:
                call()

    def cancelled(self) -> None:
        """Note that a task was cancelled, and drop the cancelled ones once they are many."""
        self._cancelled += 1
        if self._cancelled > max(_MOST_CANCELLED, len(self._heap) // 2):
            self._heap = [sleeper for sleeper in self._heap if not sleeper[2].done()]
            heapq.heapify(self._heap)
            self._cancelled = 0


class LoopTimer:
    """All sleepers of one event loop, on one timer of the kernel.

    A timer for each sleep would cost five system calls, and 100 calls sleep 25,000 times a second.

    Attributes:
        precise: how many of the sleepers want to be woken precisely.
    """

    def __init__(self) -> None:
        self.precise = 0
        self._sleepers = Sleepers()
        self._timer: _Timer | None = None
        self._set_to_ns: int | None = None
        self._quiet_to_ns = 0  # it does not ring before

    @property
    def crowded(self) -> bool:
        """Return whether too many tasks sleep for any of them to spin."""
        return self.precise > _MOST_SPINNING

    @property
    def early_ns(self) -> int:
        """Return how early a task is woken to spin until its deadline."""
        return 0 if self.crowded else _SPIN_NS

    def opened(self) -> bool:
        """Open a timer of the kernel; return False if there is none."""
        if self._timer is None:
            descriptor = _open_timer()
            if descriptor is None:
                return False
            self._timer = _Timer(descriptor)
            asyncio.get_running_loop().add_reader(descriptor, self._ring)
        return True

    async def sleep(self, instant_ns: int) -> None:
        """Return at or after `instant_ns`; at once if it has passed."""
        if not self.opened():
            while (left_ns := instant_ns - time.monotonic_ns()) > 0:
                await asyncio.sleep(left_ns / NS_PER_S)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.add(instant_ns, woken)
        await self.waited(woken)

    def add(
        self,
        instant_ns: int,
        woken: asyncio.Future[None],
        call: Callable[[], None] | None = None,
    ) -> None:
        """Take a task, as `Sleepers.add` does."""
        self._sleepers.add(instant_ns, woken, call)
        ring_ns = max(instant_ns, self._quiet_to_ns)
        if self._timer is not None and (self._set_to_ns is None or ring_ns < self._set_to_ns):
            self._set(self._timer, ring_ns)

    async def waited(self, woken: asyncio.Future[None]) -> None:
        """Wait for `woken`, which `add` has taken."""
        try:
            await woken
        except asyncio.CancelledError:
            self._sleepers.cancelled()
            if self._sleepers.next_ns() is None:
                self.close(asyncio.get_running_loop())
            raise

    def _ring(self) -> None:
        now_ns = time.monotonic_ns()
        self._quiet_to_ns = now_ns + _TOGETHER_NS if self.crowded else 0
        self._sleepers.wake(now_ns)
        if self._timer is not None:
            next_ns = self._sleepers.next_ns()
            self._set(self._timer, next_ns and max(next_ns, self._quiet_to_ns))

    def _set(self, timer: "_Timer", instant_ns: int | None) -> None:
        """Set the timer, which clears an earlier ring; with None it does not ring again."""
        self._set_to_ns = instant_ns
        _set_timer(timer.descriptor, instant_ns or 0)

    def close(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Close the descriptor, because no task sleeps any more, or the loop is closed (None)."""
        if self._timer is not None:
            if loop is not None:
                loop.remove_reader(self._timer.descriptor)
            self._timer.close()
            self._timer = self._set_to_ns = None


class _Pacer:
    """A callback of the event loop that calls a function at the instants that it returns."""

    def __init__(self, timer: LoopTimer, beat: Callable[[], int | None], *, precise: bool) -> None:
        self._timer = timer
        self._beat = beat
        self._precise = precise
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._due_ns = 0

    async def run(self, instant_ns: int) -> None:
        self._wait_until(instant_ns)
        await self._timer.waited(self._over)

    def _wait_until(self, due_ns: int) -> None:
        self._due_ns = due_ns
        early_ns = self._timer.early_ns if self._precise else 0
        self._timer.add(due_ns - early_ns, self._over, self._call)

    def _call(self) -> None:
        if self._over.done():
            return
        if time.monotonic_ns() < self._due_ns:  # it was woken early, and yields for the rest
            self._loop.call_soon(self._call)
            return
        try:
            due_ns = self._beat()
        except Exception as e:
            self._over.set_exception(e)
            return
        if due_ns is None:
            self._over.set_result(None)
        else:
            self._wait_until(due_ns)


class _Timer:
    """A timer's descriptor, which is closed with its event loop at the latest."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.close = finalize(self, os.close, descriptor)


# A loop that is gone takes its timer with it, but for one on which a task still slept when it was
# closed: those who sleep refer to their loop, so that it would stay.
_timers: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopTimer] = WeakKeyDictionary()


def _forget_closed_loops() -> None:
    for reference in _timers.keyrefs():
        loop = reference()
        if loop is not None and loop.is_closed() and (timer := _timers.pop(loop, None)) is not None:
            timer.close()


def _loop_timer() -> LoopTimer:
    loop = asyncio.get_running_loop()
    timer = _timers.get(loop)
    if timer is None:
        _forget_closed_loops()
        timer = _timers[loop] = LoopTimer()
    return timer


# Python has timerfd from 3.13 on, so the C library is asked itself: two calls of plain integers.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_TFD_TIMER_ABSTIME = 1

# An itimerspec: the interval in seconds and nanoseconds, then the instant.
_Itimerspec = ctypes.c_long * 4


def _open_timer() -> int | None:
    """Open a timerfd; None if there are none (another system, a sandbox, no descriptor left)."""
    if _libc is None:
        return None
    timer = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    return None if timer < 0 else timer


def _set_timer(timer: int, instant_ns: int) -> None:
    """Let a timer ring at an instant; at 0 it never rings."""
    value = _Itimerspec(0, 0, *divmod(instant_ns, NS_PER_S))
    if _libc is None or _libc.timerfd_settime(timer, _TFD_TIMER_ABSTIME, value, None):
        raise OSError(ctypes.get_errno(), "a timer cannot be set")


# Python hands the interpreter lock on after this long; the default, 5 ms, is a quarter of a packet.
SWITCH_INTERVAL_S = 0.0005


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep Python from pausing the caller: collect no old objects, switch threads often."""
    interval = sys.getswitchinterval()
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.enable()
        gc.unfreeze()
