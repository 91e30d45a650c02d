"""How a voice sounds where it falls silent: its melody, loudness and length. Pure numpy.

One silence costs about 1 ms of CPU, once.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import FULL_SCALE, Pcm

# How much sound before the silence is looked at: it has to hold a phrase, whose median is what the
# end is compared with.
SPAN_MS = 1500

# A voice's melody lies below 500 Hz, so that 4,000 samples a second tell it.
_RATE = 4000
_WINDOW = _RATE * 40 // 1000
_HOP = _RATE // 100
_FFT = 256
_LAGS = slice(_RATE // 450, _RATE // 60)
# A frame is voiced from this likeness to itself a period later, and this far below the loudest.
_LIKE = 0.55
_SOFTEST_DB = 30.0
_AS_GOOD = 0.85
# What is left of the lengths of the end and of what came before it, in voiced frames of 10 ms.
_END, _BEFORE = 6, 20
# Nobody's voice moves further than an octave within a phrase: what does is a mistaken period.
_OCTAVE = 12.0


@dataclass(frozen=True, slots=True)
class Melody:
    """The pitch and energy at the end of a stretch of speech.

    Attributes:
        pitch: of its last 60 ms of voice, in semitones from the median.
        falls: how far these lie from the 200 ms before, in semitones; below 0 they are lower.
        loudness: of its last 100 ms, in dB from the loudest.
        voiced_ms: how long its last voiced stretch is.
    """

    pitch: float
    falls: float
    loudness: float
    voiced_ms: float


def melody_of(pcm: Pcm, rate: int) -> Melody | None:
    """Return how the sound ends, or None if hardly any of it is voiced.

    Args:
        pcm: mono int16, up to the last audible sample.
        rate: its sample rate, a multiple of 4000 Hz.
    """
    step = rate // _RATE
    sound = pcm[len(pcm) % step :].astype(np.float64).reshape(-1, step).mean(axis=1) / FULL_SCALE
    if len(sound) < _WINDOW:
        return None
    # The last frame ends with the sound.
    windows = np.lib.stride_tricks.sliding_window_view(sound, _WINDOW)[::-_HOP][::-1]
    windows = windows - windows.mean(axis=1, keepdims=True)
    power = 10 * np.log10(np.mean(windows**2, axis=1) + 1e-12)
    likeness, semitones = _pitch(windows)
    voiced = (likeness >= _LIKE) & (power >= power.max() - _SOFTEST_DB)
    at = np.flatnonzero(voiced)
    if len(at) < _END + 2:
        return None
    pitch = semitones[at]
    middle = float(np.median(pitch))
    pitch = np.clip(pitch - middle, -_OCTAVE, _OCTAVE)
    end, before = pitch[-_END:], pitch[-_END - _BEFORE : -_END]
    unvoiced = np.flatnonzero(~voiced[: at[-1]])
    begun = int(unvoiced[-1]) + 1 if len(unvoiced) else 0
    return Melody(
        pitch=float(np.median(end)),
        falls=float(np.median(end) - np.median(before)),
        loudness=float(power[-10:].mean() - power.max()),
        voiced_ms=float(at[-1] - begun + 1) * 10,
    )


def _pitch(windows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how periodic each window is, 0 to 1, and its pitch in semitones over 1 Hz."""
    spectrum = np.fft.rfft(windows, _FFT, axis=1)
    likeness = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, : _LAGS.stop + 2]
    # A longer lag compares fewer samples.
    likeness = likeness / (1 - np.arange(likeness.shape[1]) / _WINDOW)
    likeness = likeness / np.maximum(likeness[:, :1], 1e-12)
    # Two periods look as much like each other as one: the shortest of the good ones is the voice's.
    peaks = (likeness[:, 1:-1] >= likeness[:, :-2]) & (likeness[:, 1:-1] > likeness[:, 2:])
    good = np.where(peaks, likeness[:, 1:-1], 0)[:, _LAGS.start - 1 : _LAGS.stop - 1]
    lag = _LAGS.start + (good >= _AS_GOOD * good.max(axis=1, keepdims=True)).argmax(axis=1)
    row = np.arange(len(lag))
    left, top, right = (likeness[row, lag + d] for d in (-1, 0, 1))
    bend = left - 2 * top + right
    offset = np.where(bend < 0, (left - right) / np.minimum(2 * bend, -1e-9), 0.0)
    period = lag + np.clip(offset, -0.5, 0.5)
    return np.clip(top, 0, 1), 12 * np.log2(_RATE / period)
