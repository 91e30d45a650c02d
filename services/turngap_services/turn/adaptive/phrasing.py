"""Decides from the words so far whether a person has finished. English; pure.

The rules look only at the end of the text, as a recogniser without punctuation gives it. They
cannot know that a complete sentence goes on; the hold after a complete sentence is for that.
"""

import re
from typing import Literal

Phrase = Literal["nothing", "complete", "unsure", "number", "open", "hesitation"]

_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*|\d+")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_DIGITS = _set("zero oh o one two three four five six seven eight nine double triple")
# Digits that are read out: a phone number, a code. One digit alone is an answer, and numbers are
# read in groups of two and three: up to three digits are a beginning.
_DICTATED = 2
_BEGUN = 3

_FILLERS = _set("um umm uhm uh er erm ehm hm hmm mm mmm ah eh")
_FILLER_PAIRS = frozenset({"you know", "i mean", "let's see", "me see", "me think", "or rather"})
# While the other person speaks, these ask for nothing.
_BACKCHANNELS = _set(
    "mm mmm mhm hm hmm uh huh ah oh yeah yep yes yup right okay ok sure good great cool nice wow "
    "really indeed exactly true alright"
)
_BACKCHANNEL_PHRASES = frozenset({"i see", "got it", "of course", "all right", "go on", "uh huh"})
# While the other person speaks, each of these alone asks for silence.
_HALTS = _set("stop wait no hold pause quiet enough cancel hey hello sorry excuse help actually")
# After other words, these take back what was said: the correction is on its way.
_CORRECTIONS = _set("no sorry wait actually rather oops")

# Nobody ends on these.
_DANGLING = _set(
    "and or but because so if as although unless until while whether "  # conjunctions
    "a an the my your his her its our their "  # determiners
    "at into onto under between during without against among toward towards upon per via "
    "i'm i'd i'll i've we're we'd we'll we've you're you'd you'll they're they'd it's that's "
    "there's what's who's where's how's let's been very quite"
)
# Nobody ends on these except in a question ("what is it for") or as half of a verb ("turn it to").
_PREPOSITIONS = _set("to of for with from about by in like than")
_QUESTION = _set("what who whom whose which where when why how")
# Nobody ends on these except in a short answer ("yes i do") or behind a question ("where it is").
_AUXILIARIES = _set(
    "is are was were am be do does did have has had can could will would should shall may might "
    "must i we he she they need want"
)

# After one of these, "that" points at a thing.
_POINTING = _PREPOSITIONS | _set(
    "is was are were isn't wasn't do does did doing done at on into get got have take want need "
    "see say said know mean think add change cancel send buy try make keep all just after before"
)
# Followed by "to", these begin a wish.
_WISHES = _set("like want need love going have trying")


def is_backchannel(text: str) -> bool:
    """Return whether these words, said while the other person speaks, only mean "go on"."""
    words = _words(text)
    rest = " ".join(words)
    for phrase in _BACKCHANNEL_PHRASES:
        rest = rest.replace(phrase, " ")
    return bool(words) and set(rest.split()) <= _BACKCHANNELS


def asks(text: str, least_words: int) -> bool:
    """Return whether these words, said while the other person speaks, want to be heard.

    `least_words` different words do, and single ones that ask for silence. Anything less may be a
    cough, in which a recogniser without rejection reads "five five".
    """
    words = set(_words(text))
    return not is_backchannel(text) and (len(words) >= least_words or bool(words & _HALTS))


def same_words(one: str, other: str) -> bool:
    """Return whether two transcripts differ only in punctuation and capitals."""
    return _words(one) == _words(other)


def phrase_of(text: str) -> Phrase:
    """Classify what was said so far.

    - `complete`: it may be all;
    - `unsure`: it is as likely all as not;
    - `number`: digits are being read out, and there may be more;
    - `open`: it cannot be all;
    - `hesitation`: the person is looking for words, or takes some back;
    - `nothing`: no words yet.
    """
    words = _words(text)
    if not words:
        return "nothing"
    last, before = words[-1], words[:-1]
    if last in _FILLERS or " ".join(words[-2:]) in _FILLER_PAIRS:
        return "hesitation"
    if last in _CORRECTIONS and before:
        # "no sorry" may be all of a refusal, "on tuesday no sorry" never is.
        return "unsure" if set(before) <= _CORRECTIONS else "hesitation"
    if (digits := _dictated(words)) >= _DICTATED:
        return "open" if digits <= _BEGUN else "number"
    return _ending(words[0], before, last)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower().replace("’", "'"))


def _dictated(words: list[str]) -> int:
    """Return how many digits were read out last."""
    run = 0
    for word in reversed(words):
        if word in _DIGITS or (word.isdigit() and len(word) == 1):
            run += 1
        elif word.isdigit():
            run += len(word) if len(word) > 2 else 1
        else:
            break
    return run


def _ending(first: str, before: list[str], last: str) -> Phrase:
    if last in _DANGLING:
        return "open"
    if last == "that":
        # "how much is that" is all; "is there a train that" begins a clause.
        return "complete" if not before or before[-1] in _POINTING else "open"
    if len(before) > 1 and before[-1] == "to" and before[-2] in _WISHES:
        return "unsure"  # "I'd like to order": a whole wish, or half of one
    if last in _PREPOSITIONS:
        asks = first.partition("'")[0] in _QUESTION and len(before) > 1
        return "complete" if asks else "open"
    if last in _AUXILIARIES:
        return "unsure" if before else "open"
    return "complete"
