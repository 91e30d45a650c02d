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
class Phase:
    """A stretch of training with its own data and learning rate.

    Attributes:
        start: the first step.
        end: the step after the last one.
        decay_from: the step from which the rate falls to zero in a straight line.
        teacher_rate: the teacher's until then.
        student_rate: the student's; 0 leaves it as it is, and the time to the teacher.
        hard: more of the dialogues in which something has to be looked up or worked out.
    """

    start: int
    end: int
    decay_from: int
    teacher_rate: float
    student_rate: float
    hard: bool


@dataclass(frozen=True, slots=True)
class Recipe:
    """Settings of one training run.

    The lengths are those of the run that made the shipped models, on the time that a shared
    machine had for it; both models were still getting better.

    Attributes:
        seed: decides the data, its order, and both models' first weights.
        phases: one after another; a step sees about `batch_tokens` tokens.
        warmup: steps over which the rate rises at the beginning of each phase.
        batch_tokens: tokens a step, padding included, at most.
        weight_decay: of the matrices inside the layers.
        soft_share: of the student's loss, what comes from the teacher's distribution instead of
            the right answer while the rate falls. Before, it is smaller by `step / soft_ramp`,
            because a teacher that is still learning beside the student has little to say.
        temperature: both distributions are flattened by it before they are compared.
    """

    seed: int = 7
    teacher: Shape = field(default_factory=lambda: Shape(256, 4, 704))
    student: Shape = field(default_factory=lambda: Shape(128, 4, 384))
    # Muon stood a rate of 6e-3 here where AdamW was best at 3e-3, and was after 200 steps where
    # AdamW is after 300.
    phases: tuple[Phase, ...] = (
        Phase(0, 1550, decay_from=1163, teacher_rate=6e-3, student_rate=6e-3, hard=False),
        Phase(1550, 2911, decay_from=2571, teacher_rate=2.5e-3, student_rate=4e-3, hard=True),
    )
    warmup: int = 50
    batch_tokens: int = 2048
    weight_decay: float = 0.05
    soft_share: float = 0.7
    soft_ramp: int = 3000
    temperature: float = 1.5

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return asdict(self)

    @property
    def steps(self) -> int:
        """Optimiser steps altogether."""
        return self.phases[-1].end

    def phase_at(self, step: int) -> Phase:
        """The phase that a step belongs to."""
        return next(phase for phase in self.phases if step < phase.end)

    def height_at(self, step: int) -> float:
        """The factor on its phase's learning rates at a step, 0 to 1."""
        phase = self.phase_at(step)
        if step < phase.start + self.warmup:
            return (step - phase.start + 1) / self.warmup
        if step < phase.decay_from:
            return 1.0
        return (phase.end - step) / (phase.end - phase.decay_from)

    def soft_at(self, step: int) -> float:
        """The share of the student's loss that comes from the teacher at a step."""
        if step >= self.phase_at(step).decay_from:
            return self.soft_share
        return self.soft_share * min(1.0, step / self.soft_ramp)
