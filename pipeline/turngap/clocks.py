"""The real clock: the one place in turngap that reads time and sleeps."""

import asyncio
import ctypes
import os
import sys
import time
from typing import ClassVar

from turngap.core.clock import NS_PER_S

# A woken process is told of a timer about 0.17 ms after its instant (p50, a virtual machine).
# Waking so much too early and yielding for the rest keeps pacing within 0.03 ms.
_SPIN_NS = 200_000

# A timer of the kernel is a descriptor, of which a process has about a thousand. A server keeps a
# finished conversation for ten minutes, and 1,092 of them once took all. So a sleep that is longer
# than this begins as asyncio's own, which costs none, and takes a timer only for its end.
_LONG_NS = NS_PER_S
_END_NS = 100_000_000


class MonotonicClock:
    """CLOCK_MONOTONIC: on Linux the same for every process of one machine.

    It sleeps on a timer of the kernel. asyncio's own sleep returns up to 2 ms late: epoll's timeout
    is whole milliseconds, and Python rounds up to them twice.

    Args:
        precise: wake a little early and yield to the event loop in a tight loop for the rest. The
            caller's sender wants it; servers do not.
    """

    def __init__(self, *, precise: bool = False) -> None:
        self._spin_ns = _SPIN_NS if precise else 0

    def now_ns(self) -> int:
        return time.monotonic_ns()

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep to an absolute deadline, so that lateness never accumulates."""
        if (long_ns := deadline_ns - self.now_ns()) > _LONG_NS:
            await asyncio.sleep((long_ns - _END_NS) / NS_PER_S)
        if deadline_ns - self._spin_ns > self.now_ns():
            await _wake_at(deadline_ns - self._spin_ns)
        while self._spin_ns and self.now_ns() < deadline_ns:
            await asyncio.sleep(0)


async def others_first() -> None:
    """Let every task that is ready go on before this one does."""
    await asyncio.sleep(0)


async def _wake_at(instant_ns: int) -> None:
    timer = _open_timer()
    if timer is None:
        await asyncio.sleep((instant_ns - time.monotonic_ns()) / NS_PER_S)
        return
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    try:
        _set_timer(timer, instant_ns)
        loop.add_reader(timer, lambda: woken.done() or woken.set_result(None))
        await woken
    finally:
        loop.remove_reader(timer)
        os.close(timer)


# Python has timerfd from 3.13 on, so the C library is asked itself: two calls of plain integers.
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_: ClassVar = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_: ClassVar = [("interval", _Timespec), ("value", _Timespec)]


def _open_timer() -> int | None:
    """A timerfd; None where there are none (another system, a sandbox, no descriptor left)."""
    if _libc is None:
        return None
    timer = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
    return None if timer < 0 else timer


def _set_timer(timer: int, instant_ns: int) -> None:
    value = _Itimerspec(_Timespec(0, 0), _Timespec(*divmod(instant_ns, NS_PER_S)))
    if _libc is None or _libc.timerfd_settime(timer, _TFD_TIMER_ABSTIME, ctypes.byref(value), None):
        raise OSError(ctypes.get_errno(), "a timer cannot be set")
