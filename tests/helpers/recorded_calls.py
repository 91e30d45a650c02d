"""Recorded calls with known gaps, made of the recordings that ship."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile
from commandline import SCENARIOS

from turngap.core.audio import Pcm
from turngap.store.sound import read_sound

RATE = 16_000
QUIET_MS = 700.0


def spoken(name: str) -> Pcm:
    """The first turn of a shipped conversation, at `RATE`."""
    (first, *_) = sorted((SCENARIOS / name).glob("*.flac")) or sorted(
        (SCENARIOS / name).glob("*.wav")
    )
    sound = read_sound(first, "scenario")
    assert sound.rate == RATE
    return sound.samples[:, 0] if sound.samples.ndim > 1 else sound.samples


def make_call(
    file: Path, gaps_ms: Sequence[float], *, person: str = "left", after_ms: float = 6500.0
) -> Path:
    """Write a stereo call in which the agent answers after these gaps, counted between files.

    The person's microphone hisses, and the agent's side is silent between its words.
    """
    asks, answers = spoken("coffee-order"), spoken("quick-questions")
    sides: tuple[list[Pcm], list[Pcm]] = ([], [])
    for gap_ms in gaps_ms:
        for side, own in zip(sides, (0, 1), strict=True):
            said = [
                voice if n == own else np.zeros_like(voice)
                for n, voice in enumerate((asks, answers))
            ]
            side.extend((silence(QUIET_MS), said[0], silence(gap_ms), said[1]))
    both = [np.concatenate([*side, silence(after_ms)]) for side in sides]
    both[0] = both[0] + np.random.default_rng(1).integers(-12, 13, len(both[0])).astype(np.int16)
    stereo = np.stack(both if person == "left" else both[::-1], axis=1)
    file.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(file, stereo, RATE)
    return file


def silence(ms: float) -> Pcm:
    return np.zeros(round(ms * RATE / 1000), dtype=np.int16)
