"""The recogniser as a pipecat service."""

import asyncio
from collections.abc import AsyncGenerator

from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from pipecat.utils.time import time_now_iso8601

from turngap.core.spoken import OUT_OF_DOMAIN
from turngap_services.stt.pocketsphinx import PocketsphinxSettings
from turngap_services.stt.pocketsphinx.known import LEAST_MS, shipped
from turngap_services.stt.pocketsphinx.model import Model
from turngap_services.stt.pocketsphinx.recogniser import Recogniser
from turngap_services.stt.sound import RATE, require_rate

# pipecat counts the time from the end of speech to the final text, the VAD's verdict included: over
# the library's 35 recordings 0.34 s at p99 to Silero's stop (stop_secs 0.2), 2 ms from there on.
_TTFS_P99_S = 0.35


class PocketsphinxSTTService(STTService):
    """Transcribes between the VAD's start and stop frames, decoding as the audio arrives.

    It needs a VAD before it (`VADProcessor`): audio and the VAD's frames are all system frames, so
    they arrive in the order in which they were pushed. Each stop frame is followed by one finalized
    `TranscriptionFrame`, whose text is `OUT_OF_DOMAIN` if none of the sentences was said. There is
    none if no word was recognised, or only in a short sound: a turn of noise should not be
    answered (pipecat closes it by `user_turn_stop_timeout`).
    """

    def __init__(self, *, settings: PocketsphinxSettings, model: Model) -> None:
        super().__init__(
            ttfs_p99_latency=_TTFS_P99_S,
            settings=STTSettings(model="en-us", language="en-US"),
        )
        self._hearing = Recogniser(model, settings)
        # What an agent says is transcribed to be judged, and then the nearest words count.
        self._known = shipped() if settings.listens_to == "person" else None
        self._while_speaking = settings.while_speaking
        every_ms = settings.partial_every_ms
        self._partial_bytes = None if every_ms is None else every_ms * RATE // 500
        self._since_partial = 0
        self._partial = ""

    def can_generate_metrics(self) -> bool:
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        require_rate("pocketsphinx", self.sample_rate)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._since_partial, self._partial = 0, ""
            self._hearing.start()
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            await self._finish()

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self._hearing.audio(audio)
        if self._partial_bytes is None or not self._hearing.in_utterance:
            return
        self._since_partial += len(audio)
        if self._since_partial >= self._partial_bytes:
            self._since_partial = 0
            text = self._hearing.partial()
            if text and text != self._partial:
                self._partial = text
                yield InterimTranscriptionFrame(text, self._user_id, time_now_iso8601())

    async def _finish(self) -> None:
        if self._while_speaking:
            text = self._hearing.stop()
        else:  # decoding the whole utterance would block the event loop for too long
            text = await asyncio.to_thread(self._hearing.stop)
        if text := self._checked(text):
            await self.push_frame(
                TranscriptionFrame(text, self._user_id, time_now_iso8601(), finalized=True)
            )
        await self.emit_stt_usage_metrics()

    def _checked(self, text: str) -> str:
        """Return the text of the utterance that has ended, if it is one of the sentences."""
        heard = self._hearing.heard() if text and self._known is not None else None
        if self._known is None or heard is None or self._known.knows(heard):
            return text
        return OUT_OF_DOMAIN if heard.sounding_ms >= LEAST_MS else ""
