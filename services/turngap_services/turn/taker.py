"""`adaptive` in the pipeline: it hears the caller and carries out the decisions of `Attention`."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import numpy as np
from pipecat.frames.frames import (
    BotStartedSpeakingFrame,
    BotStoppedSpeakingFrame,
    CancelFrame,
    EagerEndOfTurnCancelFrame,
    EndFrame,
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    UserBackchannelFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import TurnMetricsData
from pipecat.processors.frame_processor import (
    FrameDirection,
    FrameProcessor,
    FrameProcessorSetup,
)
from pipecat.turns.types import ProcessFrameResult, UserTurnSpeculation
from pipecat.turns.user_start import BaseUserTurnStartStrategy
from pipecat.turns.user_stop import BaseUserTurnStopStrategy
from pipecat.turns.user_turn_strategies import UserTurnStrategies
from pipecat.utils.time import time_now_iso8601

from turngap.backends import Decision, Floor, TurnTaking, Whole
from turngap.core.clock import Clock
from turngap_services.frames import SpeechPausedFrame
from turngap_services.turn import AdaptiveSettings
from turngap_services.turn.attention import (
    Action,
    Ask,
    Attention,
    Begin,
    Conclude,
    Discard,
    End,
    Give,
    Heard,
    Listen,
    Pause,
    Settle,
    Speculate,
    Weigh,
    Withdraw,
    Withhold,
)
from turngap_services.turn.over import shipped
from turngap_services.turn.voice import (
    HOP_MS,
    STARTING_HOPS,
    Arrivals,
    Voice,
    load_silero,
    silero_model,
)

if TYPE_CHECKING:
    from pipecat.audio.turn.base_turn_analyzer import BaseTurnAnalyzer
    from pipecat.utils.asyncio.task_manager import BaseTaskManager


class TakenStart(BaseUserTurnStartStrategy):
    """A start strategy that obeys the turn taker."""

    async def discard(self, text: str) -> None:
        """Keep the recognised words out of the conversation, because they were not a turn."""
        await self.trigger_reset_aggregation()
        if text:
            await self.push_frame(UserBackchannelFrame(text, "", time_now_iso8601()))


class TakenStop(BaseUserTurnStopStrategy):
    """A stop strategy that passes frames to the turn taker and obeys it."""

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
    """A driver of one session's `Attention`: feeds it, wakes it, and carries out its actions.

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
        self._whole: Whole | None = None
        self._acting = False

    def use_llm(self, whole: Whole) -> None:
        """Ask the LLM, too, whether the person's words are a whole message."""
        self._whole, self.attention.weighs = whole, True

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
            case Pause(silence_ms):
                await ears.push_frame(SpeechPausedFrame(silence_ms))
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
                self._in_background(self._classify(ears, at), "turngap-smart-turn")
            case Weigh(text):
                self._in_background(self._weigh(text), "turngap-weigh")

    def _in_background(self, asking: Coroutine[Any, Any, None], name: str) -> None:
        if self._tasks is None:
            asking.close()
            return
        task = self._tasks.create_task(asking, name)
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _classify(self, ears: "Listener", at: int) -> None:
        p = await ears.complete()
        if p is not None:
            await self.feed(lambda mind, now: mind.answer(now, at, p))

    async def _weigh(self, text: str) -> None:
        assert self._whole is not None, "only an LLM that can say is asked"
        p = await self._whole(text)
        await self.feed(lambda mind, now: mind.weigh(now, text, p))

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


# How much audio smart turn gets, and how much of it may lie before the voice was found.
CLASSIFIED_S = 8.0
BEFORE_S = 0.5
# From this much silence on, the voice before it is judged.
SILENT_MS = 40


