"""Between the mind of `adaptive` and pipecat: whose hands carry out what it decides."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from turngap.backends import Decision, Floor
from turngap.core.clock import Clock
from turngap_services.turn.adaptive.actions import (
    Action,
    Ask,
    Begin,
    Conclude,
    Discard,
    End,
    Give,
    Listen,
    Settle,
    Speculate,
    Withdraw,
    Withhold,
)
from turngap_services.turn.adaptive.attention import Attention

if TYPE_CHECKING:
    from pipecat.utils.asyncio.task_manager import BaseTaskManager


class Ears(Protocol):
    """Who hears the caller."""

    async def listen(self) -> None:
        """The recogniser is to hear what comes, and a little of what came."""
        ...

    def settle(self) -> None:
        """The utterance is over; what comes next is another."""
        ...

    async def conclude(self, silence_ms: float) -> None:
        """The recogniser is to say what it heard."""
        ...

    async def complete(self) -> bool | None:
        """The classifier's verdict on the turn so far; None: none to be had."""
        ...


class Turns(Protocol):
    """Who announces turns to the pipeline."""

    async def begin(self, action: Begin) -> None:
        """The person's turn has begun."""
        ...

    async def speculate(self, action: Speculate) -> None:
        """Have it answered, unheard."""
        ...

    async def withdraw(self) -> None:
        """What is answered was not what the person says."""
        ...

    async def end(self, action: End) -> None:
        """The turn is over."""
        ...

    async def discard(self, action: Discard) -> None:
        """It was no turn."""
        ...


class TurnTaker:
    """Feeds one session's `Attention`, carries out its actions in order, and wakes it in time."""

    def __init__(self, attention: Attention, clock: Clock, floor: Floor) -> None:
        self.attention = attention
        self.clock = clock
        self.floor = floor
        self.decisions: deque[Decision] = deque(maxlen=8)
        self.ears: Ears | None = None
        self.turns: Turns | None = None
        self._tasks: BaseTaskManager | None = None
        self._timer: asyncio.Task[None] | None = None
        self._timer_ns: int | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._acting = False

    def setup(self, tasks: "BaseTaskManager") -> None:
        """From here on there is an event loop to wait in."""
        self._tasks = tasks

    async def cleanup(self) -> None:
        """Nothing is waited for any more."""
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        for task in filter(None, (self._timer, *self._asking)):
            await tasks.cancel_task(task)
        self._timer = None
        self._asking.clear()

    async def feed(self, event: Callable[[Attention, int], None]) -> None:
        """Let the mind know of something, and do what it decides."""
        event(self.attention, self.clock.now_ns())
        await self._act()
        self._arm()

    async def _act(self) -> None:
        if self._acting:
            return  # whoever acts will come to it, in order
        self._acting = True
        try:
            while self.attention.actions:
                await self._carry_out(self.attention.actions.pop(0))
        finally:
            self._acting = False

    async def _carry_out(self, action: Action) -> None:
        ears, turns = self.ears, self.turns
        assert ears is not None and turns is not None, "the pipeline was not set up"
        match action:
            case Listen():
                await ears.listen()
            case Conclude(silence_ms):
                await ears.conclude(silence_ms)
            case Settle():
                ears.settle()
            case Begin():
                await turns.begin(action)
            case Speculate():
                await turns.speculate(action)
            case Withdraw():
                await turns.withdraw()
            case End():
                self.decisions.append(Decision(action.decided_ns, action.hold_ms, action.why))
                await turns.end(action)
            case Discard():
                await turns.discard(action)
            case Withhold():
                self.floor.withhold()
            case Give():
                self.floor.give()
            case Ask():
                self._ask(action)

    def _ask(self, action: Ask) -> None:
        async def asked(complete: Callable[[], Awaitable[bool | None]]) -> None:
            verdict = await complete()
            if verdict is not None:
                await self.feed(lambda mind, now: mind.answer(now, action.at, complete=verdict))

        if self._tasks is not None and self.ears is not None:
            task = self._tasks.create_task(asked(self.ears.complete), "turngap-smart-turn")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    def _arm(self) -> None:
        """Have the mind woken when something is due."""
        deadline_ns = self.attention.deadline_ns
        if deadline_ns == self._timer_ns or self._tasks is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ns, self._timer = deadline_ns, None
        if deadline_ns is not None:
            self._timer = self._tasks.create_task(self._wake(deadline_ns), "turngap-turn-timer")

    async def _wake(self, deadline_ns: int) -> None:
        await self.clock.sleep_until_ns(deadline_ns)
        # No longer a timer to be cancelled: it acts now.
        self._timer, self._timer_ns = None, None
        await self.feed(lambda mind, now: mind.tick(now))
