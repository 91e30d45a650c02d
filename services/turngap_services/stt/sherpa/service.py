"""A streaming transducer as a pipecat service that reads as the audio arrives."""

import asyncio
from collections.abc import AsyncGenerator

from loguru import logger
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    InterimTranscriptionFrame,
    StartFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from pipecat.utils.time import time_now_iso8601

from turngap.backends import COUNTS
from turngap.core.counts import BEHIND
from turngap.core.errors import AgentError
from turngap_services.stt.sherpa import SherpaSettings
from turngap_services.stt.sherpa.model import Hearing, Recogniser
from turngap_services.stt.sherpa.utterances import LATE_MS, Piece, Utterance, Utterances
from turngap_services.stt.sound import RATE

# pipecat counts the time from the end of speech to the final text, the VAD's verdict included: 0.34
# s at p99 with Silero. The reading under way is added to the last ones at worst.
_VAD_P99_S = 0.35
_READINGS = 2
_FASTER = "fewer sessions, a faster machine or --set stt.threads=2 may keep up"


class SherpaSTTService(STTService):
    """Transcribes between the VAD's start and stop frames; readings are made in a thread.

    It needs a VAD before it (`VADProcessor`), as the audio and the VAD's frames then arrive in the
    order in which they were pushed. Each stop frame is followed by one finalized
    `TranscriptionFrame`, and by none if there were no words. What was heard so far is pushed as an
    interim transcript whenever it changes.
    """

    def __init__(self, *, settings: SherpaSettings, recogniser: Recogniser) -> None:
        super().__init__(
            ttfs_p99_latency=_VAD_P99_S + _READINGS * recogniser.takes_s,
            settings=STTSettings(model=recogniser.name, language=None),
        )
        self._recogniser = recogniser
        self._utterances = Utterances(settings.pre_roll_ms, settings.pause_ms)
        self._hearing: Hearing | None = None  # of the utterance that is read
        self._told_late: Utterance | None = None
        self._told_failed: Utterance | None = None
        self._news = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._reading: asyncio.Task[None] | None = None

    def can_generate_metrics(self) -> bool:
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        if self.sample_rate != RATE:
            raise ValueError(f"sherpa hears {RATE} Hz, the pipeline has {self.sample_rate} Hz")

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._reading = self.create_task(self._read_on(), "turngap-sherpa")

    async def stop(self, frame: EndFrame) -> None:
        if self._reading is not None:
            await self._settled.wait()  # what was said is concluded first
        await self._end()
        await super().stop(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        await self._end()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        await self._end()
        await super().cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._utterances.start()
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._utterances.stop(frame.stop_secs * 1000)
            self._settled.clear()
            await self._conclude()
            self._news.set()

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self._utterances.audio(audio)
        spoken = self._utterances.open
        if spoken is not None:
            self._news.set()
            if spoken.behind_ms > LATE_MS and spoken is not self._told_late:
                self._told_late = spoken
                logger.warning(
                    f"stt sherpa: {self._recogniser.name} is {spoken.behind_ms / 1000:.1f} s "
                    f"behind what is said, this machine is too slow for it: {_FASTER}"
                )
        return
        yield  # what makes it a generator, which pipecat wants

    async def _end(self) -> None:
        reading, self._reading = self._reading, None
        if self._hearing is not None:
            self._hearing.cancel()
        if reading is not None:
            await self.cancel_task(reading)

    async def _read_on(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while due := self._utterances.due():
                    await self._read(*due)
        finally:
            self._settled.set()  # there will be no more readings to wait for

    async def _read(self, utterance: Utterance, piece: Piece) -> None:
        before = utterance.text
        try:
            text = await asyncio.to_thread(self._hear, utterance, piece)
        except AgentError as e:
            text = before
            if utterance is not self._told_failed:
                self._told_failed = utterance
                await self._tell(e)
        utterance.read(text)
        if utterance.over:
            await self._conclude()
        elif text and text != before:
            await self.push_frame(
                InterimTranscriptionFrame(text, self._user_id, time_now_iso8601())
            )

    def _hear(self, utterance: Utterance, piece: Piece) -> str:
        """Read a piece in this thread; return the text so far."""
        hearing = self._hearing
        if hearing is None:
            hearing = self._hearing = self._recogniser.begin(utterance.known)
        text = hearing.hear(piece.pcm)
        if piece.is_last:
            return hearing.conclude()
        return hearing.rest() if piece.rests else text

    async def _conclude(self) -> None:
        while (utterance := self._utterances.concluded()) is not None:
            self._hearing = None
            if utterance.lost_ms:
                await self._tell(
                    AgentError(
                        "stt.lost",
                        f"{utterance.lost_ms / 1000:.1f} s of what was said were not heard: this "
                        f"machine is too slow for {self._recogniser.name}",
                        hint=_FASTER,
                    )
                )
            if utterance.text:
                frame = TranscriptionFrame(
                    utterance.text, self._user_id, time_now_iso8601(), finalized=True
                )
                frame.metadata[COUNTS] = {BEHIND: utterance.behind_ms}
                await self.push_frame(frame)
            await self.emit_stt_usage_metrics()
        if self._utterances.settled:
            self._settled.set()

    async def _tell(self, error: AgentError) -> None:
        await self.push_error(f"{error.message} ({error.hint})", exception=error)