class Listener(FrameProcessor):
    """A processor that hears the caller instead of a VAD.

    It pushes each packet on before hearing it, so a recogniser is never behind a decision.

    It has no queue, because the recogniser behind it has one.

    Pushes pipecat's VAD frames: started when a voice begins, stopped at the *endpoint*. Pauses
    within a turn are not announced, so the recogniser keeps the utterance in one piece.
    """

    def __init__(
        self, taker: TurnTaker, confidence: float, classifier: "BaseTurnAnalyzer | None"
    ) -> None:
        super().__init__(enable_direct_mode=True)
        self._taker = taker
        self._confidence = confidence
        self._classifier = classifier
        self._rate = 0
        self._recent: deque[bytes] = deque()
        self._recent_bytes = 0
        taker.ears = self

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        self._rate = setup.audio_in_sample_rate
        self._voice = Voice(
            self._rate, (silero_model(self._rate), silero_model(self._rate)), self._confidence
        )
        self._arrivals = Arrivals(self._rate)
        if self._classifier is not None:
            self._classifier.set_sample_rate(self._rate)
        self._taker.setup(self.task_manager)

    async def cleanup(self) -> None:
        await self._taker.cleanup()
        if self._classifier is not None:
            await self._classifier.cleanup()
        await super().cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        await self.push_frame(frame, direction)
        if isinstance(frame, InputAudioRawFrame):
            await self._hear(frame.audio)
        elif isinstance(frame, EndFrame | CancelFrame):
            await self._taker.cleanup()

    async def _hear(self, audio: bytes) -> None:
        now_ns = self._taker.clock.now_ns()
        voice = self._voice
        voice.feed(np.frombuffer(audio, np.int16))
        self._arrivals.arrived(now_ns, voice.heard)
        if self._classifier is not None:
            self._recent.append(audio)
            self._recent_bytes += len(audio)
            self._keep_last(CLASSIFIED_S)
        instant_ns = self._arrivals.instant_ns
        last = voice.last_audible
        silent = last is not None and (voice.heard - last) * 1000 >= SILENT_MS * self._rate
        heard = Heard(
            until_ns=instant_ns(voice.heard),
            onset_ns=None if voice.onset is None else instant_ns(voice.onset),
            audible_ns=None if voice.last_audible is None else instant_ns(voice.last_audible),
            audible_at=voice.last_audible,
            stirring_ns=None if voice.stirring is None else instant_ns(voice.stirring),
            voiced_ms=voice.voiced_ms,
            melody=voice.melody() if silent else None,
        )
        await self._taker.feed(lambda mind, now: mind.hear(now, heard))

    # --- what the turn taker wants --------------------------------------------------------------

    async def listen(self) -> None:
        self._keep_last(BEFORE_S)
        await self.broadcast_frame(
            VADUserStartedSpeakingFrame, start_secs=STARTING_HOPS * HOP_MS / 1000
        )

    def settle(self) -> None:
        self._voice.settle()

    async def conclude(self, silence_ms: float) -> None:
        await self.broadcast_frame(VADUserStoppedSpeakingFrame, stop_secs=silence_ms / 1000)

    async def complete(self) -> float | None:
        """Return smart turn's probability that the turn is complete, if it is used; in a thread."""
        if self._classifier is None or not self._recent:
            return None
        # Its own buffer is stamped with the wall clock and emptied by its verdict. Given all audio
        # as one packet, it judges that as often as it is asked.
        self._classifier.clear()
        self._classifier.append_audio(b"".join(self._recent), is_speech=True)
        _, verdict = await self._classifier.analyze_end_of_turn()
        return verdict.probability if isinstance(verdict, TurnMetricsData) else None

    def _keep_last(self, seconds: float) -> None:
        while self._recent_bytes > seconds * self._rate * 2:
            self._recent_bytes -= len(self._recent.popleft())


def prepare(settings: AdaptiveSettings) -> None:
    """Load Silero, the fitted model, and smart turn if it is used."""
    load_silero()
    shipped()
    if settings.smart_turn:
        import pipecat.audio.turn.smart_turn.local_smart_turn_v3  # noqa: F401


def create(settings: AdaptiveSettings, clock: Clock) -> TurnTaking:
    """Make one session's ears and strategies."""
    classifier = None
    if settings.smart_turn:
        from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

        classifier = LocalSmartTurnAnalyzerV3()
    floor = Floor()
    taker = TurnTaker(Attention(settings, shipped()), clock, floor)
    return TurnTaking(
        vad=None,
        strategies=UserTurnStrategies(start=[taker.start], stop=[taker.stop]),
        hold_ms=0.0,
        ears=Listener(taker, settings.confidence, classifier),
        speculates=settings.speculate,
        floor=floor,
        decisions=taker.decisions,
        use_llm=taker.use_llm,
    )
