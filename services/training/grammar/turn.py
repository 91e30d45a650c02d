"""A turn of a dialogue, what makes its answer right, and which side of the split it is on."""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

# One content in eight is held out: enough for a narrow interval, and seven in eight are left to
# learn from.
_HELD_OUT_OF = 8
# A wide choice misses a side that has an eighth of it 200 times running once in 4e11.
_TRIES = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange.

    Attributes:
        user: what the person says, as a recogniser writes it: lower case, no punctuation.
        reply: the one reply that the grammar has for it.
        skill: the skill that it tests.
        content: the values that decide the reply; None where there is nothing to hold out
            (a greeting). Only turns with a content are scored.
        must: groups of phrases; a right answer has at least one phrase of every group.
        forbid: phrases that a right answer has none of.
    """

    user: str
    reply: str
    skill: str
    content: tuple[str, ...] | None = None
    must: tuple[tuple[str, ...], ...] = ()
    forbid: tuple[str, ...] = ()


@dataclass(slots=True)
class Maker:
    """Sources of a scene: random choices, the side of the split, and the facts it needs.

    Attributes:
        random: the dialogue's own generator.
        holding: whether contents are drawn from the held-out side.
        thorough: whether a scene asks all that it can ask, for training: a prompt that has been
            read once then has many answers to learn from.
        facts: lines for the system prompt, by topic: a topic holds one truth only.
        person: the names by which the person has introduced themselves, if any.
    """

    random: random.Random
    holding: bool
    thorough: bool = False
    facts: dict[str, str] = field(default_factory=dict)
    person: tuple[str, ...] | None = None

    def pick(self, options: Sequence[T]) -> T:
        """Pick one of the options."""
        return self.random.choice(options)

    def draw(self, kind: str, values: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        """Draw a content `(kind, *values)` on the chosen side of the split.

        Raises:
            LookupError: `values` gives no content on that side.
        """
        content = self.draw_if_any(kind, values)
        if content is None:
            raise LookupError(f"no content of kind {kind!r} is on this side of the split")
        return content

    def draw_if_any(
        self, kind: str, values: Callable[[], tuple[str, ...]]
    ) -> tuple[str, ...] | None:
        """Draw from a few options; return None if none is on this side of the split."""
        for _ in range(_TRIES):
            if held_out(content := (kind, *values())) == self.holding:
                return content
        return None


def held_out(content: Sequence[str]) -> bool:
    """Return whether a content is kept out of training: by its hash, the same everywhere."""
    digest = hashlib.blake2b("|".join(content).encode(), digest_size=4).digest()
    return int.from_bytes(digest) % _HELD_OUT_OF == 0
