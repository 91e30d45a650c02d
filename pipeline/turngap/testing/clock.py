"""A clock that stands still until a test moves it."""

import asyncio
import heapq
from collections.abc import Generator
from itertools import count

# A woken task may hand on to others (queue, event, gather) before all wait again; each hand-over
# takes one round of the event loop.
SETTLE_ROUNDS = 50


class ManualClock:
    """A `turngap.core.clock.Clock` for tests: time passes only in `advance` and `advance_to`.

    Sleepers wake one after another in the order of their deadlines, those of one instant in the
    order in which they fell asleep. Each sees its own deadline in `now_ns()`, and runs until it
    waits again before time moves on, so that a test has one possible course.

        clock = ManualClock()

        async def beep() -> int:
            await clock.sleep_until_ns(20_000_000)
            return clock.now_ns()

        task = asyncio.create_task(beep())
        await clock.advance(1_000_000_000)
        assert task.result() == 20_000_000
        assert clock.now_ns() == 1_000_000_000

    It does not wait for sockets or threads: their data arrives only after time has moved.

    Args:
        start_ns: the instant it shows at first.
        settle_rounds: rounds of the event loop that woken tasks get before time moves on.
    """

    def __init__(self, start_ns: int = 0, *, settle_rounds: int = SETTLE_ROUNDS) -> None:
        self._now_ns = start_ns
        self._settle_rounds = settle_rounds
        self._order = count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._moving = False

    def now_ns(self) -> int:
        return self._now_ns

    async def sleep_until_ns(self, deadline_ns: int) -> None:
        if deadline_ns <= self._now_ns:
            return
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (deadline_ns, next(self._order), woken))
        await woken

    @property
    def next_deadline_ns(self) -> int | None:
        """Return the deadline of the sleeper that wakes next; None when no one sleeps."""
        while self._sleepers and self._sleepers[0][2].done():  # cancelled in its sleep
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    async def advance(self, ns: int) -> None:
        """Let `ns` nanoseconds pass.

        Raises:
            ValueError: `ns` is negative.
            RuntimeError: the clock is being moved already, by another task or a woken one.
        """
        await self.advance_to(self._now_ns + ns)

    async def advance_to(self, instant_ns: int) -> None:
        """Let time pass until `instant_ns`, which wakes its sleepers too.

        Raises:
            ValueError: `instant_ns` has passed; a clock never goes back.
            RuntimeError: the clock is being moved already, by another task or a woken one.
        """
        if instant_ns < self._now_ns:
            raise ValueError(f"{instant_ns} ns has passed: the clock shows {self._now_ns} ns")
        if self._moving:
            raise RuntimeError("the clock is being moved already; one task at a time moves it")
        self._moving = True
        try:
            # Tasks just created fall asleep first, or they would miss the time that passes.
            await self._settle()
            while (deadline_ns := self.next_deadline_ns) is not None and deadline_ns <= instant_ns:
                self._now_ns = deadline_ns
                _, _, woken = heapq.heappop(self._sleepers)
                woken.set_result(None)
                await self._settle()
            self._now_ns = instant_ns
        finally:
            self._moving = False

    async def _settle(self) -> None:
        for _ in range(self._settle_rounds):
            await _NextRound()


class _NextRound:
    """An awaitable that gives every other ready task one turn."""

    def __await__(self) -> Generator[None]:
        yield
