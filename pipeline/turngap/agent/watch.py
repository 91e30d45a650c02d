"""How long an engine may be silent at its work: said while it lasts, and given up in the end.

An engine that stalls must neither silence the agent for good nor be blamed on nobody. So each has a
bounded time to its first result and between two results. A turn says that an engine is late before
it is given up, and takes that back if the engine goes on: the person, who waits less long than an
engine may take, has often moved on by then.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from turngap.core.clock import Clock, ms_to_ns, ns_to_ms

T = TypeVar("T")

# Why the answer is late, in words; empty: it goes on after all.
Late = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may take, ms.

    Attributes:
        first_ms: to its first result.
        next_ms: from one result to the next.
        late_first_ms, late_next_ms: after which it is called late.
    """

    first_ms: float
    next_ms: float
    # A caller gives a turn up 6 s after the person's last word, and a reply after 1.5 s of silence
    # (`turngap/caller/conversation.py`): by then it should know whom it waits for.
    late_first_ms: float = 3000.0
    late_next_ms: float = 1000.0

    def until_late_ms(self, *, begun: bool) -> float:
        return self.late_next_ms if begun else self.late_first_ms

    def most_ms(self, *, begun: bool) -> float:
        return self.next_ms if begun else self.first_ms


# By default. To the first token more than a combined model may take, which gives each of two parts
# 3 s; from one to the next more than it gives a part (5 s), as it may have another to fall back to.
LLM = Patience(first_ms=10_000.0, next_ms=6_000.0)
# What a recogniser says later than the caller waits for an answer comes in vain.
TRANSCRIPT_MS = 6_000.0


class Watch:
    """Follows an engine whose results come on their own: call `begin`, `news` and `end`.

    Args:
        what: what is waited for, as in "token".
        give_up: called with the reason when the engine has been silent for too long.
    """

    def __init__(
        self,
        what: str,
        patience: Patience,
        clock: Clock,
        late: Late,
        give_up: Callable[[str], Awaitable[None]],
    ) -> None:
        self._what = what
        self._patience = patience
        self._clock = clock
        self._tell = late
        self._give_up = give_up
        self._task: asyncio.Task[None] | None = None
        self._news_ns = 0
        self._late = False
        self.count = 0
        self.aside = ""  # what came besides, in words

    @property
    def waits(self) -> bool:
        """Whether something is still to come."""
        return self._task is not None

    def begin(self) -> None:
        """Note that the engine was asked for something."""
        self.end()
        self.count, self.aside, self._late = 0, "", False
        self._news_ns = self._clock.now_ns()
        self._task = asyncio.create_task(self._follow())

    def news(self) -> None:
        """Note a result."""
        self.count += 1
        self._goes_on()

    def finish(self) -> None:
        """Note that the engine has come to its end by itself."""
        self._goes_on()
        self.end()

    def end(self) -> None:
        """Expect nothing more: the engine was told to stop."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    def _goes_on(self) -> None:
        self._news_ns = self._clock.now_ns()
        if self._late and self._task is not None:
            self._late = False
            self._tell("")

    async def _follow(self) -> None:
        while True:
            begun, patience = self.count > 0, self._patience
            waits = patience.most_ms if self._late else patience.until_late_ms
            due_ns, now_ns = self._news_ns + ms_to_ns(waits(begun=begun)), self._clock.now_ns()
            if now_ns < due_ns:
                # The first result makes what is due come sooner.
                at_most_ns = now_ns + ms_to_ns(patience.late_next_ms)
                await self._clock.sleep_until_ns(due_ns if begun else min(due_ns, at_most_ns))
            elif not self._late:
                self._late = True
                self._tell(self._silence())
            else:
                self._task = None  # `end` need not cancel what is over
                await self._give_up(self._silence())
                return

    def _silence(self) -> str:
        ms = ns_to_ms(self._clock.now_ns() - self._news_ns)
        count = f"{self.count} {self._what}{'s' if self.count > 1 else ''}"
        return silence(self._what, ms, count if self.count else self.aside)


def silence(what: str, ms: float, after: str) -> str:
    """Say in words that nothing comes, and after what."""
    return f"no {what} for {ms / 1000:.3g} s" + (f" after {after}" if after else "")


async def within(
    patience: Patience, result: Awaitable[T], late: Callable[[float], None], *, begun: bool
) -> T:
    """Return an engine's result; `late` is called with the ms waited if it is late.

    Raises:
        TimeoutError: the engine was silent for too long.
        Exception: as awaiting the result does.
    """
    late_ms, most_ms = patience.until_late_ms(begun=begun), patience.most_ms(begun=begun)
    # No task for it, as that would cost every result some rounds of the event loop.
    timer = asyncio.get_running_loop().call_later(late_ms / 1000, late, late_ms)
    try:
        async with asyncio.timeout(most_ms / 1000):
            return await result
    finally:
        timer.cancel()
