"""How both models are trained: every choice that decides the result, in one place."""

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's size. Heads are 64 wide, which every engine has a kernel for."""

    width: int
    layers: int
    hidden: int

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.width // 64


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one training run.

    Attributes:
        seed: decides the data, its order, and both models' first weights.
        steps: optimiser steps.
        decay_from: the step from which the learning rate falls to zero in a straight line.
        warmup: steps over which it rises.
        batch_tokens: tokens a step, padding included, at most.
        rate: peak learning rate. Muon stood 6e-3 here where AdamW was best at 3e-3, and after 200
            steps was where AdamW is after 300.
        weight_decay: of the matrices inside the layers.
        soft_share: of the student's loss, the most that comes from the teacher's distribution
            instead of the right answer; reached in a straight line at `decay_from`, because a
            teacher that is still learning beside the student has little to say at first.
        temperature: both distributions are flattened by it before they are compared.
    """

    seed: int = 7
    teacher: Shape = field(default_factory=lambda: Shape(256, 4, 704))
    student: Shape = field(default_factory=lambda: Shape(128, 4, 384))
    steps: int = 4000
    decay_from: int = 3000
    warmup: int = 50
    batch_tokens: int = 2048
    rate: float = 6e-3
    weight_decay: float = 0.05
    soft_share: float = 0.7
    temperature: float = 1.5

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)

    def rate_at(self, step: int) -> float:
        """The learning rate at a step."""
        if step < self.warmup:
            return self.rate * (step + 1) / self.warmup
        if step < self.decay_from:
            return self.rate
        return self.rate * max(0.0, (self.steps - step) / (self.steps - self.decay_from))

    def soft_at(self, step: int) -> float:
        """The share of the student's loss that comes from the teacher at a step."""
        return self.soft_share * min(1.0, step / self.decay_from)
