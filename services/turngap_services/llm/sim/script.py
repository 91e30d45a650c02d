"""What the simulated model says, and when: pure functions of the conversation and the seed."""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rapidfuzz import fuzz

from turngap.core.clock import NS_PER_MS, NS_PER_S
from turngap_services.llm.sim.calls import filled
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


@dataclass(frozen=True, slots=True)
class Line:
    """A turn of a scenario: what is said, what was said before it, what is called and replied."""

    said: str
    before: str | None
    reply: str | None
    calls: tuple["Call", ...] = ()


def lines(scenarios: Iterable["Scenario"]) -> tuple[Line, ...]:
    """Every turn of every scenario, its texts reduced to their spoken words."""
    found: list[Line] = []
    for scenario in scenarios:
        before: str | None = None
        for turn in scenario.turns:
            said = _plain(turn.say)
            found.append(Line(said, before, turn.reply, turn.calls))
            before = said
    return tuple(found)


def reply_to(
    heard: Sequence[str],
    script: Sequence[Line],
    default: str,
    results: Mapping[str, Any] | None = None,
) -> str:
    """The reply of the turn that is most like what was heard last.

    Args:
        heard: what the user said, turn by turn, the last one last; not empty.
        script: the turns there are.
        default: what is said where none is like it, or the one that is has no reply, or needs what
            no tool gave.
        results: what the tools gave that were called for it, by key.
    """
    line = line_for(heard, script)
    if line is None or line.reply is None:
        return default
    return (filled(line.reply, results or {}) or default) if line.calls else line.reply


def line_for(heard: Sequence[str], script: Sequence[Line]) -> Line | None:
    """The turn that is most like what was heard last; `heard` is not empty."""
    last = _plain(heard[-1])
    before = _plain(heard[-2]) if len(heard) > 1 else None
    best: tuple[float, Line] | None = None
    for line in script:
        likeness = fuzz.ratio(last, line.said) / 100
        if likeness < FLOOR:
            continue
        score = likeness + _IN_PLACE * _placed(before, line.before)
        if best is None or score > best[0]:
            best = (score, line)
    return None if best is None else best[1]


def _placed(before: str | None, expected: str | None) -> float:
    """How well what was heard before fits the turn's place in its scenario, 0 to 1."""
    if before is None or expected is None:
        return float(before is expected)
    return fuzz.ratio(before, expected) / 100


def _plain(text: str) -> str:
    return " ".join(spoken_words(text))


def tokens(text: str) -> list[str]:
    """`text` in pieces that join to it again, each with the space before it."""
    return _TOKEN.findall(text)


class PromptCache:
    """How much of a prompt is still to be read: all behind what it shares with the last one."""

    def __init__(self) -> None:
        self._read: list[str] = []

    def unread(self, prompt: Sequence[str]) -> int:
        """How many tokens of `prompt` were not read before."""
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(self._read, prompt, strict=False))
        return len(prompt) - sum(1 for _ in shared)

    def read(self, prompt: Sequence[str]) -> None:
        """The whole of `prompt` has been read."""
        self._read = list(prompt)


def due_ns(
    start_ns: int, *, key: str, ttft_ms: float, tokens_per_s: float, jitter: float
) -> Iterator[int]:
    """Absolute instants at which the first, second, … token is due.

    Args:
        start_ns: the request.
        key: all that the jitter depends on, as text.
        ttft_ms: median time to the first token.
        tokens_per_s: inverse of the median time between tokens.
        jitter: sigma of the lognormal factor on each time.
    """
    random_ = random.Random(key)  # seeded by SHA-512 of the text: the same in every process
    at = start_ns + ttft_ms * NS_PER_MS * random_.lognormvariate(0, jitter)
    while True:
        yield round(at)
        at += NS_PER_S / tokens_per_s * random_.lognormvariate(0, jitter)
