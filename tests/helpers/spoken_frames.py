"""The library's recordings as the frames that a recogniser is sent."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from running_line import Line

from turngap.scenario.library import load_scenario
from turngap.scenario.model import library_dir, library_paths

RATE = 16_000
PACKET = RATE // 50
# When `adaptive` finds the start and the end of speech.
STARTS_LATE_MS, HOLD_MS = 80, 250


class Spoken(NamedTuple):
    """A recording, and where in it speech begins and ends."""

    pcm: np.ndarray
    start_ms: float
    end_ms: float


def recordings() -> list[Spoken]:
    """Return what people say in the library's first conversations."""
    found: list[Spoken] = []
    for path in library_paths(library_dir())[:2]:
        loaded = load_scenario(path)
        for turn in loaded.scenario.turns:
            assert turn.speech is not None
            pcm = loaded.clips[turn.audio].at_rate(RATE)
            found.append(Spoken(pcm, turn.speech.start_ms, turn.speech.end_ms))
    return found


def packets(pcm: np.ndarray) -> Iterator[InputAudioRawFrame]:
    for at in range(0, len(pcm), PACKET):
        yield InputAudioRawFrame(pcm[at : at + PACKET].tobytes(), RATE, 1)


def frames_of(spoken: Spoken) -> tuple[list[Frame], list[Frame]]:
    """A turn as it arrives, up to shortly before the VAD's stop, and the rest of it."""
    quiet = np.random.default_rng(2).normal(0, 41, RATE).astype(np.int16)  # -58 dBFS
    frames: list[Frame] = list(packets(np.concatenate((quiet, spoken.pcm, quiet))))
    stop = round((1000 + spoken.end_ms + HOLD_MS) / 20)
    start = round((1000 + spoken.start_ms + STARTS_LATE_MS) / 20)
    frames.insert(stop, VADUserStoppedSpeakingFrame(stop_secs=HOLD_MS / 1000))
    frames.insert(start, VADUserStartedSpeakingFrame(start_secs=0.05))
    return frames[: stop - 2], frames[stop - 2 :]


async def play(line: Line, *frames: Frame) -> None:
    """Send each once the one before it has come through, as speech does at its own pace."""
    for frame in frames:
        await line.send(frame)
        await line.until(lambda frame=frame: any(f is frame for f in line.frames[-3:]))


def texts(line: Line) -> list[str]:
    """The final transcripts that arrived."""
    return [frame.text for frame in line.of(TranscriptionFrame)]
