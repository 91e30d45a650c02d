"""The one utterance that everybody says, with an end that is known to the sample."""

from pathlib import Path

import numpy as np
import soundfile
import soxr

from turngap.core.audio import Pcm, audible_end, audible_onset, dbfs_to_amplitude

RECORDING = Path(__file__).parents[2] / "scenarios" / "quick-questions" / "1.flac"
ROOM_MS = 60.0
# Long enough for a VAD, and short, since everybody says it many times.
MOST_SPEECH_MS = 350.0
# The last sample that is so loud is the end: nothing fades after it.
LOUD_DBFS = -18.0


def utterance(rate: int, after_ms: float = ROOM_MS) -> tuple[Pcm, float, float]:
    """Return a shipped recording, cut at a loud sample: int16 at `rate` Hz, and its speech.

    The cut is the same in each rate, after resampling. `after_ms` of digital silence follow it.
    """
    pcm, own = soundfile.read(RECORDING, dtype="int16")
    resampled = np.asarray(soxr.resample(pcm, own, rate) if own != rate else pcm, np.int16)
    onset = audible_onset(resampled, rate) or 0
    speech = resampled[onset : onset + round(MOST_SPEECH_MS * rate / 1000)]
    loud = np.flatnonzero(np.abs(speech.astype(np.int32)) >= dbfs_to_amplitude(LOUD_DBFS))
    room = np.zeros(round(ROOM_MS * rate / 1000), np.int16)
    after = np.zeros(round(after_ms * rate / 1000), np.int16)
    said = np.concatenate((room, speech[: loud[-1] + 1], after))
    end = audible_end(said, rate)
    assert end is not None
    return said, 1000 * len(room) / rate, 1000 * end / rate
