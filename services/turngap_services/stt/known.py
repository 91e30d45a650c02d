"""The check whether an utterance was a sentence that the recogniser knows.

A 3-gram of a few sentences makes words of any speech. If that was another sentence, they follow
each other as in no sentence, fit the sound badly, last too long, or leave some of it out. A
logistic regression weighs this; `services/training/unknown` fits it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from rapidfuzz.distance import Levenshtein

from turngap_services.loading import Fitted

# Each is about -4 to 0, or 0 to 4; see `Heard.features`.
FEATURES = ("bias", "order", "oddest", "misfit", "sound", "worst", "drawn", "few", "unread")
# A sound that is audible for less is a cough or a hum more often than a sentence.
LEAST_MS = 400.0
# The spans of a decoder's frames.
FRAME_MS = 10.0


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the decoder's.

    Attributes:
        text: as in the sentences.
        frames: how many it lasts.
        phones: how many the pronunciation has.
        sound: how well it fits the sound, natural logarithm over its frames.
        order: how likely it is behind the two words before, natural logarithm.
    """

    text: str
    frames: int
    phones: int
    sound: float
    order: float


@dataclass(frozen=True, slots=True)
class Heard:
    """An utterance as the decoder reads it.

    Attributes:
        words: in order, at least one.
        sounding_ms: how long it is about as loud as a voice.
        sentences: those that the recogniser knows.
    """

    words: tuple[Word, ...]
    sounding_ms: float
    sentences: Sequence[Sequence[str]]

    def features(self) -> dict[str, float]:
        """Return what `FEATURES` names."""
        words = self.words
        frames = sum(word.frames for word in words)
        order = [word.order for word in words]
        sound = [word.sound / word.frames for word in words]
        texts = [word.text for word in words]
        # Words of a sentence may be missing: people stop in the middle of it.
        misfits = min(Levenshtein.distance(texts, s, weights=(0, 1, 1)) for s in self.sentences)
        return {
            "bias": 1.0,
            "order": sum(order) / len(order) * 100,
            "oddest": min(order) * 20,
            "misfit": misfits / len(words),
            "sound": sum(word.sound for word in words) / frames * 300,
            "worst": min(sound) * 250,
            "drawn": math.log(max(word.frames / word.phones for word in words)),
            "few": 1 / len(words),
            "unread": min(max(self.sounding_ms - frames * FRAME_MS, 0.0) / 500, 4.0),
        }


class Known(Fitted):
    """Parameters that were fitted (`services/training/unknown`)."""

    features = FEATURES
    kind = "stt.fitted_file"
    command = "python -m training.unknown.fit"

    least_log_odds: float
    """Below these log odds it is another sentence."""

    def knows(self, heard: Heard) -> bool:
        """Return whether it is one of the sentences."""
        return self.odds(heard.features()) >= self.least_log_odds


@cache
def shipped() -> Known:
    """Return what ships with turngap, read once a process."""
    return Known.shipped("turngap_services.stt", "known.json")
