"""Virtual time for asyncio: whatever sleeps wakes at once, in order, each at its own instant."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from turngap.core.clock import NS_PER_S, ms_to_ns

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when nothing is left to do, and then at once.

    `asyncio.sleep`, `asyncio.timeout` and `call_later` go by it. Threads started with
    `asyncio.to_thread` are waited for without time passing. Sockets and other processes are not:
    what they will bring is not there yet when time moves, so join what talks in memory.
    """

    def __init__(self) -> None:
        self._now_ns = 0
        self._in_threads = 0
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._now_ns / NS_PER_S

    def now_ns(self) -> int:
        return self._now_ns

    def hold_up(self, ms: float) -> None:
        """Let time pass for everybody who waits, as a call does that does not return."""
        self._now_ns += ms_to_ns(ms)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._in_threads += 1
        future.add_done_callback(self._on_thread_done)
        return future

    def _on_thread_done(self, _: object) -> None:
        self._in_threads -= 1

    async def shutdown_default_executor(self, *arguments: Any) -> None:
        """As asyncio's; its threads are waited for too."""
        self._in_threads += 1
        try:
            await super().shutdown_default_executor(*arguments)
        finally:
            self._in_threads -= 1

    def idle(self, timeout_s: float | None) -> bool:
        """Nothing is ready for `timeout_s`: move on; False where a thread is at work meanwhile."""
        if self._in_threads:
            return False
        if timeout_s is None:
            raise RuntimeError("everybody waits and nothing is due: this would wait forever")
        # At least a nanosecond: seconds as floats may fall short of the instant that is due.
        self._now_ns += max(1, round(timeout_s * NS_PER_S))
        return True


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0) or self._loop.idle(timeout):
            return ready
        return super().select(None)


class LoopClock:
    """A `turngap.core.clock.Clock` of the `VirtualLoop` that is running."""

    def now_ns(self) -> int:
        return _loop().now_ns()

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        loop = _loop()
        while loop.now_ns() < deadline_ns:
            woken: asyncio.Future[None] = loop.create_future()
            timer = loop.call_at(deadline_ns / NS_PER_S, _wake, woken)
            try:
                await woken
            finally:
                timer.cancel()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError("not in virtual time: run this with in_virtual_time()")
    return loop


def in_virtual_time(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in virtual time and return its result.

        async def two_seconds() -> int:
            clock = LoopClock()
            await clock.sleep_until_ns(2_000_000_000)
            return clock.now_ns()

        assert in_virtual_time(two_seconds()) == 2_000_000_000

    Raises:
        RuntimeError: everybody waits and nothing is due.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
