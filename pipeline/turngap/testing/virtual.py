"""Virtual time for asyncio: all sleepers wake without delay, in order, each at its own instant."""

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from turngap.core.clock import NS_PER_S, ms_to_ns

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when nothing is left to do, and then at once.

    `asyncio.sleep`, `asyncio.timeout` and `call_later` follow it. Functions for threads run in the
    loop, at their own instants, so that everything happens in the same order each time. The loop
    does not wait for sockets or other processes, so connect the two sides in memory.

    Args:
        thread_ms: how long a function that is handed to a thread takes, however long it computes;
            by default no time. All other tasks continue meanwhile, as with a thread.
    """

    def __init__(self, thread_ms: Callable[[Callable[..., Any]], float] = lambda _: 0.0) -> None:
        self._now_ns = 0
        self._thread_ms = thread_ms
        self._files = _Selector(self)
        super().__init__(self._files)

    def time(self) -> float:
        return self._now_ns / NS_PER_S

    def now_ns(self) -> int:
        return self._now_ns

    def hold_up(self, ms: float) -> None:
        """Let time pass for all tasks that wait, as a blocking call does."""
        self._now_ns += ms_to_ns(ms)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = self.create_future()
        self.call_soon(self._work, done, func, args)
        return done

    def _work(self, done: asyncio.Future[Any], func: Callable[..., Any], args: Any) -> None:
        if done.cancelled():
            return
        try:
            say = partial(done.set_result, func(*args))
        except BaseException as e:  # as a thread does: the task that waits for it gets it
            say = partial(done.set_exception, e)
        if took_ms := self._thread_ms(func):
            self.call_later(took_ms / 1000, lambda: done.done() or say())
        else:
            say()

    def move_on(self, timeout_s: float | None) -> None:
        """Move the clock by `timeout_s`, because nothing is ready earlier."""
        if timeout_s is None:
            raise RuntimeError("all tasks wait and nothing is due: this would wait forever")
        # At least a nanosecond: seconds as floats may fall short of the instant that is due.
        self._now_ns += max(1, round(timeout_s * NS_PER_S))

    def skip_to(self, instant_ns: int) -> bool:
        """Move the clock to an instant if nothing else is due by then; return whether it is there.

        The task that waits for it then continues at once, which is ten times as quick as to sleep.
        """
        if self._now_ns < instant_ns:
            base: Any = self  # what asyncio's own loop knows of what is due
            if base._ready or base._stopping or self._files.watches_any():
                return False
            if base._scheduled and base._scheduled[0].when() <= instant_ns / NS_PER_S:
                return False
            self._now_ns = instant_ns
        return True


class _Selector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def watches_any(self) -> bool:
        """Return whether there is more to watch than the pipe by which threads wake the loop."""
        return len(self.get_map()) > 1

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0 and not self.watches_any():  # to ask the system takes as long as a task
            return []
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            self._loop.move_on(timeout)
        return ready


class LoopClock:
    """A `turngap.core.clock.Clock` of the `VirtualLoop` that is running."""

    def now_ns(self) -> int:
        return _loop().now_ns()

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        loop = _loop()
        while not loop.skip_to(deadline_ns):
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


# Python's clocks, and how many nanoseconds one of their units has.
_CLOCKS = {
    **dict.fromkeys(("time", "monotonic", "perf_counter"), NS_PER_S),
    **dict.fromkeys(("time_ns", "monotonic_ns", "perf_counter_ns"), 1),
}


@contextmanager
def virtual_clocks() -> Iterator[None]:
    """Let Python's clocks show virtual time to code in a `VirtualLoop`, for example pipecat.

    All other code, for example a test runner's threads, still reads the real clocks.
    """
    real = {name: getattr(time, name) for name in _CLOCKS}
    for name, unit_ns in _CLOCKS.items():
        setattr(time, name, _shown(real[name], unit_ns))
    try:
        yield
    finally:
        for name, clock in real.items():
            setattr(time, name, clock)


def _shown(real: Callable[[], Any], unit_ns: int) -> Callable[[], Any]:
    def read() -> Any:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return real()
        if not isinstance(loop, VirtualLoop):
            return real()
        return loop.now_ns() if unit_ns == 1 else loop.now_ns() / unit_ns

    return read


def in_virtual_time(
    main: Coroutine[Any, Any, T],
    thread_ms: Callable[[Callable[..., Any]], float] = lambda _: 0.0,
) -> T:
    """Run `main` to its end in virtual time and return its result.

        async def two_seconds() -> int:
            clock = LoopClock()
            await clock.sleep_until_ns(2_000_000_000)
            return clock.now_ns()

        assert in_virtual_time(two_seconds()) == 2_000_000_000

    `thread_ms` is the `VirtualLoop`'s.

    Raises:
        RuntimeError: all tasks wait and none is due.
    """
    with asyncio.Runner(loop_factory=partial(VirtualLoop, thread_ms)) as runner:
        return runner.run(main)
