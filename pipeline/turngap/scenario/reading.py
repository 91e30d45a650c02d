"""Reads a recording in steps of 5 ms: each band's level, and Silero's probability of speech."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import FULL_SCALE, Pcm
from turngap.silero import RATE, WINDOW, Silero

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)

# Everything is judged in steps of 5 ms, on 20 ms of sound: two periods of a low voice.
STEP_MS = 5
STEP = RATE * STEP_MS // 1000
FRAME = 4 * STEP

# Where voices have their fundamental and first formant, their other formants, and the noise of
# fricatives and stop releases. A weak final "s" is far below the vowels, yet far above the noise of
# its own band.
BANDS_HZ = ((100, 1000), (1000, 3500), (3500, 7900))

# Silero reads windows of 32 ms. Read from two offsets it places a bound twice as finely, and
# does not depend on where the recording happens to begin.
OFFSETS = (0, 256)

# Silero's level is set so that 200 ms of the recording, the length of a short word, lie at or above
# this RMS: about the level of its training data. A thump is shorter, so it does not set the level.
LEVEL_DBFS = -20.0
LOUD_MS = 200

# A noise floor taken from these is -inf. No microphone is silent for 30 ms.
DIGITAL_SILENCE_MS = 30


def digital_silence(pcm: Pcm, rate: int) -> Bools:
    """Mark the samples in a stretch of digital silence: no two differ by more than 2."""
    size = max(1, rate * DIGITAL_SILENCE_MS // 1000)
    wide = pcm.astype(np.int32)
    still = _highest(wide, size) + _highest(-wide, size) <= 2
    return _highest(still, size)


def _highest(values: NDArray[Number], size: int) -> NDArray[Number]:
    """Return the highest of the `size` values around each; at the ends, of those there are."""
    found = np.pad(values, (size // 2, size - 1 - size // 2), mode="edge")
    width = 1
    while width < size:
        step = min(width, size - width)
        found = np.maximum(found[:-step], found[step:])
        width += step
    return found


def band_levels(signal: Floats) -> Floats:
    """Return each band's level in dBFS, shape (3, n), of the 20 ms around each step."""
    padded = np.pad(signal, FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::STEP]
    window = np.hanning(FRAME)
    scale = 2 / (FRAME * float(np.sum(window**2)))
    hz = np.fft.rfftfreq(FRAME, 1 / RATE)
    bands = [(hz >= low) & (hz < high) for low, high in BANDS_HZ]
    powers = []
    # A minute at a time, so that an hour needs no gigabytes.
    for first in range(0, len(frames), 60_000 // STEP_MS):
        part = frames[first : first + 60_000 // STEP_MS] * window
        power = np.abs(np.fft.rfft(part, axis=1)) ** 2 * scale
        powers.append(np.stack([power[:, band].sum(axis=1) for band in bands]))
    return 10 * np.log10(np.concatenate(powers, axis=1) + 1e-14)


def speech_probability(signal: Floats, steps: int) -> Floats:
    """Return Silero's probability of speech at each step, the mean over the offsets."""
    gain = FULL_SCALE * 10 ** ((LEVEL_DBFS - _level_dbfs(signal)) / 20)
    scaled = np.clip(np.rint(signal * gain), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)
    silero = Silero()
    at = np.arange(steps) * STEP
    total = np.zeros(steps)
    for offset in OFFSETS:
        # Silero begins with some silence behind it, and hears some after the recording.
        before = 8 * WINDOW + offset
        padded = np.pad(scaled, (before, 9 * WINDOW))
        windows = padded[: len(padded) // WINDOW * WINDOW].reshape(-1, WINDOW)
        found = np.array([silero.probability(window, RATE) for window in windows])
        silero.reset()
        ends = (np.arange(len(windows)) + 1) * WINDOW - before
        total += np.interp(at, ends, found)
    return total / len(OFFSETS)


def _level_dbfs(signal: Floats) -> float:
    """Return the RMS that the loudest 200 ms of the recording, 20 ms at a time, reach."""
    frames = signal[: len(signal) // FRAME * FRAME].reshape(-1, FRAME)
    loudest = np.sort(np.mean(np.square(frames), axis=1))[::-1]
    power = float(loudest[min(LOUD_MS * RATE // 1000 // FRAME, len(loudest) - 1)])
    return 10 * float(np.log10(power + 1e-12))
