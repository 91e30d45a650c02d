"""The probability that a person's turn is over, from words, voice and silence. Pure.

Words belong to closed classes of English. They are looked up at the end of the text, in the form of
a recogniser without punctuation. At the first silence, a logistic regression of these classes and
of the voice gives the probability that the turn is over. While the silence lasts, this grows,
because ever fewer pauses within turns are as long. By Bayes' rule, log odds are summed:

    log odds(over | silent for s) = log odds(over) - log S(s)

S(s) is the share of pauses within turns that last longer than s. A required certainty is thus
reached after a certain silence: the hold.
"""

import math
import re
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from turngap.core.counts import OUT_OF_DOMAIN
from turngap_services.loading import Fitted
from turngap_services.turn.voice import Melody

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# What the end of the words so far looks like; the first that fits.
Ending = Literal[
    "nothing", "filler", "correction", "digit", "digits", "number", "link", "preposition",
    "auxiliary", "reaching", "polite", "answer", "question", "statement",
]  # fmt: skip

_DIGITS = _set("zero oh o one two three four five six seven eight nine double triple")
# Numbers are read in groups of two to four: this many digits may be a group, more are several.
_A_GROUP = 4

_TENS = _set("twenty thirty forty fifty sixty seventy eighty ninety hundred")

_FILLERS = _set("um umm uhm uh er erm ehm hm hmm mm mmm ah eh")
_FILLER_PAIRS = frozenset({"you know", "i mean"})
# After other words, these take back what was said.
_CORRECTIONS = _set("no sorry wait actually rather oops")
# Conjunctions, determiners and contracted verbs, after which a phrase is open.
_LINKS = _set(
    "and or but nor because so if as although unless until while whether since that than then "
    "a an the my your his her its our their this these those some any every each no "
    "i'm i'd i'll i've we're we'd we'll we've you're you'd you'll you've they're they'd they'll "
    "they've he's she's it's that's there's what's who's where's how's let's it'll he'll she'll "
    "very quite too more less another other"
)
_PREPOSITIONS = _set(
    "to of for with from about by in on at into onto under over between during without against "
    "among toward towards upon per via like than near after before behind through around"
)
# Behind a pronoun these end a phrase: "turn it on".
_PARTICLES = _set("on in over around through by")
_PRONOUNS = _set("it them me us him")
_AUXILIARIES = _set(
    "is are was were am be been being do does did have has had can could will would should shall "
    "may might must isn't aren't wasn't weren't don't doesn't didn't haven't hasn't hadn't can't "
    "couldn't won't wouldn't shouldn't i we he she they who which"
)
# The commonest verbs that want an object or another verb after them.
_REACHING = _set(
    "get make take give put let want need bring send find keep tell buy use see say ask try show "
    "wants needs getting making taking giving putting looking going trying"
)
# These stand for a thing where a question asks what it is: "how much is that". Elsewhere a phrase
# continues behind them: "the reason is that", "what I mean is that".
_DEMONSTRATIVES = _set("this that these those")
_BE = _set("is are was were")
_POLITE = _set("please thanks thank you cheers")
_ANSWERS = _set("yes yeah yep no nope okay ok sure right correct exactly fine hello hi bye goodbye")
_INTERROGATIVES = _set("what who whose which where when how")
_SUBJECTS = _set("i we he she they you it")
_QUESTION = _set(
    "what who whom whose which where when why how is are was were do does did can could will would "
    "should have has may"
)

# While the other person speaks, these ask for nothing.
_BACKCHANNELS = _set(
    "mm mmm mhm hm hmm uh huh ah oh yeah yep yes yup right okay ok sure good great cool nice wow "
    "really indeed exactly true alright"
)
_BACKCHANNEL_PHRASES = frozenset({"i see", "got it", "of course", "all right", "go on", "uh huh"})
# While the other person speaks, each of these alone asks for silence.
_HALTS = _set("stop wait no hold pause quiet enough cancel hey hello sorry excuse help actually")


def is_backchannel(text: str) -> bool:
    """Return whether these words, said while the other person speaks, only mean "go on"."""
    words = words_of(text)
    rest = " ".join(words)
    for phrase in _BACKCHANNEL_PHRASES:
        rest = rest.replace(phrase, " ")
    return bool(words) and set(rest.split()) <= _BACKCHANNELS


def asks(text: str, least_words: int) -> bool:
    """Return whether these words, said while the other person speaks, ask for the floor.

    At least `least_words` different words do, and so do single words that ask for silence. Anything
    less may be a cough, which a recogniser without rejection reads as "five five", and one with
    rejection as unknown words.
    """
    words = set(words_of(text.replace(OUT_OF_DOMAIN, "")))
    return not is_backchannel(text) and (len(words) >= least_words or bool(words & _HALTS))


def same_words(one: str, other: str) -> bool:
    """Return whether two transcripts differ only in punctuation and capitals."""
    return words_of(one) == words_of(other)


