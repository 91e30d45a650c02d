"""What recognisers that read in a thread have in common as pipecat services."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Generic, Protocol, TypeVar

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
from turngap.core.errors import AgentError
from turngap_services.stt.sound import require_rate

# pipecat counts the time from the end of speech to the final text, the VAD's verdict included: 0.34
# s at p99 with Silero. At worst, the reading under way and the last one are added to that.
_VAD_P99_S = 0.35
_READINGS = 2


class Spoken(Protocol):
    """What the VAD takes for speech, and what of it is to be read; it neither waits nor reads."""

    @property
    def settled(self) -> bool: ...
    def audio(self, pcm: bytes) -> None: ...
    def start(self) -> None: ...
    def stop(self, silence_ms: float) -> None: ...


S = TypeVar("S", bound=Spoken)


class ReadingSTTService(STTService, Generic[S]):
    """Transcribes between the VAD's start and stop frames; readings are made in a thread.

    It needs a VAD before it (`VADProcessor`), as the audio and the VAD's frames then arrive in the
    order in which they were pushed. A subclass implements `_read_due` and `_push_concluded`.

    Args:
        engine: what logs and errors call the recogniser.
        model: the name of its model.
        language: which it hears; None where the model knows one alone.
        takes_s: how long a reading takes, s.
        spoken: where the audio goes.
    """

    def __init__(
        self, *, engine: str, model: str, language: str | None, takes_s: float, spoken: S
    ) -> None:
        super().__init__(
            ttfs_p99_latency=_VAD_P99_S + _READINGS * takes_s,
            settings=STTSettings(model=model, language=language),
        )
        self._engine = engine
        self._spoken = spoken
        self._news = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._reading: asyncio.Task[None] | None = None

    async def _read_due(self) -> None:
        """Read all that is due, and conclude what is over."""
        raise NotImplementedError

    async def _push_concluded(self) -> None:
        """Push the final text of each utterance that is read to its end, in order."""
        raise NotImplementedError

    def can_generate_metrics(self) -> bool:
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        require_rate(self._engine, self.sample_rate)

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._reading = self.create_task(self._read_on(), f"turngap-{self._engine.lower()}")

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
                await self._read_due()
        finally:
            self._settled.set()  # there will be no more readings to wait for

    async def _conclude(self) -> None:
        await self._push_concluded()
        if self._spoken.settled:
            self._settled.set()

    async def _push_interim(self, text: str) -> None:
        """Push what was heard so far."""
        await self.push_frame(InterimTranscriptionFrame(text, self._user_id, time_now_iso8601()))

    async def _push_final(self, text: str, counts: dict[str, float]) -> None:
        """Push the text of an utterance, unless it has no words."""
        if text:
            frame = TranscriptionFrame(text, self._user_id, time_now_iso8601(), finalized=True)
            frame.metadata[COUNTS] = counts
            await self.push_frame(frame)
        await self.emit_stt_usage_metrics()

    async def _tell(self, error: AgentError) -> None:
        await self.push_error(f"{error.message} ({error.hint})", exception=error)
