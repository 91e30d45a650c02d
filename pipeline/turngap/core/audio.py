"""Find the audible beginning and end of speech in PCM.

All arrays are mono int16, shape (n,). Positions are sample indices.
"""

from collections import deque
from dataclasses import dataclass, field
from math import ceil

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

# A first word reaches back this far at most; one that may begin anywhere in it cannot be placed.
UNPLACED_MS = 250.0


def dbfs_to_amplitude(dbfs: float) -> float:
    """Return the amplitude in int16 units of a level in dB relative to full scale."""
    return FULL_SCALE * 10 ** (dbfs / 20)


def rms_dbfs(pcm: Pcm) -> float:
    """Return the RMS level in dB relative to full scale; -inf for silence or no samples."""
    if len(pcm) == 0:
        return float("-inf")
    samples = pcm.astype(np.float64)
    mean_square = float(samples.dot(samples)) / len(samples)  # exact: whole numbers below 2**53
    return float("-inf") if mean_square == 0 else 10 * float(np.log10(mean_square / FULL_SCALE**2))


def window_samples(rate: int) -> int:
    """Return the length of the audibility window at `rate` Hz."""
    return max(1, round(rate * WINDOW_MS / 1000))


def is_loud(pcm: Pcm, amplitude: float) -> bool:
    """Return whether any sample reaches this amplitude; quieter audio is never audible."""
    level = ceil(amplitude)
    return len(pcm) > 0 and bool(pcm.max() >= level or pcm.min() <= -level)


def audible_samples(
    pcm: Pcm, window: int, threshold: float, peak: float | None = None
) -> NDArray[np.intp]:
    """Return the indices of samples in a loud window that exceed `peak`, or else the threshold.

    All sums are integers: a sum of floats would depend on where in the stream it began.
    """
    if len(pcm) < window:
        return np.empty(0, dtype=np.intp)
    level = np.abs(pcm.astype(np.int32))
    capped = np.minimum(level, int(threshold * 10 ** (CLICK_DB / 20)))
    energy = np.zeros(len(pcm) + 1, dtype=np.int64)
    np.cumsum(capped * capped, out=energy[1:])
    loud_windows = np.cumsum(energy[window:] - energy[:-window] >= threshold**2 * window)
    # Sample i lies in the windows that begin at i - window + 1 to i. `begun[i]` counts the loud
    # ones before these, and `begun[i + window]` those up to the last of them.
    begun = np.zeros(len(pcm) + window, dtype=np.intp)
    begun[window : window + len(loud_windows)] = loud_windows
    begun[window + len(loud_windows) :] = loud_windows[-1]
    covered = begun[window:] > begun[:-window]
    return np.flatnonzero(covered & (level >= ceil(peak or threshold)))


def audible_onset(pcm: Pcm, rate: int, dbfs: float = AUDIBLE_DBFS) -> int | None:
    """Return the index of the first audible sample, or None.

    A sample is audible at or over `dbfs`, in a stretch of 10 ms whose RMS, clicks capped, is at or
    over it too. A click, or a noise floor below the level, is not audible; an abrupt onset is found
    to the sample.
    """
    audible = audible_samples(pcm, window_samples(rate), dbfs_to_amplitude(dbfs))
    return int(audible[0]) if len(audible) else None


def audible_end(pcm: Pcm, rate: int, dbfs: float = AUDIBLE_DBFS) -> int | None:
    """Return the index of the last audible sample, or None: `audible_onset` played backwards."""
    audible = audible_samples(pcm, window_samples(rate), dbfs_to_amplitude(dbfs))
    return int(audible[-1]) if len(audible) else None


@dataclass(frozen=True, slots=True)
class SpeechStart:
    """Speech became audible at stream position `sample`."""

    sample: int


@dataclass(frozen=True, slots=True)
class SpeechEnd:
    """Speech that had started was last audible at stream position `sample`.

    `dbfs` is the level of its loud parts, if known.
    """

    sample: int
    dbfs: float | None = field(default=None, compare=False)


class SpeechDetector:
    """`audible_onset` and `audible_end` over a stream that arrives in pieces.

    Speech has ended once `gap_ms` pass without an audible sample. Cutting the stream differently
    changes only when events are reported, never the events or their positions: a sample is judged
    once the whole window that begins at it has arrived.
    """

    def __init__(self, rate: int, *, gap_ms: float = 300.0, dbfs: float = AUDIBLE_DBFS) -> None:
        self._window = window_samples(rate)
        self._threshold = dbfs_to_amplitude(dbfs)
        self._gap = round(rate * gap_ms / 1000)
        # The samples not judged yet, and before them those that share a window with them.
        self._pieces: deque[Pcm] = deque()
        self._pieces_at = 0
        self._received = 0
        self._judged = 0
        self._loud_to = 0  # no sample from here on is loud, while no one speaks
        self._last_audible: int | None = None  # None: not speaking

    @property
    def speaking(self) -> bool:
        return self._last_audible is not None

    def feed(self, pcm: Pcm) -> list[SpeechStart | SpeechEnd]:
        """Take the stream's next samples; return the new events, in order.

        The search starts only when something can be found: in silence once a sample is loud, in
        speech once it may have ended.
        """
        self._pieces.append(pcm)
        self._received += len(pcm)
        upto = max(self._judged, self._received - self._window + 1)
        if self._last_audible is not None:
            if upto - self._last_audible <= self._gap:
                return []
        elif not self._has_become_loud(pcm):
            self._judged = upto
            self._forget_judged()
            return []
        events = self._judge(upto)
        if self._last_audible is not None and self._judged - self._last_audible > self._gap:
            events.append(self._end(self._last_audible))
        self._forget_judged()
        return events

    def cut(self) -> list[SpeechStart | SpeechEnd]:
        """End any speech here, because the stream was cut (buffer flushed, connection closed).

        Positions continue to count, and no window spans the cut.
        """
        events = self._judge(self._received)
        if self._last_audible is not None:
            events.append(self._end(self._last_audible))
        self._pieces.clear()
        self._pieces_at = self._received
        return events

    def _has_become_loud(self, pcm: Pcm) -> bool:
        """Return whether an unjudged sample may be loud; `pcm` holds the latest samples."""
        if is_loud(pcm, self._threshold):
            self._loud_to = self._received
        return self._loud_to > self._judged

    def _forget_judged(self) -> None:
        keep_from = self._judged - self._window + 1
        while self._pieces and self._pieces_at + len(self._pieces[0]) <= keep_from:
            self._pieces_at += len(self._pieces.popleft())
        if self._pieces and keep_from > self._pieces_at:
            self._pieces[0] = self._pieces[0][keep_from - self._pieces_at :]
            self._pieces_at = keep_from

    def _judge(self, upto: int) -> list[SpeechStart | SpeechEnd]:
        """Return the events of unjudged samples up to stream position `upto` (exclusive)."""
        judged, self._judged = self._judged, upto
        if not self._pieces:
            return []
        pcm = np.concatenate(self._pieces)
        self._pieces = deque([pcm])
        audible = audible_samples(pcm, self._window, self._threshold) + self._pieces_at
        audible = audible[(audible >= judged) & (audible < upto)]
        if len(audible) == 0:
            return []
        events: list[SpeechStart | SpeechEnd] = []
        if audible[-1] - audible[0] <= self._gap:  # there can be no end between them
            breaks = np.empty(0, dtype=np.intp)
        else:
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
        self._loud_to = self._received  # what is not judged yet was not looked at
        return SpeechEnd(last_audible)
