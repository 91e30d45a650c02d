"""Between the mind of `adaptive` and pipecat: feeds it what happens, and does what it decides."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    EagerEndOfTurnCancelFrame,
    Frame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    UserBackchannelFrame,
)
from pipecat.turns.types import ProcessFrameResult, UserTurnSpeculation
from pipecat.turns.user_start import BaseUserTurnStartStrategy
from pipecat.turns.user_stop import BaseUserTurnStopStrategy
from pipecat.utils.time import time_now_iso8601

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

    from turngap_services.turn.adaptive.ears import Listener


class TakenStart(BaseUserTurnStartStrategy):
    """Starts turns when the turn taker says so."""

    async def discard(self, text: str) -> None:
        """Keep what was recognised out of the conversation, as it was not a turn."""
        await self.trigger_reset_aggregation()
        if text:
            await self.push_frame(UserBackchannelFrame(text, "", time_now_iso8601()))


class TakenStop(BaseUserTurnStopStrategy):
    """Tells the turn taker which frames pass, and ends turns when it says so."""

    def __init__(self, taker: "TurnTaker") -> None:
        super().__init__()
        self._taker = taker
        self._ending = False

    async def process_frame(self, frame: Frame) -> ProcessFrameResult:
        feed = self._taker.feed
        match frame:
            case InterimTranscriptionFrame(text=text):
                await feed(lambda mind, now: mind.read(now, text))
            case TranscriptionFrame(text=text, finalized=finalized):
                await feed(lambda mind, now: mind.conclude(now, text, finalized=finalized))
            case BotStartedSpeakingFrame() | BotStoppedSpeakingFrame():
                speaks = isinstance(frame, BotStartedSpeakingFrame)
                await feed(lambda mind, now: mind.agent_speaks(now, speaks=speaks))
            case EagerEndOfTurnCancelFrame():  # the LLM wants to call a tool: not on a guess
                await feed(lambda mind, now: mind.speculation_lost(now, refused=True))
            case InterruptionFrame():
                await feed(lambda mind, now: mind.interrupted(now))
            case STTMetadataFrame(ttfs_p99_latency=seconds):
                self._taker.attention.transcripts_take(seconds)
            case _:
                pass
        return ProcessFrameResult.CONTINUE

    async def handle_user_turn_stopped(self) -> None:
        if not self._ending:
            self._taker.attention.turn_ended()

    async def end(self, *, confirmed: bool) -> None:
        """End the turn. If the speculation is `confirmed`, its answer may be heard now."""
        self._ending = True
        try:
            if confirmed:
                await self.trigger_user_turn_finalized(confirms_speculation=True)
            else:
                await self.trigger_user_turn_stopped()
        finally:
            self._ending = False


class TurnTaker:
    """Feeds one session's `Attention`, carries out its actions in order, and wakes it in time.

    Attributes:
        start, stop: pipecat's strategies, through which turns are announced.
        ears: hears the caller; set by the `Listener`.
    """

    def __init__(self, attention: Attention, clock: Clock, floor: Floor) -> None:
        self.attention = attention
        self.clock = clock
        self.floor = floor
        self.decisions: deque[Decision] = deque(maxlen=8)
        self.ears: Listener | None = None
        self.start = TakenStart()
        self.stop = TakenStop(self)
        self._tasks: BaseTaskManager | None = None
        self._timer: asyncio.Task[None] | None = None
        self._timer_ns: int | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self._acting = False

    def setup(self, tasks: "BaseTaskManager") -> None:
        """Note that there is an event loop to wait in from here on."""
        self._tasks = tasks

    async def cleanup(self) -> None:
        tasks, self._tasks = self._tasks, None
        if tasks is None:
            return
        for task in filter(None, (self._timer, *self._asking)):
            await tasks.cancel_task(task)
        self._timer = None
        self._asking.clear()

    async def feed(self, event: Callable[[Attention, int], None]) -> None:
        event(self.attention, self.clock.now_ns())
        if not self._acting:  # otherwise the running loop carries the new actions out, in order
            self._acting = True
            try:
                while self.attention.actions:
                    await self._carry_out(self.attention.actions.pop(0))
            finally:
                self._acting = False
        self._arm()

    async def _carry_out(self, action: Action) -> None:
        ears = self.ears
        assert ears is not None, "the pipeline was not set up"
        match action:
            case Listen():
                await ears.listen()
            case Conclude(silence_ms):
                await ears.conclude(silence_ms)
            case Settle():
                ears.settle()
            case Begin():
                # Also where the agent seems to have nothing to say: an engine that is stuck says
                # nothing either, and the next request would wait behind it for ever.
                await self.start.trigger_user_turn_started(enable_interruptions=True)
            case Speculate(text):
                speculation = UserTurnSpeculation(text=text)
                await self.stop.trigger_user_turn_inference_triggered(speculation=speculation)
            case Withdraw():
                await self.stop.trigger_user_turn_speculation_cancelled()
            case End():
                self.decisions.append(Decision(action.decided_ns, action.hold_ms, action.why))
                await self.stop.end(confirmed=action.confirmed)
            case Discard(text):
                await self.start.discard(text)
            case Withhold():
                self.floor.withhold()
            case Give():
                self.floor.give()
            case Ask(at):
                if self._tasks is not None:
                    task = self._tasks.create_task(self._classify(ears, at), "turngap-smart-turn")
                    self._asking.add(task)
                    task.add_done_callback(self._asking.discard)

    async def _classify(self, ears: "Listener", at: int) -> None:
        p = await ears.complete()
        if p is not None:
            await self.feed(lambda mind, now: mind.answer(now, at, p))

    def _arm(self) -> None:
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
        # It acts now, so it is no longer a timer to be cancelled.
        self._timer, self._timer_ns = None, None
        await self.feed(lambda mind, now: mind.tick(now))
