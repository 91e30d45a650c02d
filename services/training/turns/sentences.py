"""The sentences of both sets, with the places where people stop to think.

`fit.txt` and `judge.txt` were written separately, a sentence a line. A sign marks each place where
a speaker may pause, by the kind of words before it:

    =   a whole sentence: the hardest place
    |   a phrase or clause that is not one
    >   a function word, as "for", "and", "the"
    #   the middle of a number, a code or a spelled name
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

Kind = Literal["whole", "phrase", "function", "digits"]
SetName = Literal["fit", "judge"]
SETS: tuple[SetName, ...] = get_args(SetName)

_KINDS: dict[str, Kind] = {"=": "whole", "|": "phrase", ">": "function", "#": "digits"}
# Questions that begin with one of these ask for a fact and mostly end on a fall; others ask for a
# yes or no and mostly end on a rise.
_FACTS = ("what", "where", "when", "who", "which", "how", "why")


@dataclass(frozen=True, slots=True)
class Sentence:
    """The sentence of one turn.

    Attributes:
        parts: the words between the places, without punctuation.
        places: what lies between two neighbouring parts: one fewer than parts.
        asks: whether it is a question, and for what.
    """

    parts: tuple[str, ...]
    places: tuple[Kind, ...]
    asks: Literal["nothing", "yes or no", "a fact"]

    @property
    def words(self) -> str:
        """Return all of its words."""
        return " ".join(self.parts)


@cache
def sentences(set_name: SetName) -> tuple[Sentence, ...]:
    """Return the sentences of one set, in the order of its file."""
    lines = Path(__file__).with_name(f"{set_name}.txt").read_text(encoding="utf-8").splitlines()
    return tuple(_parsed(line) for line in lines)


def _parsed(line: str) -> Sentence:
    pieces = re.split(r"\s*([=|>#])\s*", line.rstrip(".?"))
    asks = "nothing"
    if line.endswith("?"):
        asks = "a fact" if line.startswith(_FACTS) else "yes or no"
    return Sentence(tuple(pieces[::2]), tuple(_KINDS[sign] for sign in pieces[1::2]), asks)
