"""The same turns, taken by two agents."""

from collections.abc import Mapping
from dataclasses import dataclass

from turngap.core.budget import Outcome

# Shifts up to this are real on a quiet machine and matter to nobody.
TOLERANCE_MS = 3.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One turn as one agent took it. `gap_ms` is None without a reply; `stages` in ms by name."""

    outcome: Outcome
    gap_ms: float | None
    stages: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same turn taken by both. `key`: scenario, turn, and what tells its conversation apart."""

    key: tuple[str | int | float, ...]
    reference: Reading
    candidate: Reading

    @property
    def conversation(self) -> tuple[str | int | float, ...]:
        """The conversation that the turn belongs to."""
        return (*self.key[:1], *self.key[2:])


@dataclass(frozen=True, slots=True)
class Limits:
    """The smallest regression that must not pass unseen, per metric."""

    p50_ms: float = 30.0
    p95_ms: float = 100.0
    hit_rate: float = 0.10
