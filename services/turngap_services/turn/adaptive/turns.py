"""How the turns of `adaptive` are announced: pipecat's strategies, told by the turn taker."""

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

from turngap_services.turn.adaptive.actions import Begin, Discard, End, Speculate
from turngap_services.turn.adaptive.taker import TurnTaker


class TakenStart(BaseUserTurnStartStrategy):
    """Starts turns when the turn taker says so, and drops what was no turn."""

    def __init__(self, taker: TurnTaker) -> None:
        super().__init__()
        self._taker = taker

    async def begin(self, action: Begin) -> None:
        """The person's turn has begun."""
        await self.trigger_user_turn_started(enable_interruptions=action.interrupt)

    async def discard(self, action: Discard) -> None:
        """It was no turn: what was recognised of it stays out of the conversation."""
        await self.trigger_reset_aggregation()
        if action.text:
            await self.push_frame(UserBackchannelFrame(action.text, "", time_now_iso8601()))


class TakenStop(BaseUserTurnStopStrategy):
    """Tells the turn taker what comes by, and ends turns when it says so."""

    def __init__(self, taker: TurnTaker, start: TakenStart) -> None:
        super().__init__()
        self._taker = taker
        self._start = start
        self._ending = False
        taker.turns = self

    async def process_frame(self, frame: Frame) -> ProcessFrameResult:
        """Note what the recogniser reads and what the agent does."""
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
        """The turn is over, whoever ended it."""
        if not self._ending:
            self._taker.attention.turn_ended()

    # --- what the turn taker wants --------------------------------------------------------------

    async def begin(self, action: Begin) -> None:
        """The person's turn has begun."""
        await self._start.begin(action)

    async def discard(self, action: Discard) -> None:
        """It was no turn."""
        await self._start.discard(action)

    async def speculate(self, action: Speculate) -> None:
        """Ask the LLM as if the turn were over."""
        speculation = UserTurnSpeculation(text=action.text)
        await self.trigger_user_turn_inference_triggered(speculation=speculation)

    async def withdraw(self) -> None:
        """The answer to what was not said is cancelled and forgotten."""
        await self.trigger_user_turn_speculation_cancelled()

    async def end(self, action: End) -> None:
        """The turn is over: its answer may be heard, or is asked for now."""
        self._ending = True
        try:
            if action.confirmed:
                await self.trigger_user_turn_finalized(confirms_speculation=True)
            else:
                await self.trigger_user_turn_stopped()
        finally:
            self._ending = False
