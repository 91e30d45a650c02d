"""The probability that a person's turn is over, from words, voice and silence.

At the first silence, a logistic regression tells how likely it is that the turn is over. While the
silence lasts, this grows: of the pauses within turns, ever fewer are as long. Bayes' rule for that
is a sum of log odds:

    log odds(over | silent for s) = log odds(over) - log S(s)

S(s) is the share of pauses within turns that last longer than s. So a certainty that is asked for
gives a silence after which it is reached: the hold.
"""

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import NormalDist
from typing import Annotated, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from turngap.core.errors import InputError
from turngap_services.turn.adaptive.melody import Melody
from turngap_services.turn.adaptive.phrasing import Ending, ending_of

# Words that have not changed for so long will not. pocketsphinx takes back a word of the last
# 200 ms now and then, hardly ever an older one.
STEADY_MS = 200.0

ENDINGS: tuple[Ending, ...] = get_args(Ending)
# What the voice is measured in is brought to about -1 to 1, and within twice of that.
_SCALES = {"pitch": 6.0, "moves": 6.0, "falls": 6.0, "softer": 20.0, "drawn": 300.0}
FEATURES = ("bias", *ENDINGS[:-1], "heard", *_SCALES, "judged", "complete")


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts that are known in a silence.

    Attributes:
        words: those of the turn so far.
        steady_ms: how long they have been the same.
        melody: how the voice sounded before the silence, if that is known yet.
        complete: smart turn's probability that the turn is complete, if it has said so yet.
    """

    words: tuple[str, ...]
    steady_ms: float = math.inf
    melody: Melody | None = None
    complete: float | None = None

    @property
    def ending(self) -> Ending:
        """Classify the end of the words."""
        return ending_of(list(self.words))

    def features(self) -> dict[str, float]:
        """Return what is not zero of `FEATURES`."""
        steady = min(self.steady_ms / STEADY_MS, 1.0)
        found = {"bias": 1.0}
        if (ending := self.ending) in FEATURES:
            found[ending] = steady
        if (melody := self.melody) is not None:
            voice = {
                "pitch": melody.pitch,
                "moves": abs(melody.pitch),
                "falls": melody.falls,
                "softer": -melody.loudness,
                "drawn": melody.voiced_ms,
            }
            found["heard"] = 1.0
            found |= {k: max(-2.0, min(v / _SCALES[k], 2.0)) for k, v in voice.items()}
        if self.complete is not None:
            found |= {"judged": 1.0, "complete": self.complete}
        return found


class Pauses(BaseModel):
    """The lengths of people's pauses within a turn: log-normal between two bounds, ms."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    median_ms: Annotated[float, Field(gt=0)]
    sigma: Annotated[float, Field(gt=0)]
    least_ms: Annotated[float, Field(ge=0)]
    most_ms: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _are_in_order(self) -> "Pauses":
        if self.least_ms >= self.most_ms:
            raise ValueError("least_ms must be less than most_ms")
        return self

    def longer(self, ms: float) -> float:
        """Return the share of the pauses that last longer than `ms`."""
        if ms <= self.least_ms:
            return 1.0
        most = self._cut
        return max((self._longer(ms) - most) / (self._longer(self.least_ms) - most), 0.0)

    def exceeded_by(self, share: float) -> float:
        """Return the length that this share of the pauses exceeds, ms."""
        if share >= 1:
            return self.least_ms
        if share <= 0:
            return self.most_ms
        most = self._cut
        left = most + share * (self._longer(self.least_ms) - most)
        ms = self.median_ms * math.exp(-self.sigma * NormalDist().inv_cdf(left))
        return min(ms, self.most_ms)

    @property
    def _cut(self) -> float:
        return self._longer(self.most_ms)

    def _longer(self, ms: float) -> float:
        if ms <= 0:
            return 1.0
        return NormalDist().cdf(-math.log(ms / self.median_ms) / self.sigma)


class Over(BaseModel):
    """Parameters that were fitted (`services/training/turn_over`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    about: str
    """On what it was fitted, and with which command."""
    pauses: Pauses
    log_odds: dict[str, float]
    """How much each feature adds to the log odds that the turn is over."""

    @model_validator(mode="after")
    def _knows_all_features(self) -> "Over":
        if set(self.log_odds) != set(FEATURES):
            wrong = sorted(set(self.log_odds) ^ set(FEATURES))
            raise ValueError(f"log_odds needs exactly the features; wrong: {', '.join(wrong)}")
        return self

    def probability(self, evidence: Evidence) -> float:
        """Return how likely it is that the turn is over, at the beginning of a silence."""
        odds = sum(self.log_odds[name] * value for name, value in evidence.features().items())
        return 1 / (1 + math.exp(-odds))

    def hold_ms(self, probability: float, certainty: float) -> float:
        """Return the silence after which the turn is over with this certainty, ms."""
        if not certainty:
            return 0.0
        odds = probability / max(1 - probability, 1e-12)
        return self.pauses.exceeded_by(odds * (1 - certainty) / certainty)


def read_over(text: str, where: str) -> Over:
    """Read what was fitted.

    Raises:
        InputError: the file is not what `services/training/turn_over` writes.
    """
    try:
        return Over.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        at = ".".join(str(part) for part in problem["loc"])
        raise InputError(
            "turn.fitted_file",
            f"{where} is no fitted turn-taking: {at + ': ' if at else ''}{problem['msg']}",
            hint="install turngap again, or write it anew: python -m training.turn_over.fit",
        ) from error


@cache
def shipped() -> Over:
    """Return the fitted model that ships with turngap, read once a process."""
    file = resources.files("turngap_services.turn.adaptive").joinpath("over.json")
    return read_over(file.read_text(encoding="utf-8"), "over.json")
