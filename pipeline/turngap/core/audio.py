"""Where speech audibly begins and ends in PCM.

All arrays are mono int16, shape (n,). Positions are sample indices.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pcm = NDArray[np.int16]

FULL_SCALE = 32768.0

# A quiet room's line noise and a codec's comfort noise lie near -60 dBFS, speech some 30 dB higher.
# On clean synthetic speech -30, -40 and -50 dBFS agree within 10 ms.
AUDIBLE_DBFS = -40.0

# White noise under every shipped recording, and what a caller plays between them: recognisers
# misread digital silence, and a line that drops to it and back is heard as a click. Its peaks stay
# below AUDIBLE_DBFS.
LINE_FLOOR_DBFS = -58.0

# One glottal period of a low male voice (100 Hz): sound that lasts less has no pitch to hear.
WINDOW_MS = 10.0

# No sample counts for more than this much over the level, so that sound must fill a sixteenth of
# the window (0.6 ms) to be audible: a click or a lost bit is not, however loud.
CLICK_DB = 12.0


def dbfs_to_amplitude(dbfs: float) -> float:
    """Amplitude in int16 units of a level in dB relative to full scale."""
    return FULL_SCALE * 10 ** (dbfs / 20)


def rms_dbfs(pcm: Pcm) -> float:
    """RMS level in dB relative to full scale; -inf for silence or no samples."""
    if len(pcm) == 0:
        return float("-inf")
    mean_square = float(np.mean(np.square(pcm, dtype=np.float64)))
    return float("-inf") if mean_square == 0 else 10 * float(np.log10(mean_square / FULL_SCALE**2))


def window_samples(rate: int) -> int:
    """Length of the audibility window at `rate` Hz."""
    return max(1, round(rate * WINDOW_MS / 1000))


def _audible(pcm: Pcm, window: int, threshold: float) -> NDArray[np.intp]:
    """Indices of the loud samples that lie in a loud window.

    Integers throughout: a sum of floats would depend on where in the stream it began.
    """
    if len(pcm) < window:
        return np.empty(0, dtype=np.intp)
    level = np.abs(pcm.astype(np.int64))
    capped = np.minimum(level, int(threshold * 10 ** (CLICK_DB / 20)))
    energy = np.concatenate(([0], np.cumsum(capped * capped)))
    loud_window = energy[window:] - energy[:-window] >= threshold**2 * window
    # Sample i lies in the windows that begin at i - window + 1 to i.
    loud_windows = np.concatenate(([0], np.cumsum(loud_window)))
    sample = np.arange(len(pcm))
    first = np.maximum(sample - window + 1, 0)
    after_last = np.minimum(sample + 1, len(loud_window))
    covered = loud_windows[after_last] > loud_windows[first]
    return np.flatnonzero(covered & (level >= threshold))


def audible_onset(pcm: Pcm, rate: int, dbfs: float = AUDIBLE_DBFS) -> int | None:
    """Index of the first audible sample, or None.

    Audible is a sample at or over `dbfs` in a stretch of 10 ms whose RMS, clicks capped, is at or
    over it too. Neither a click nor a noise floor below the level is, and an abrupt onset is found
    to the sample.
    """
    audible = _audible(pcm, window_samples(rate), dbfs_to_amplitude(dbfs))
    return int(audible[0]) if len(audible) else None


def audible_end(pcm: Pcm, rate: int, dbfs: float = AUDIBLE_DBFS) -> int | None:
    """Index of the last audible sample, or None; `audible_onset` of the audio played backwards."""
    audible = _audible(pcm, window_samples(rate), dbfs_to_amplitude(dbfs))
    return int(audible[-1]) if len(audible) else None


@dataclass(frozen=True, slots=True)
class SpeechStart:
    """Speech became audible at stream position `sample`."""

    sample: int


@dataclass(frozen=True, slots=True)
class SpeechEnd:
    """Speech that had started was last audible at stream position `sample`."""

    sample: int


class SpeechDetector:
    """`audible_onset` and `audible_end` over a stream that arrives in pieces.

    Speech has ended once `gap_ms` pass without an audible sample. The events and their positions
    do not depend on how the stream is cut into pieces, only the moment they are reported does: a
    sample is judged once the whole window that it begins is there.
    """

    def __init__(self, rate: int, *, gap_ms: float = 300.0, dbfs: float = AUDIBLE_DBFS) -> None:
        self._window = window_samples(rate)
        self._threshold = dbfs_to_amplitude(dbfs)
        self._gap = round(rate * gap_ms / 1000)
        # The samples not judged yet, and before them those that share a window with them.
        self._buffer: Pcm = np.empty(0, dtype=np.int16)
        self._buffer_at = 0
        self._judged = 0
        self._last_audible: int | None = None  # None: not speaking

    @property
    def speaking(self) -> bool:
        return self._last_audible is not None

    def feed(self, pcm: Pcm) -> list[SpeechStart | SpeechEnd]:
        """Take the stream's next samples; return what became known by them, in order."""
        self._buffer = np.concatenate((self._buffer, pcm))
        received = self._buffer_at + len(self._buffer)
        events = self._judge(max(self._judged, received - self._window + 1))
        if self._last_audible is not None and self._judged - self._last_audible > self._gap:
            events.append(self._end(self._last_audible))
        drop = max(0, self._judged - self._window + 1 - self._buffer_at)
        self._buffer = self._buffer[drop:]
        self._buffer_at += drop
        return events

    def cut(self) -> list[SpeechStart | SpeechEnd]:
        """The stream was cut here (buffer flushed, line closed): speech ends with what there was.

        Positions go on counting, and nothing before the cut shares a window with what follows it.
        """
        received = self._buffer_at + len(self._buffer)
        events = self._judge(received)
        if self._last_audible is not None:
            events.append(self._end(self._last_audible))
        self._buffer = self._buffer[:0]
        self._buffer_at = received
        return events

    def _judge(self, upto: int) -> list[SpeechStart | SpeechEnd]:
        """Events of the samples up to stream position `upto` (exclusive) not judged before."""
        audible = _audible(self._buffer, self._window, self._threshold) + self._buffer_at
        audible = audible[(audible >= self._judged) & (audible < upto)]
        self._judged = upto
        if len(audible) == 0:
            return []
        events: list[SpeechStart | SpeechEnd] = []
        breaks = np.flatnonzero(np.diff(audible) > self._gap)
        firsts = audible[np.concatenate(([0], breaks + 1))]
        lasts = audible[np.concatenate((breaks, [len(audible) - 1]))]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            if self._last_audible is not None and first - self._last_audible > self._gap:
                events.append(self._end(self._last_audible))
            if self._last_audible is None:
                events.append(SpeechStart(first))
            self._last_audible = last
        return events

    def _end(self, last_audible: int) -> SpeechEnd:
        self._last_audible = None
        return SpeechEnd(last_audible)
