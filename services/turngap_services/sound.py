"""Levels of a voice: levelling it, and finding where it was last audible. No I/O, no clock.

`Sound` only decides which audio is worth reading: a sound that it misses is still read if the VAD
hears it (`Utterance.stop`).
"""

from collections import deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import AUDIBLE_DBFS, FULL_SCALE, LINE_FLOOR_DBFS, Pcm, rms_dbfs

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
    sample, so that the cuts of the stream change nothing.

    Args:
        rate: sample rate, Hz.
        known: audio of the utterance that is already there, such as the pre-roll and the first word
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
        """Return the samples of the last, incomplete frame."""
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


RATE = 16_000  # what every recogniser here hears
FRAME = RATE // 100

# A frame this far above the noise around the voice is more than that noise.
OVER_NOISE_DB = 8.0
# A voice's last sound this far below its loudest frame is no longer heard.
RANGE_DB = 26.0
# A frame closer to the loudest is never too soft to be the voice, however loud the room: then a VAD
# alone says when the voice ends.
LEAST_RANGE_DB = 15.0
# The line's own noise between two recordings is not the voice, however soft the voice is.
LOWEST_DBFS = LINE_FLOOR_DBFS + 5.0
# Level of digital silence; nothing is quieter.
_SILENCE_DBFS = -120.0
_SMOOTH = 3
# Frames of a gap between words, at which a long utterance is cut: longer than most closures within
# a word.
_BETWEEN_WORDS = 12
# Silero hears a voice for this long after its last audible sample (p95 over the library's
# recordings). A voice that a VAD hears for longer was too soft for `Sound`.
VAD_LATE_MS = 130.0


def mean_dbfs(levels: Iterable[float]) -> float:
    """Return the level of the frames' mean power."""
    powers = [10 ** (level / 10) for level in levels]
    return 10 * float(np.log10(max(sum(powers) / len(powers), 1e-12)))


def heard_from_dbfs(noise: float, peak: float) -> float:
    """Return the level from which a frame is heard, by the noise and the loudest frame."""
    soft = min(AUDIBLE_DBFS, peak - RANGE_DB)
    return min(max(noise + OVER_NOISE_DB, soft, LOWEST_DBFS), peak - LEAST_RANGE_DB)


def samples(ms: float) -> int:
    """Return how many samples last `ms`."""
    return round(ms * RATE / 1000)


def require_rate(engine: str, rate_hz: int) -> None:
    """Raise an error if the pipeline's rate is not the recogniser's.

    Raises:
        ValueError: the rates differ; the message names both.
    """
    if rate_hz != RATE:
        raise ValueError(f"{engine} hears {RATE} Hz, the pipeline has {rate_hz} Hz")


class Sound:
    """All samples of an utterance, and where it is audible.

    Attributes:
        heard: number of samples so far.
        last_audible: end of the last frame in which the voice was heard, if there is one.
    """

    def __init__(self) -> None:
        self.heard = 0
        self.last_audible: int | None = None
        self._samples: Pcm = np.empty(0, np.int16)  # with room to grow
        self._begun: Pcm = np.empty(0, np.int16)  # less than a frame
        self._levels = deque[float](maxlen=_SMOOTH)
        self._noise = 0.0
        self._peak = _SILENCE_DBFS

    def feed(self, pcm: Pcm) -> None:
        first = self.heard - len(self._begun)
        until = self.heard + len(pcm)
        if until > len(self._samples):
            longer = np.empty(max(until, 2 * len(self._samples), 8 * RATE), np.int16)
            longer[: self.heard] = self._samples[: self.heard]
            self._samples = longer
        self._samples[self.heard : until] = pcm
        self.heard = until
        pcm = np.concatenate((self._begun, pcm))
        whole = len(pcm) // FRAME * FRAME
        self._begun = pcm[whole:].copy()
        for at in range(0, whole, FRAME):
            self._judge(pcm[at : at + FRAME], first + at + FRAME)

    def _judge(self, frame: Pcm, end: int) -> None:
        level = max(rms_dbfs(frame), _SILENCE_DBFS)
        self._levels.append(level)
        if len(self._levels) == _SMOOTH:
            self._noise = min(self._noise, mean_dbfs(self._levels))
        self._peak = max(self._peak, level)
        if level >= max(heard_from_dbfs(self._noise, self._peak), LOWEST_DBFS):
            self.last_audible = end

    def between(self, first: int, last: int) -> Pcm:
        return self._samples[first:last].copy()

    def quietest(self, first: int, last: int) -> int:
        """Return the middle of the quietest 120 ms between two samples, to cut there."""
        until = min(last, self.heard) // FRAME
        frames = self._samples[first // FRAME * FRAME : until * FRAME].reshape(-1, FRAME)
        if len(frames) <= _BETWEEN_WORDS:
            return (first + last) // 2
        powers = np.square(frames, dtype=np.float64).mean(axis=1)
        sums = np.convolve(powers, np.ones(_BETWEEN_WORDS), "valid")
        return first + (int(np.argmin(sums)) + _BETWEEN_WORDS // 2) * FRAME