def words_of(text: str) -> list[str]:
    """Return the words, in small letters and without marks."""
    return _WORD.findall(text.lower().replace("’", "'"))


def ending_of(words: list[str]) -> Ending:
    """Return the class of the last words so far.

    - `nothing`: there are none; - `filler`, `correction`: the person looks for words, or takes some
    back; - `digit`, `digits`, `number`: one digit, up to a group of them, or more, are read out; -
    `link`, `preposition`, `auxiliary`, `reaching`: words that others mostly follow; - `polite`,
    `answer`: "please" and the like, and short answers on their own; - `question`: words that began
    as a question; - `statement`: anything else.
    """
    if not words:
        return "nothing"
    last, before = words[-1], words[:-1]
    if last in _FILLERS or " ".join(words[-2:]) in _FILLER_PAIRS:
        return "filler"
    if before and last in _CORRECTIONS and not set(before) <= _CORRECTIONS:
        return "correction"
    digits = _digits(words)
    if digits and not (digits == 1 and before and before[-1] in _TENS):
        return "digit" if digits == 1 else "digits" if digits <= _A_GROUP else "number"
    if not before and last in _ANSWERS:
        return "answer"
    asks = words[0].partition("'")[0] in _QUESTION
    if _asks_what_that_is(words):
        return "question"
    if last in _PARTICLES and before and before[-1] in _PRONOUNS:
        return "question" if asks else "statement"
    return _phrase(last, asks=asks)


def _asks_what_that_is(words: list[str]) -> bool:
    """Return whether they are "what is that", or "how much is that" with any word in the middle."""
    if not (3 <= len(words) <= 4 and words[-1] in _DEMONSTRATIVES and words[-2] in _BE):
        return False
    asked = words[1:-2]
    return words[0] in _INTERROGATIVES and not set(asked) & (_SUBJECTS | _LINKS)


def _phrase(last: str, *, asks: bool) -> Ending:
    classes: tuple[tuple[frozenset[str], Ending], ...] = (
        (_LINKS, "link"),
        (_PREPOSITIONS, "preposition"),
        (_AUXILIARIES, "auxiliary"),
        (_REACHING, "reaching"),
        (_POLITE, "polite"),
    )
    for members, name in classes:
        if last in members:
            return name
    return "question" if asks else "statement"


def _digits(words: list[str]) -> int:
    """Return how many digits or letters the words end with."""
    run = 0
    for word in reversed(words):
        if word in _DIGITS or (len(word) == 1 and word not in "ai"):
            run += 1
        elif word.isdigit():
            run += len(word) if len(word) > 2 else 1
        else:
            break
    return run


# Words that have not changed for so long will not. pocketsphinx takes back a word of the last
# 200 ms now and then, hardly ever an older one.
STEADY_MS = 200.0

ENDINGS: tuple[Ending, ...] = get_args(Ending)
# What the voice is measured in is brought to about -1 to 1, and within twice of that.
_SCALES = {"pitch": 6.0, "moves": 6.0, "falls": 6.0, "softer": 20.0, "drawn": 300.0}
FEATURES = ("bias", *ENDINGS[:-1], "heard", *_SCALES, "judged", "complete", "read", "whole")
# The LLM's log odds that the words are a whole message are at least this.
_LEAST_WHOLE = -9.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """The known facts in a silence.

    Attributes:
        words: the turn's words so far.
        steady_ms: how long they have been the same.
        melody: the sound of the voice before the silence, if known yet.
        complete: smart turn's probability that the turn is complete, if it has answered.
        whole: the LLM's probability that the words are a whole message, if it has answered.
    """

    words: tuple[str, ...]
    steady_ms: float = math.inf
    melody: Melody | None = None
    complete: float | None = None
    whole: float | None = None

    @property
    def ending(self) -> Ending:
        """Classify the end of the words."""
        return ending_of(list(self.words))

    def features(self) -> dict[str, float]:
        """Return the `FEATURES` that are not zero."""
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
        if self.whole is not None:
            p = min(max(self.whole, 1e-9), 1 - 1e-9)
            found |= {"read": 1.0, "whole": min(max(math.log(p / (1 - p)), _LEAST_WHOLE), 0.0)}
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


class Over(Fitted):
    """Parameters that were fitted (`services/training/turn_over`)."""

    features = FEATURES
    kind = "turn.fitted_file"
    command = "python -m training.turn_over.fit"

    pauses: Pauses

    def probability(self, evidence: Evidence) -> float:
        """Return the probability that the turn is over, at the beginning of a silence."""
        return 1 / (1 + math.exp(-self.odds(evidence.features())))

    def hold_ms(self, probability: float, certainty: float) -> float:
        """Return the silence after which the turn is over with this certainty, ms."""
        if not certainty:
            return 0.0
        odds = probability / max(1 - probability, 1e-12)
        return self.pauses.exceeded_by(odds * (1 - certainty) / certainty)


@cache
def shipped() -> Over:
    """Return the fitted model that ships with turngap, read once a process."""
    return Over.shipped("turngap_services.turn", "over.json")
