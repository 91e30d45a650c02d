"""Whether a text says a phrase, whatever its case and punctuation; numbers in words or digits."""

import re
import unicodedata
from collections.abc import Callable
from itertools import takewhile

from text_to_num import alpha2digit  # type: ignore[import-untyped]

# Arguments: text, language, and the number up to which a lone number word stays a word.
_in_digits: Callable[[str, str, float], str] = alpha2digit  # type: ignore[assignment]

_INITIALS = re.compile(r"\b(?:[a-z]\.){2,}")
_ONE_OF = re.compile(r"\ban? (?=hundred\b|thousand\b|million\b)")
_GROUPED = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)\b")
_TOKEN = re.compile(r"\d+|[^\W\d_]+")


def tokens(text: str) -> list[str]:
    """Return the words of `text` as they are compared: "Table four, 7:30" gives table, 4, 7, 30.

    text2num turns English number words into digits, each number by itself: "forty two" is 42, "four
    two" is 4 2, "the twelfth" is the 12.
    """
    folded = unicodedata.normalize("NFKD", text.lower())
    plain = "".join(c for c in folded if not unicodedata.combining(c) and c not in "'’")
    plain = _INITIALS.sub(lambda m: m.group().replace(".", "") + " ", plain)
    # 0: numbers below four become digits, too, whatever stands beside them.
    digits = _in_digits(_ONE_OF.sub("one ", plain), "en", 0)
    return _with_zeros(_TOKEN.findall(_ORDINAL.sub("", _GROUPED.sub("", digits))))


def says(text: str, phrase: str) -> bool:
    """Return whether the words of `phrase` stand in `text`, one after the other.

    Numbers that follow one another are compared only by their digits, from the beginning of one
    number to the end of one: "four seven one" says "471", "seven thirty" says "7:30", and "47" does
    not say "7". A phrase without a word is in no text.
    """
    wanted, said = tokens(phrase), tokens(text)
    return bool(wanted) and any(_begins(said[at:], wanted) for at in range(len(said)))


def _with_zeros(found: list[str]) -> list[str]:
    """Read "oh" between digits as 0: in "eight three oh six", but not in "oh, I see"."""
    inside = range(1, len(found) - 1)
    zeros = {i for i in inside if found[i] in ("oh", "o")}
    return [
        "0" if i in zeros and found[i - 1].isdigit() and found[i + 1].isdigit() else token
        for i, token in enumerate(found)
    ]


def _begins(said: list[str], wanted: list[str]) -> bool:
    while wanted:
        numbers = list(takewhile(str.isdigit, wanted))
        if not numbers:
            if not said or said[0] != wanted[0]:
                return False
            said, wanted = said[1:], wanted[1:]
            continue
        digits, wanted = "".join(numbers), wanted[len(numbers) :]
        while digits:
            if not said or not said[0].isdigit() or not digits.startswith(said[0]):
                return False
            digits, said = digits[len(said[0]) :], said[1:]
    return True
