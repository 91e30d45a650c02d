"""What can be said to an agent that was made from a library: its topics, and sentences to read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from turngap.scenario.library import EXTRA, library_dir, library_paths
from turngap.scenario.parsing import read_scenario
from turngap.scenario.phrases import tokens

# As many topics as people listen to, and remember.
TOPICS_AT_ONCE = 3
# A text is near a sentence if rapidfuzz's normalised indel similarity of their words is at least
# this. It is above the nearest of the 100 sentences of services/training/unknown/fit.txt, which
# nobody says in the library (0.64). Of the 50 in judge.txt there, one is above it. The library's
# own with one word in five replaced at random stay above it: the lowest 1 % of 2,300 have 0.70.
NEAR = 0.65


@dataclass(frozen=True, slots=True)
class Domain:
    """The knowledge of a closed-domain agent.

    Attributes:
        topics: what the person may ask for, as it follows "I can help with", each with a sentence
            that asks for it.
        examples: sentences to read aloud, each of which opens a conversation.
        sentences: everything that is said in the library.
    """

    topics: Mapping[str, str]
    examples: tuple[str, ...]
    sentences: tuple[str, ...] = ()

    def offer(self, times: int) -> str:
        """Return what to answer if the person said something else `times` times in a row before.

        The first time it names topics. After that it names others, and says a sentence to try that
        asks for the first of them.
        """
        chosen = _from(tuple(self.topics), times * TOPICS_AT_ONCE, TOPICS_AT_ONCE)
        with_what = f"{', '.join(chosen)} and more" if chosen else "a few things only"
        offer = f"I can help with {with_what}."
        if times == 0 and chosen:
            return offer
        tries = [self.topics[chosen[0]]] if chosen else _from(self.examples, times, 1)
        return " ".join([offer, *(f"Try: {text}." for text in tries)])

    def knows(self, text: str) -> bool:
        """Return whether `text` is near a sentence of the library."""
        from rapidfuzz import fuzz, process

        known = [_words(sentence) for sentence in self.sentences]
        found = process.extractOne(_words(text), known, scorer=fuzz.ratio)
        return found is not None and found[1] >= NEAR * 100


def domain_of(library: Path | None) -> Domain:
    """Return what the people of a library talk about: what is played by default comes first.

    Raises:
        InputError: there is no library, or a scenario in it cannot be read.
    """
    every = [read_scenario(path) for path in library_paths(library_dir(library))]
    every.sort(key=lambda scenario: EXTRA in scenario.tags)
    topics: dict[str, str] = {}
    for scenario in every:
        if scenario.topic:
            topics.setdefault(scenario.topic, scenario.turns[0].say)
    openers = dict.fromkeys(scenario.turns[0].say for scenario in every)
    said = dict.fromkeys(turn.say for scenario in every for turn in scenario.turns)
    return Domain(topics, tuple(openers), tuple(said))


@lru_cache(maxsize=4096)  # of a whole library's sentences
def _words(text: str) -> str:
    return " ".join(tokens(text))


def _from(items: Sequence[str], start: int, count: int) -> list[str]:
    """Return `count` items from `start` on, beginning anew behind the last, none of them twice."""
    return [items[(start + n) % len(items)] for n in range(min(count, len(items)))]
