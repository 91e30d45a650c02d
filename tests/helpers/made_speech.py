"""Speech whose bounds are known: a shipped recording in as much room as a test wants."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from turngap.core.audio import FULL_SCALE, LINE_FLOOR_DBFS, Pcm, dbfs_to_amplitude
from turngap.scenario.library import load_scenario

RATE = 16_000
_LIBRARY = Path(__file__).parents[2] / "scenarios"


class Spoken(NamedTuple):
    """A recording, and where the speech in it is by construction."""

    pcm: Pcm
    start_ms: float
    end_ms: float


@cache
def _said() -> Spoken:
    loaded = load_scenario(_LIBRARY / "quick-questions.yaml")
    turn = loaded.scenario.turns[0]
    assert turn.speech
    return Spoken(loaded.clips[turn.audio].at_rate(RATE), turn.speech.start_ms, turn.speech.end_ms)


def spoken(*, before_ms: float = 400, after_ms: float = 400) -> Spoken:
    """A person's words after and before that much of a quiet room."""
    said = _said()
    # What fades after the last audible sample belongs to the speech, and so does a soft onset.
    first, last = (said.start_ms - 20, said.end_ms + 50)
    speech = said.pcm[_samples(first) : _samples(last)]
    before, after = room(before_ms - 20), room(after_ms - 50)
    end_ms = before_ms + said.end_ms - said.start_ms
    return Spoken(np.concatenate((before, speech, after)), before_ms, end_ms)


def room(ms: float, dbfs: float = LINE_FLOOR_DBFS) -> Pcm:
    """White noise of that RMS level."""
    noise = np.random.default_rng(3).normal(0, dbfs_to_amplitude(dbfs), _samples(max(0.0, ms)))
    return np.rint(noise).astype(np.int16)


def louder(pcm: Pcm, db: float) -> Pcm:
    """The same at another level; what does not fit is clipped."""
    return np.clip(np.rint(pcm * 10 ** (db / 20)), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def _samples(ms: float) -> int:
    return round(ms * RATE / 1000)
