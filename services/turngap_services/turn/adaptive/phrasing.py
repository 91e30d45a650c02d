"""What English words say about a person's turn: whether more is to come, and what is meant. Pure.

Everything here is a closed class of the language. It looks at the end of the text, as a recogniser
without punctuation gives it. What each class says about the turn's end is fitted (`over.py`).
"""

import re
from typing import Literal

from turngap.core.spoken import OUT_OF_DOMAIN

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# What the end of the words so far looks like; the first that fits.
Ending = Literal[
    "nothing", "filler", "correction", "digit", "digits", "number", "link", "preposition",
    "auxiliary", "reaching", "polite", "answer", "question", "statement",
]  # fmt: skip

_DIGITS = _set("zero oh o one two three four five six seven eight nine double triple")
# Numbers are read in groups of two to four: so many digits may be a group, more are several.
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
# goes on behind them: "the reason is that", "what I mean is that".
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
    """Return whether these words, said while the other person speaks, want to be heard.

    `least_words` different words do, and single ones that ask for silence. Anything less may be a
    cough, in which a recogniser without rejection reads "five five", and one with it nothing known.
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
    """Return what the end of the words so far looks like.

    - `nothing`: there are none;
    - `filler`, `correction`: the person looks for words, or takes some back;
    - `digit`, `digits`, `number`: one digit, up to a group of them, or more, are read out;
    - `link`, `preposition`, `auxiliary`, `reaching`: words that others mostly follow;
    - `polite`, `answer`: "please" and the like, and short answers on their own;
    - `question`: words that began as a question;
    - `statement`: anything else.
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
    """Return how many digits or letters were read out last."""
    run = 0
    for word in reversed(words):
        if word in _DIGITS or (len(word) == 1 and word not in "ai"):
            run += 1
        elif word.isdigit():
            run += len(word) if len(word) > 2 else 1
        else:
            break
    return run
