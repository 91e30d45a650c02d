"""A running pipeline from the LLM's tokens to the output, on a manual clock."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import numpy as np
from pipecat.frames.frames import (
    AggregatedTextFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from pipelines import at_work, worker_of

from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.testing import ManualClock

RATE = 16_000
F = TypeVar("F", bound=Frame)


class ClockedTTS(TTSService):
    """A tone of 50 ms a character, in chunks, after silence; it takes the time that it is told."""

    def __init__(
        self,
        clock: ManualClock,
        *,
        request_ms: float = 0,
        factor: float = 0,
        chunk_ms: float = 100,
        lead_in_ms: float = 0,
    ) -> None:
        super().__init__(
            sample_rate=RATE,
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model="clocked", voice="tone", language=None),
        )
        self._clock = clock
        self._request_ms, self._factor = request_ms, factor
        self._chunk_ms, self._lead_in_ms = chunk_ms, lead_in_ms
        self.spoken: list[tuple[float, str]] = []

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        at_ns = self._clock.now_ns()
        self.spoken.append((ns_to_ms(at_ns), text))
        lead_in = np.zeros(round(RATE * self._lead_in_ms / 1000), np.int16)
        tone = np.cos(np.arange(RATE * 50 * len(text) // 1000) / 12) * 8000
        speech = np.concatenate((lead_in, tone.astype(np.int16)))
        at_ns += ms_to_ns(self._request_ms)
        chunk = round(RATE * self._chunk_ms / 1000)
        for first in range(0, len(speech), chunk):
            piece = speech[first : first + chunk]
            at_ns += ms_to_ns(self._factor * len(piece) * 1000 / RATE)
            await self._clock.sleep_until_ns(at_ns)
            yield TTSAudioRawFrame(piece.tobytes(), RATE, 1, context_id=context_id)


class Arrivals(FrameProcessor):
    """The end of the pipeline, where each frame is kept with its instant."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(enable_direct_mode=True)
        self._clock = clock
        self.frames: list[tuple[float, Frame]] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction == FrameDirection.DOWNSTREAM:
            self.frames.append((ns_to_ms(self._clock.now_ns()), frame))
        await self.push_frame(frame, direction)


class SpeechLine:
    """A test's actions on the pipeline, and their results."""

    def __init__(self, clock: ManualClock, worker: PipelineWorker, end: Arrivals) -> None:
        self._clock, self._worker, self._end = clock, worker, end

    async def say(self, tokens: list[str], *, every_ms: float = 10, ends: bool = True) -> None:
        """Send a reply, token by token."""
        await self.send(LLMFullResponseStartFrame())
        for token in tokens:
            await self._clock.advance(ms_to_ns(every_ms))
            await self.send(LLMTextFrame(token))
        if ends:
            await self.send(LLMFullResponseEndFrame())

    async def interrupt(self) -> None:
        """The person has spoken."""
        await self.send(InterruptionFrame())

    async def send(self, *frames: Frame) -> None:
        """Queue frames at the beginning and let them come as far as they come."""
        for frame in frames:
            await self._worker.queue_frame(frame)
        await self.passes(0)

    async def passes(self, ms: float) -> None:
        """Let time pass."""
        await self._clock.advance(ms_to_ns(ms))

    def of(self, kind: type[F]) -> list[tuple[float, F]]:
        """The frames of that kind that came out, with their instants in ms."""
        return [(at_ms, frame) for at_ms, frame in self._end.frames if isinstance(frame, kind)]

    @property
    def kinds(self) -> list[str]:
        """The names of the frames that came out of a reply, audio and others."""
        return [type(frame).__name__ for _, frame in self._end.frames]

    @property
    def heard(self) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
        """All audio that came out."""
        audio = [np.frombuffer(frame.audio, "<i2") for _, frame in self.of(TTSAudioRawFrame)]
        return np.concatenate(audio) if audio else np.empty(0, np.int16)

    @property
    def pieces(self) -> list[str]:
        """The texts that the TTS announced."""
        return [f.text for _, f in self.of(AggregatedTextFrame) if type(f) is AggregatedTextFrame]

    @property
    def breaks_ms(self) -> list[float]:
        """Return how long the caller heard nothing between two frames."""
        found: list[float] = []
        dry_ms: float | None = None
        for at_ms, frame in self.of(TTSAudioRawFrame):
            if dry_ms is not None and at_ms > dry_ms:
                found.append(at_ms - dry_ms)
            dry_ms = max(dry_ms or at_ms, at_ms) + frame.num_frames * 1000 / frame.sample_rate
        return found


@asynccontextmanager
async def running(clock: ManualClock, *processors: FrameProcessor) -> AsyncIterator[SpeechLine]:
    """Run the processors; ends them gracefully."""
    end = Arrivals(clock)
    worker = worker_of([*processors, end], PipelineParams())
    async with at_work(worker, passing=lambda: clock.advance(ms_to_ns(100))):
        yield SpeechLine(clock, worker, end)
