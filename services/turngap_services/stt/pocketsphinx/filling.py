"""Fills what a voice's line leaves empty, as the acoustic model takes no logarithm of nothing."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import Pcm, dbfs_to_amplitude
from turngap_services.stt.sound import RATE

# White noise under everything, 61 dB below the loudest of the voice: digital silence gets a
# spectrum, and no voice that is levelled drowns in it. From 51 to 81 dB nothing changes (25 people
# and the library: 5.7 % and 0.5 to 1.6 % of the words are wrong).
DITHER_DBFS = -81.0
# A telephone carries nothing above 4 kHz, where the model was trained to hear speech. Noise in that
# band, 30 dB below the loudest of the voice, keeps the features in their range: over an 8 kHz
# mu-law line 5.7 % of these people's words are wrong instead of 28 %. From 21 to 31 dB below it is
# 5.3 to 5.7 %, 41 dB below 10.2 %.
BAND_DBFS = -50.0
# The band counts as empty if it holds no more than the rounding to 16 bits makes, and half of that.
BAND_FROM_HZ = 4400.0
ROUNDING = 1 / 12 * 1.5
TAPS = 65


class Filling:
    """The noise of one utterance, the same in every one, so that runs repeat.

    Args:
        pre_roll: the utterance so far as it arrived, before any gain. It tells whether the line
            carries the band above 4 kHz.
    """

    def __init__(self, pre_roll: Pcm) -> None:
        self._noise = _telephone_noise() if lacks_high_band(pre_roll) else _dither()
        self._at = 0

    def feed(self, pcm: Pcm) -> Pcm:
        """Return the next samples, at the voice's level, with noise mixed in."""
        at = np.arange(self._at, self._at + len(pcm)) % len(self._noise)
        self._at += len(pcm)
        return np.clip(np.rint(pcm + self._noise[at]), -32768, 32767).astype(np.int16)


def lacks_high_band(pcm: Pcm) -> bool:
    """Return whether `pcm` (16 kHz) comes from a line of 8 kHz: nothing sounds above 4 kHz."""
    frame = RATE // 50
    frames = pcm[: len(pcm) // frame * frame].reshape(-1, frame)
    if not frames.any():
        return False
    window = np.hanning(frame)
    powers = np.square(np.abs(np.fft.rfft(frames * window)))
    band = np.fft.rfftfreq(frame, 1 / RATE) >= BAND_FROM_HZ
    per_sample = powers[:, band].mean() / np.square(window).sum()
    return bool(per_sample <= ROUNDING)


@cache
def _dither() -> NDArray[np.float64]:
    return _white() * dbfs_to_amplitude(DITHER_DBFS)


@cache
def _telephone_noise() -> NDArray[np.float64]:
    """Dither, and noise above 4 kHz: a high-pass with a window, applied once around the loop."""
    centred = np.arange(TAPS) - TAPS // 2
    cutoff = 2 * BAND_FROM_HZ / RATE
    taps = np.hamming(TAPS) * (np.sinc(centred) - cutoff * np.sinc(cutoff * centred))
    spectrum = np.fft.rfft(_white()) * np.fft.rfft(taps, RATE)
    return _dither() + np.fft.irfft(spectrum, RATE) * dbfs_to_amplitude(BAND_DBFS)


def _white() -> NDArray[np.float64]:
    """One second of white noise of power 1."""
    return np.random.default_rng(0).normal(0, 1, RATE)
