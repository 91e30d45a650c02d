"""Split text to be spoken piece by piece: behind clauses, and behind words. Pure."""

import re
from dataclasses import dataclass

# Short of this a clause is choppy to hear.
MIN_WORDS = 2

ABBREVIATIONS = frozenset({"dr.", "mr.", "mrs.", "ms.", "st.", "no.", "vs."})

# Words after which no one pauses: a piece that ends with one sounds torn.
_LEADING = re.compile(
    "an?|the|this|that|these|those|my|your|our|their|its|his|her|and|or|but|nor|if|as|of|to|in|on|"
    "at|by|for|from|with|into|than|is|are|was|were|be|been|am|will|would|can|could|should|may|do|"
    "does|did|has|have|had|not|no|very|so|too|about|i|you|he|she|it|we|they"
)

_CLOSERS = "\"'”’)\\]"
ENDING = re.compile(rf"[.!?;:,…]+[{_CLOSERS}]*(?=\s|$)")
_INITIALS = re.compile(r"(?:[^\W\d_]\.)+")  # p.m., e.g., U.S.; and their first half, "p."
# What is left of an ending that came in several tokens, as "..." does.
_LEFTOVER = re.compile(rf"^[.!?;:,…{_CLOSERS}]+(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Cut:
    """A place at which waiting text may be parted.

    Attributes:
        end: index behind its last character.
        words: whole words before it.
        clause: whether a clause ends there.
        dangling: whether the word before leads on to the next ("the", "to").
        ends_reply: whether it is the end of the whole reply.
    """

    end: int
    words: int
    clause: bool
    dangling: bool
    ends_reply: bool


def cuts(text: str, *, ended: bool) -> list[Cut]:
    """Behind each word of `text` that is whole, in order.

    The last word is whole once a space, a mark or the end of the reply (`ended`) follows it.
    """
    found: list[Cut] = []
    for number, word in enumerate(re.finditer(r"\S+", text), start=1):
        last = word.end() == len(text)
        spelled = word.group()
        closed = ENDING.search(spelled) is not None
        clause = closed and not is_abbreviation(spelled)
        if last and not ended and (not clause or may_be_in_a_number(spelled)):
            break
        dangling = _LEADING.fullmatch(spelled.lower()) is not None
        found.append(Cut(word.end(), number, clause, dangling, ends_reply=last and ended))
    return found


def parted(text: str) -> list[str]:
    """Split a whole `text` into clauses; one shorter than MIN_WORDS is joined to the next."""
    text = text.strip()  # or the space behind the last word would be the end, and not the word
    pieces: list[str] = []
    begun = words = 0
    for cut in cuts(text, ended=True):
        if cut.ends_reply or (cut.clause and cut.words - words >= MIN_WORDS):
            pieces.append(text[begun : cut.end].strip())
            begun, words = cut.end, cut.words
    return pieces


def ends_clause(text: str) -> bool:
    """Return whether `text` ends where people pause."""
    ending = re.search(rf"[.!?;:,…]+[{_CLOSERS}]*$", text.strip())
    return ending is not None and not is_abbreviation(text.rsplit(maxsplit=1)[-1])


def without_leftover(text: str) -> str:
    """Strip from text that follows a piece the marks that belong to that piece's ending."""
    return _LEFTOVER.sub("", text)


def may_be_in_a_number(word: str) -> bool:
    """Return whether the mark that ends `word` may be part of a number: "3." may become "3.5"."""
    return len(word) > 1 and word[-1] in ".,:" and word[-2].isdigit()


def is_abbreviation(word: str) -> bool:
    """Return whether the full stop at the end of `word` belongs to it: "Dr.", "p.m."."""
    lower = word.lower()
    return lower in ABBREVIATIONS or (lower != "i." and _INITIALS.fullmatch(lower) is not None)
