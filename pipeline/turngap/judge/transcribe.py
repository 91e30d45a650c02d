"""What an agent said, by the sound of it: a recogniser over what the caller recorded."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import soxr
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.workers.runner import WorkerRunner

from turngap.backends import BackendSettings, BackendSpec
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm
from turngap.core.results import Turn
from turngap.store.documents import is_file
from turngap.store.runs import Run
from turngap.store.sound import read_sound

RATE = 16_000
PACKET = RATE // 50
# Kept before the first audible sample: the soft beginning of an f or an h.
BEFORE_MS = 100.0


@dataclass(frozen=True, slots=True)
class Transcript:
    """What a recogniser made of a reply, or why it made nothing of it."""

    text: str
    why_none: str | None = None


class _Sink(FrameProcessor):
    """Keeps what the recogniser says."""

    def __init__(self) -> None:
        super().__init__(enable_direct_mode=True)
        self.texts: list[str] = []
        self.errors: list[str] = []

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TranscriptionFrame):
            self.texts.append(frame.text)
        await self.push_frame(frame, direction)


async def transcribe(spec: BackendSpec, settings: BackendSettings, pcm: Pcm) -> Transcript:
    """Have a recogniser read a reply, mono int16 at `RATE`, as one utterance.

    Each reply gets a recogniser of its own, so that none is read by what was learnt of another. It
    is for engines that have said all by the time their utterance ends, or when they are ended.
    """
    service, sink = spec.create(settings, MonotonicClock()), _Sink()

    async def on_error(_: object, frame: ErrorFrame) -> None:
        sink.errors.append(" ".join(frame.error.split()))

    service.add_event_handler("on_error", on_error)
    worker = PipelineWorker(
        Pipeline([service, sink]),
        params=PipelineParams(audio_in_sample_rate=RATE),
        enable_rtvi=False,
        idle_timeout_secs=None,
    )
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await worker.queue_frames([*_utterance(pcm), EndFrame()])
    await runner.run()
    if text := " ".join(text.strip() for text in sink.texts if text.strip()):
        return Transcript(text)
    return Transcript("", sink.errors[0] if sink.errors else "the recogniser made out no word")


def _utterance(pcm: Pcm) -> Iterator[Frame]:
    yield VADUserStartedSpeakingFrame()
    for at in range(0, len(pcm), PACKET):
        yield InputAudioRawFrame(pcm[at : at + PACKET].tobytes(), RATE, 1)
    yield VADUserStoppedSpeakingFrame()


def reply_audio(run: Run, turn: Turn) -> Pcm | None:
    """Read the agent's side of a turn from its onset to where the file's next turn begins.

    Return None if nothing was heard or recorded, or if the file is outside the run's folder: a
    stored run may come from an untrusted source.
    """
    audio = turn.audio
    if audio is None or audio.onset_ms is None:
        return None
    path = PurePosixPath(audio.file)
    if path.is_absolute() or ".." in path.parts or not is_file(run.path / path):
        return None
    later = [
        other.audio.user_start_ms
        for other in run.turns
        if other.audio
        and other.audio.file == audio.file
        and other.audio.user_start_ms > audio.user_start_ms
    ]
    part_ms = (audio.onset_ms - BEFORE_MS, min(later, default=math.inf))
    sound = read_sound(run.path / path, "run", channels=2, part_ms=part_ms)
    heard = sound.samples[:, 1]
    return soxr.resample(heard, sound.rate, RATE) if sound.rate != RATE else heard
