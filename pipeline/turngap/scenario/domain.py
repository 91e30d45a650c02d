"""What can be said to an agent that was made from a library: its topics, and sentences to read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turngap.scenario.library import EXTRA, library_dir, library_paths, read_scenario

# As many topics as people listen to, and remember.
TOPICS_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Domain:
    """What a closed-domain agent knows.

    Attributes:
        topics: what the person may ask for, as it follows "I can help with".
        examples: sentences to read aloud, each of which opens a conversation.
    """

    topics: tuple[str, ...]
    examples: tuple[str, ...]

    def offer(self, times: int) -> str:
        """Return what to answer if the person said something else `times` times in a row before.

        The first time it names topics. After that it names others, and says a sentence to try.
        """
        chosen = _from(self.topics, times * TOPICS_AT_ONCE, TOPICS_AT_ONCE)
        with_what = f"{', '.join(chosen)} and more" if chosen else "a few things only"
        offer = f"I can help with {with_what}."
        if times == 0 and chosen:
            return offer
        return " ".join([offer, *(f"Try: {text}." for text in _from(self.examples, times, 1))])


def domain_of(library: Path | None) -> Domain:
    """Return what the people of a library talk about: what is played by default comes first.

    Raises:
        InputError: there is no library, or a scenario in it cannot be read.
    """
    every = [read_scenario(path) for path in library_paths(library_dir(library))]
    every.sort(key=lambda scenario: EXTRA in scenario.tags)
    topics = dict.fromkeys(scenario.topic for scenario in every if scenario.topic)
    openers = dict.fromkeys(scenario.turns[0].say for scenario in every)
    return Domain(tuple(topics), tuple(openers))


def _from(items: Sequence[str], start: int, count: int) -> list[str]:
    """Return `count` items from `start` on, beginning anew behind the last, none of them twice."""
    return [items[(start + n) % len(items)] for n in range(min(count, len(items)))]
