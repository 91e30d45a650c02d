"""A microphone in a room, as a sound device hands it over."""

import numpy as np

from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, dbfs_to_amplitude
from turngap.live.sound import DEVICE_RATE


def room(until_ms: float) -> Pcm:
    """A microphone in a quiet room."""
    n = round(DEVICE_RATE * until_ms / 1000)
    noise = np.random.default_rng(3).standard_normal(n) * dbfs_to_amplitude(LINE_FLOOR_DBFS)
    return np.rint(noise).astype(np.int16)
