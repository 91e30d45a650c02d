"""Brings a voice to one level as it arrives, whatever microphone, line or distance it came over."""

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import FULL_SCALE, Pcm

# Where a voice's loudest 30 ms are put, in dBFS (RMS). Peaks lie up to 15 dB higher, so nothing is
# clipped. Which level it is matters little: what hears the voice is calibrated at it.
TARGET_DBFS = -20.0
# Softer than this at its loudest is not a voice that could be read: quantised to 16 bits, it would
# have 30 dB left.
SOFTEST_DBFS = -60.0

FRAME_MS = 10
LOUDEST_FRAMES = 3


class Levelled:
    """One utterance at `TARGET_DBFS`: each sample keeps its place, only its amplitude changes.

    The gain follows the loudest 30 ms so far, so it can only fall: it never raises the noise
    between two words of one utterance. It moves by frames of 10 ms that count from the first
    sample, so that how the stream is cut changes nothing.

    Args:
        rate: sample rate, Hz.
        known: audio of the utterance that is there already, as the pre-roll and the first word are
            when a VAD has found its start. It sets the first gain, and must still be fed.
    """

    def __init__(self, rate: int, known: Pcm) -> None:
        self._frame = rate * FRAME_MS // 1000
        self._waiting: Pcm = np.empty(0, np.int16)
        self._loudest = FULL_SCALE**2 * 10 ** (SOFTEST_DBFS / 10)
        self._powers = np.zeros(LOUDEST_FRAMES - 1)
        self._follow(self._frames(known))
        self._powers[:] = 0
        self._gain = self._gain_now()

    def feed(self, pcm: Pcm) -> Pcm:
        """Take the next samples; return those whose frame is complete, at the level."""
        self._waiting = np.concatenate((self._waiting, pcm))
        frames = self._frames(self._waiting)
        self._waiting = self._waiting[frames.size :]
        # Each frame's gain is reached at its end, in a straight line from the one before.
        gains = np.concatenate(([self._gain], self._follow(frames)))
        self._gain = float(gains[-1])
        steps = np.arange(1, self._frame + 1) / self._frame
        ramps = gains[:-1, None] + np.diff(gains)[:, None] * steps
        return _to_pcm(frames * ramps).reshape(-1)

    def flush(self) -> Pcm:
        """Return the samples of the last frame, which did not become complete."""
        rest, self._waiting = self._waiting, self._waiting[:0]
        return _to_pcm(rest * self._gain)

    def _frames(self, pcm: Pcm) -> Pcm:
        """Cut the complete frames from the beginning of `pcm`, shape (frames, samples)."""
        return pcm[: len(pcm) // self._frame * self._frame].reshape(-1, self._frame)

    def _follow(self, frames: Pcm) -> NDArray[np.float64]:
        """Follow the voice over `frames`; return the gain at the end of each."""
        gains = np.empty(len(frames))
        powers = np.mean(np.square(frames, dtype=np.float64), axis=1)
        for n, power in enumerate(powers):
            smooth = (self._powers.sum() + power) / LOUDEST_FRAMES
            self._powers = np.append(self._powers[1:], power)
            self._loudest = max(self._loudest, smooth)
            gains[n] = self._gain_now()
        return gains

    def _gain_now(self) -> float:
        return FULL_SCALE * 10 ** (TARGET_DBFS / 20) / float(np.sqrt(self._loudest))


def _to_pcm(samples: NDArray[np.floating]) -> Pcm:
    return np.clip(np.rint(samples), -32768, 32767).astype(np.int16)
