"""Whisper as a pipecat service that reads while the person speaks."""

import asyncio

from pipecat.frames.frames import Frame, VADUserStartedSpeakingFrame
from pipecat.processors.frame_processor import FrameDirection

from turngap.core.clock import Clock, ns_to_ms
from turngap.core.errors import AgentError
from turngap_services.stt.reading import ReadingSTTService
from turngap_services.stt.whisper import WhisperSettings
from turngap_services.stt.whisper.model import Reader, Text
from turngap_services.stt.whisper.readings import MOST_MS, Reading, Readings, Utterance


class WhisperSTTService(ReadingSTTService[Readings]):
    """Each stop frame of the VAD is followed by one finalized `TranscriptionFrame`.

    It follows at once if the pause before it was long enough to read what was said, and none
    follows if there were no words. Earlier readings are pushed as interim transcripts.
    """

    def __init__(self, *, settings: WhisperSettings, reader: Reader, clock: Clock) -> None:
        super().__init__(
            engine="Whisper",
            model=reader.name,
            language=settings.spoken,
            takes_s=reader.takes_s,
            spoken=Readings(settings, reader.window_s, reader.takes_s * 1000),
        )
        self._reader = reader
        self._clock = clock
        self._interim = ""
        self._counts = {"stt_readings": 0.0, "stt_read_again": 0.0}

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._interim = ""
        await super().process_frame(frame, direction)

    async def _read_due(self) -> None:
        while due := self._spoken.due():
            await self._read(*due)
            await self._conclude()

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
            await self._push_interim(self._interim)

    async def _push_concluded(self) -> None:
        while (text := self._spoken.concluded()) is not None:
            await self._tell_lost()
            counts = self._counts
            if text:
                self._counts = dict.fromkeys(counts, 0.0)
            await self._push_final(text, counts)

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
