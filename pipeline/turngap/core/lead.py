"""The silence that a TTS puts before its speech, cut off. Pure."""

import numpy as np

from turngap.core.audio import Pcm, audible_onset, window_samples

# Softer than this nothing is speech: 10 dB under what counts as audible at the caller, so that the
# soft beginning of an f or an h stays; over the noise of synthesisers that are never quite silent.
LEAD_DBFS = -50.0

# Kept before the first sound, for the attack that led up to it.
KEEP_MS = 5.0

# What is longer is meant, as a break in the text is.
MOST_MS = 1000.0


class LeadCut:
    """Takes speech as it is made and passes it on from its first sound.

    Args:
        rate: of the samples (mono int16), Hz.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._waiting: Pcm = np.empty(0, dtype=np.int16)
        self._cut = 0
        self._sounds = False

    @property
    def sounds(self) -> bool:
        return self._sounds

    @property
    def cut_ms(self) -> float:
        return self._cut * 1000 / self._rate

    def feed(self, pcm: Pcm) -> Pcm:
        """Take more; return what is to be heard, which may be nothing yet."""
        if self._sounds:
            return pcm
        self._waiting = np.concatenate((self._waiting, pcm))
        keep = round(KEEP_MS * self._rate / 1000)
        onset = audible_onset(self._waiting, self._rate, LEAD_DBFS)
        too_long = self._cut + len(self._waiting) > MOST_MS * self._rate / 1000
        self._sounds = onset is not None or too_long
        if onset is not None:
            silent = onset - keep
        else:
            # A sound may have begun within the last window.
            silent = len(self._waiting) - window_samples(self._rate) - keep
        silent = 0 if too_long and onset is None else max(0, silent)
        self._cut += silent
        rest = self._waiting[silent:]
        self._waiting = np.empty(0, dtype=np.int16) if self._sounds else rest
        return rest if self._sounds else self._waiting[:0]
