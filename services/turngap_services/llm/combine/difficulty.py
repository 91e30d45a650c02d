"""How hard a turn looks before anybody has answered it: a few points, each with its reason."""

import re
from collections.abc import Iterable, Sequence

LONG = 12
VERY_LONG = 25

_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")
_NUMBERS = """
    zero oh one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty
    ninety hundred thousand half quarter first second third fourth fifth twelfth
"""
_TAKEN_BACK = """
    no not never none nor without sorry actually instead rather except don't doesn't didn't can't
    cannot won't isn't wasn't aren't unless wait
"""
# Words that say nothing of what is talked about.
_COMMON = """
    a an the i i'd i'll i'm you we it it's that that's this these those is are was be been do does
    did have has had can could will would should may might my your our me us and or but so if of
    to in on at for from with by as up out about what which who when where why how many much some
    any please thanks thank okay yes well just like get make want need let all there here its now
    only
"""
NUMBERS, TAKEN_BACK, COMMON = (frozenset(t.split()) for t in (_NUMBERS, _TAKEN_BACK, _COMMON))


def difficulty(said: str, before: Sequence[str] = (), *, tools: bool = False) -> tuple[str, ...]:
    """Why the turn `said` looks hard, a point each; empty: it looks easy.

    Args:
        said: what the person says now.
        before: what was said in the conversation until then, by anybody.
        tools: whether the turn looks like one for a tool (`is_about`).

    `long` (over 12 words) and `very_long` (over 25): more is asked for. `tools`: the answer has
    to be looked up. `numbers`: digits or number words, where small models go wrong first.
    `negation`: a word that denies or takes something back. `new_topic`: none of the turn's content
    words was said before.
    """
    words = [word.lower().replace("’", "'") for word in _WORD.findall(said)]
    reasons = {
        "long": len(words) > LONG,
        "very_long": len(words) > VERY_LONG,
        "tools": tools,
        "numbers": any(c.isdigit() for c in said) or not NUMBERS.isdisjoint(words),
        "negation": not TAKEN_BACK.isdisjoint(words),
        "new_topic": _is_new(words, before),
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def is_about(said: str, tools: Iterable[str]) -> bool:
    """Whether the turn looks like one for a tool: it has a content word of theirs.

    Args:
        said: what the person says now.
        tools: what the tools say of themselves.
    """
    return not _content(said).isdisjoint(word for text in tools for word in _content(text))


def _content(text: str) -> set[str]:
    """Its content words; of "today's" and "tomorrow's", today and tomorrow."""
    words = (word.lower().replace("’", "'") for word in _WORD.findall(text))
    return {word.removesuffix("'s") for word in words} - COMMON


def _is_new(words: Sequence[str], before: Sequence[str]) -> bool:
    content = set(words) - COMMON
    if not before or not content:
        return False
    known = {w.lower().replace("’", "'") for text in before for w in _WORD.findall(text)}
    return content.isdisjoint(known)
