"""Where an utterance was last audible, to 10 ms. No I/O, no clock.

This only decides what is worth reading: a sound that is missed here is still read if the VAD hears
it (`Utterance.stop`).
"""

from collections import deque

import numpy as np

from turngap.core.audio import AUDIBLE_DBFS, LINE_FLOOR_DBFS, Pcm, rms_dbfs

RATE = 16_000  # what every recogniser here hears
FRAME = RATE // 100

# A frame this far above the quietest 30 ms is more than the noise of the room.
_OVER_NOISE_DB = 8.0
# A voice's last sound this far below its loudest frame is no longer heard.
_RANGE_DB = 26.0
# A frame closer to the loudest is never too soft to be the voice, however loud the room.
_LEAST_RANGE_DB = 15.0
# The line's own noise between two recordings is not the voice, however soft the voice is.
_LOWEST_DBFS = LINE_FLOOR_DBFS + 5.0
# Level of digital silence; nothing is quieter.
_SILENCE_DBFS = -120.0
_SMOOTH = 3
# Frames of a gap between words, at which a long utterance is cut: longer than most closures within
# a word.
_BETWEEN_WORDS = 12
# Silero hears a voice for this long after its last audible sample (p95 over the library's
# recordings). A voice that a VAD hears for longer was too soft for `Sound`.
VAD_LATE_MS = 130.0


def samples(ms: float) -> int:
    """Return how many samples last `ms`."""
    return round(ms * RATE / 1000)


def require_rate(engine: str, rate_hz: int) -> None:
    """Refuse a pipeline of another rate than a recogniser hears.

    Raises:
        ValueError: says both rates.
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
            powers = [10 ** (each / 10) for each in self._levels]
            self._noise = min(self._noise, 10 * float(np.log10(sum(powers) / _SMOOTH)))
        self._peak = max(self._peak, level)
        soft = min(AUDIBLE_DBFS, self._peak - _RANGE_DB)
        told_apart = max(self._noise + _OVER_NOISE_DB, soft, _LOWEST_DBFS)
        if level >= min(told_apart, self._peak - _LEAST_RANGE_DB) and level >= _LOWEST_DBFS:
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
