"""Whisper as a pipecat service that reads while the person speaks."""

import asyncio
from collections.abc import AsyncGenerator

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
from turngap.core.clock import Clock, ns_to_ms
from turngap.core.errors import AgentError
from turngap_services.stt.sound import require_rate
from turngap_services.stt.whisper import WhisperSettings
from turngap_services.stt.whisper.model import Reader, Text
from turngap_services.stt.whisper.readings import MOST_MS, Reading, Readings, Utterance

# pipecat counts the time from the end of speech to the final text, the VAD's verdict included: 0.34
# s at p99 with Silero. At worst, the reading under way and the last one are added to that.
_VAD_P99_S = 0.35
_READINGS = 2


class WhisperSTTService(STTService):
    """Each stop frame of the VAD is followed by one finalized `TranscriptionFrame`.

    It follows at once if the pause before it was long enough to read what was said, and none
    follows if there were no words. Earlier readings are pushed as interim transcripts.

    It needs a VAD before it (`VADProcessor`), as the audio and the VAD's frames then arrive in the
    order in which they were pushed. Readings are made in a thread.
    """

    def __init__(self, *, settings: WhisperSettings, reader: Reader, clock: Clock) -> None:
        super().__init__(
            ttfs_p99_latency=_VAD_P99_S + _READINGS * reader.takes_s,
            settings=STTSettings(model=reader.name, language=settings.spoken),
        )
        self._reader = reader
        self._clock = clock
        self._spoken = Readings(settings, reader.window_s, reader.takes_s * 1000)
        self._interim = ""
        self._counts = {"stt_readings": 0.0, "stt_read_again": 0.0}
        self._news = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._reading: asyncio.Task[None] | None = None

    def can_generate_metrics(self) -> bool:
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        require_rate("Whisper", self.sample_rate)

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._reading = self.create_task(self._read_on(), "turngap-whisper")

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
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._interim = ""
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._spoken.start()
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._spoken.stop(frame.stop_secs * 1000)
            self._settled.clear()
            await self._conclude()
            self._news.set()

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self._spoken.audio(audio)
        self._news.set()
        return
        yield  # what makes it a generator, which pipecat wants

    async def _end(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            await self.cancel_task(reading)

    async def _read_on(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while due := self._spoken.due():
                    await self._read(*due)
                    await self._conclude()
        finally:
            self._settled.set()  # there will be no more readings to wait for

    async def _read(self, utterance: Utterance, reading: Reading) -> None:
        begun_ns = self._clock.now_ns()
        read = Text("")
        try:
            read = await asyncio.to_thread(self._reader.read, reading.pcm)
        except AgentError as e:
            await self._tell(e)
        self._counts["stt_readings"] += 1
        self._counts["stt_read_again"] += read.again is not None
        utterance.read(reading, read.text, ns_to_ms(self._clock.now_ns() - begun_ns))
        if not utterance.over and utterance.text and utterance.text != self._interim:
            self._interim = utterance.text
            interim = InterimTranscriptionFrame(self._interim, self._user_id, time_now_iso8601())
            await self.push_frame(interim)

    async def _conclude(self) -> None:
        """Push the final text of each utterance that is read to its end, in order."""
        while (text := self._spoken.concluded()) is not None:
            await self._tell_lost()
            if text:
                frame = TranscriptionFrame(text, self._user_id, time_now_iso8601(), finalized=True)
                frame.metadata[COUNTS] = self._counts
                self._counts = dict.fromkeys(self._counts, 0.0)
                await self.push_frame(frame)
            await self.emit_stt_usage_metrics()
        if self._spoken.settled:
            self._settled.set()

    async def _tell_lost(self) -> None:
        lost_ms, self._spoken.lost_ms = self._spoken.lost_ms, 0.0
        if lost_ms:
            await self._tell(
                AgentError(
                    "stt.lost",
                    f"{lost_ms / 1000:.1f} s of what was said were not heard: more than "
                    f"{MOST_MS / 60_000:.0f} minutes waited to be read by {self._reader.name}",
                    hint="a smaller model, a faster machine or shorter turns may keep up",
                )
            )

    async def _tell(self, error: AgentError) -> None:
        await self.push_error(f"{error.message} ({error.hint})", exception=error)
