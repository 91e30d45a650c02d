"""Listens to the caller's audio; stands in the pipeline where a VAD would."""

from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    InputAudioRawFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import TurnMetricsData
from pipecat.processors.frame_processor import (
    FrameDirection,
    FrameProcessor,
    FrameProcessorSetup,
)

from turngap_services.turn.adaptive import silero
from turngap_services.turn.adaptive.actions import Heard
from turngap_services.turn.adaptive.taker import TurnTaker
from turngap_services.turn.adaptive.voice import HOP_MS, STARTING_HOPS, Arrivals, Voice

if TYPE_CHECKING:
    from pipecat.audio.turn.base_turn_analyzer import BaseTurnAnalyzer

# How much audio smart turn gets, and how much of it may lie before the voice was found.
CLASSIFIED_S = 8.0
BEFORE_S = 0.5
# From this much silence on, the voice before it is judged.
SILENT_MS = 40


class Listener(FrameProcessor):
    """Pushes each packet on before hearing it, so that a recogniser is never behind a decision.

    It has no queue, as the recogniser behind it has one.

    Pushes pipecat's VAD frames: started when a voice begins, stopped at the *endpoint*. Pauses
    within a turn are not announced, so that the recogniser keeps the utterance in one piece.
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
            self._rate, (silero.model(self._rate), silero.model(self._rate)), self._confidence
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
        heard = self._heard()
        await self._taker.feed(lambda mind, now: mind.hear(now, heard))

    def _heard(self) -> Heard:
        voice, instant_ns = self._voice, self._arrivals.instant_ns
        last = voice.last_audible
        silent = last is not None and (voice.heard - last) * 1000 >= SILENT_MS * self._rate
        return Heard(
            until_ns=instant_ns(voice.heard),
            onset_ns=None if voice.onset is None else instant_ns(voice.onset),
            audible_ns=None if voice.last_audible is None else instant_ns(voice.last_audible),
            audible_at=voice.last_audible,
            stirring_ns=None if voice.stirring is None else instant_ns(voice.stirring),
            voiced_ms=voice.voiced_ms,
            melody=voice.melody() if silent else None,
        )

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
        _, told = await self._classifier.analyze_end_of_turn()
        return told.probability if isinstance(told, TurnMetricsData) else None

    def _keep_last(self, seconds: float) -> None:
        while self._recent_bytes > seconds * self._rate * 2:
            self._recent_bytes -= len(self._recent.popleft())
