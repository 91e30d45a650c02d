"""Recipe of both models: every choice that decides the result, in one place."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's size. Heads are 64 wide, which every engine has a kernel for."""

    width: int
    layers: int
    hidden: int

    @property
    def heads(self) -> int:
        """Return the number of attention heads."""
        return self.width // 64


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of training with its own data and learning rate.

    Attributes:
        steps: its length; a step sees about `batch_tokens` tokens.
        rate: the learning rate.
        falling: the number of last steps in which the rate falls to zero in a straight line.
        hard: more of the dialogues in which something has to be looked up or worked out.
        thorough: the share of dialogues, 0 to 1, in which a scene asks all that it can.
        soft_share: the share of the loss that comes from the teacher's distribution over every next
            token instead of the right answer; the teacher does not learn meanwhile.
    """

    steps: int
    rate: float
    falling: int = 0
    hard: bool = True
    thorough: float = 0.0
    soft_share: float = 0.0

    def rate_at(self, step: int, warmup: int) -> float:
        """Return the learning rate at a step of this phase, counted from 0."""
        rising = min(1.0, (step + 1) / warmup)
        left = self.steps - step
        return self.rate * rising * (min(1.0, left / self.falling) if self.falling else 1.0)


@dataclass(frozen=True, slots=True)
class Course:
    """The training stages of one model."""

    shape: Shape
    phases: tuple[Phase, ...]

    @property
    def steps(self) -> int:
        """Return the number of optimiser steps."""
        return sum(phase.steps for phase in self.phases)

    def at(self, step: int) -> tuple[int, int]:
        """Return the number of the phase that a step belongs to, and the step within that phase.

        Raises:
            IndexError: the course is over by then.
        """
        number = 0
        while step >= self.phases[number].steps:
            step -= self.phases[number].steps
            number += 1
        return number, step


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one training run.

    The lengths are those of the run that made the shipped models. They fit the time that a shared
    machine had.

    Attributes:
        seed: decides the data, its order, and both models' first weights.
        teacher: trained first.
        student: learns the right answers and the teacher's words.
        warmup: steps over which the rate rises at the beginning of each phase.
        batch_tokens: the most tokens in a step, padding included.
        weight_decay: the weight decay of the matrices inside the layers.
        temperature: flattens both distributions before they are compared.
    """

    seed: int = 7
    # At 6e-3 a teacher of this width had fewer right than at 3e-3; the student's width bears it.
    teacher: Course = field(
        default_factory=lambda: Course(
            Shape(256, 4, 704),
            (Phase(9500, 3e-3, falling=3500, thorough=0.6),),
        )
    )
    student: Course = field(
        default_factory=lambda: Course(
            Shape(128, 4, 384),
            (Phase(3000, 6e-3, falling=1000, thorough=0.3, soft_share=0.7),),
        )
    )
    warmup: int = 50
    batch_tokens: int = 2048
    weight_decay: float = 0.05
    temperature: float = 1.5

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)

    def course(self, name: str) -> Course:
        """Return the course of `teacher` or `student`."""
        return {"teacher": self.teacher, "student": self.student}[name]

    def scaled(self, share: float) -> "Recipe":
        """Shorten every phase of the recipe to a share of it, for a trial."""
        return replace(
            self, teacher=_scaled(self.teacher, share), student=_scaled(self.student, share)
        )


def _scaled(course: Course, share: float) -> Course:
    phases = (
        replace(p, steps=max(1, round(p.steps * share)), falling=round(p.falling * share))
        for p in course.phases
    )
    return replace(course, phases=tuple(phases))
