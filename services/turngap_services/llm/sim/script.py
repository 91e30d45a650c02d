"""What the simulated model says, and when: pure functions of the conversation and the seed."""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rapidfuzz import fuzz

from turngap.core.clock import NS_PER_MS, NS_PER_S
from turngap_services.text import spoken_words

if TYPE_CHECKING:
    from turngap.scenario.model import Call, Scenario

# Likeness of two texts: rapidfuzz's normalised indel similarity of their spoken words, 0 to 1. The
# library's 34 sentences with one word in five replaced at random keep 0.71 (lowest 1 % of 1,700);
# two different ones reach 0.58 at most, but for two ways of asking a price (0.70).
FLOOR = 0.6
# What the right place in a conversation adds: it decides between equal sentences of two scenarios,
# it never outweighs a clearly better match.
_IN_PLACE = 0.15

# 1.5 pieces a word over the library's replies, marks counted: like a byte-pair tokeniser, a common
# word is one piece with the space before it, a long one is several.
_TOKEN = re.compile(r"\s*(?:[^\W_]{1,6}|[^\w\s]|_)|\s+$")
_PLACE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class LibraryTurn:
    """A turn of a scenario: what is said, what was said before it, what is called and replied."""

    said: str
    before: str | None
    reply: str | None
    calls: tuple["Call", ...] = ()


def library_turns(scenarios: Iterable["Scenario"]) -> tuple[LibraryTurn, ...]:
    """Return every turn of every scenario, with what is said reduced to spoken words."""
    found: list[LibraryTurn] = []
    for scenario in scenarios:
        before: str | None = None
        for turn in scenario.turns:
            said = _plain(turn.say)
            found.append(LibraryTurn(said, before, turn.reply, turn.calls))
            before = said
    return tuple(found)


def reply_to(
    heard: Sequence[str],
    script: Sequence[LibraryTurn],
    default: str,
    results: Mapping[str, Any] | None = None,
) -> str:
    """Return the reply of the turn that is most like what was heard last.

    Args:
        heard: what the user said, turn by turn; not empty.
        script: the turns to choose from.
        default: the reply if no turn is like it, or that turn has no reply, or the reply needs a
            result that no tool gave.
        results: what the tools that were called for it gave, by key.
    """
    turn = turn_for(heard, script)
    if turn is None or turn.reply is None:
        return default
    return (filled(turn.reply, results or {}) or default) if turn.calls else turn.reply


def turn_for(heard: Sequence[str], script: Sequence[LibraryTurn]) -> LibraryTurn | None:
    """Return the turn that is most like what was heard last; `heard` is not empty."""
    last = _plain(heard[-1])
    before = _plain(heard[-2]) if len(heard) > 1 else None
    best: tuple[float, LibraryTurn] | None = None
    for turn in script:
        likeness = fuzz.ratio(last, turn.said) / 100
        if likeness < FLOOR:
            continue
        score = likeness + _IN_PLACE * _placed(before, turn.before)
        if best is None or score > best[0]:
            best = (score, turn)
    return None if best is None else best[1]


def _placed(before: str | None, expected: str | None) -> float:
    """Return how well what was heard before fits the turn's place in its scenario, 0 to 1."""
    if before is None or expected is None:
        return float(before is expected)
    return fuzz.ratio(before, expected) / 100


def _plain(text: str) -> str:
    return " ".join(spoken_words(text))


def filled(reply: str, results: Mapping[str, Any]) -> str | None:
    """Return the reply with each `{key}` replaced by the tools' result; None if one is missing."""
    if not set(_PLACE.findall(reply)) <= results.keys():
        return None
    return _PLACE.sub(lambda place: str(results[place[1]]), reply)


def tokens(text: str) -> list[str]:
    """Split `text` into pieces that join to it again, each with the space before it."""
    return _TOKEN.findall(text)


class PromptCache:
    """The last prompt, whose common beginning with the next one need not be read again."""

    def __init__(self) -> None:
        self._read: list[str] = []

    def unread(self, prompt: Sequence[str]) -> int:
        """Return how many tokens of `prompt` come after what it shares with the last one."""
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(self._read, prompt, strict=False))
        return len(prompt) - sum(1 for _ in shared)

    def read(self, prompt: Sequence[str]) -> None:
        self._read = list(prompt)


def due_ns(
    start_ns: int, *, key: str, ttft_ms: float, tokens_per_s: float, jitter: float
) -> Iterator[int]:
    """Yield the instants at which the first, second, … token is due.

    Args:
        start_ns: when the request was made.
        key: everything that the jitter depends on, as text.
        ttft_ms: median time to first token.
        tokens_per_s: inverse of the median time between tokens.
        jitter: sigma of the lognormal factor on each time.
    """
    random_ = random.Random(key)  # seeded by SHA-512 of the text: the same in every process
    at = start_ns + ttft_ms * NS_PER_MS * random_.lognormvariate(0, jitter)
    while True:
        yield round(at)
        at += NS_PER_S / tokens_per_s * random_.lognormvariate(0, jitter)
