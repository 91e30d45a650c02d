"""Speculative decoding: a draft model proposes tokens, and the model checks them in one step."""

import random
from dataclasses import dataclass

from turngap.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Speculation:
    """How good the draft is and what it costs.

    Attributes:
        acceptance: probability that a proposed token is kept, given that those before it were.
        draft_tokens: tokens proposed in each step.
        draft_cost: time of a draft's step as a share of the model's own.
    """

    acceptance: float
    draft_tokens: int = 4
    draft_cost: float = 0.05

    def __post_init__(self) -> None:
        for name, low, high in (
            ("acceptance", 0.0, 1.0),
            ("draft_tokens", 1, 64),
            ("draft_cost", 0.0, 10.0),
        ):
            if not low <= getattr(self, name) <= high:
                raise InputError(
                    "inference.speculation",
                    f"speculation: {name} is {getattr(self, name)!r}, expected {low:g} to {high:g}",
                )

    @property
    def tokens_per_step(self) -> float:
        """Expected tokens in a step (Leviathan et al. 2023, eq. 1)."""
        if self.acceptance == 1:
            return self.draft_tokens + 1.0
        return (1 - self.acceptance ** (self.draft_tokens + 1)) / (1 - self.acceptance)

    def steps(self, tokens: int, key: str) -> list[int]:
        """Return how many tokens each step of one reply yields; they sum to `tokens`.

        The draws depend on `key` alone, so that a reply has the same luck in any batch.
        """
        random_ = random.Random(key)  # seeded by the text's SHA-512: the same in every process
        yields: list[int] = []
        left = tokens
        while left > 0:
            got = 1
            while got <= self.draft_tokens and random_.random() < self.acceptance:
                got += 1
            got = min(got, left)
            yields.append(got)
            left -= got
        return yields
