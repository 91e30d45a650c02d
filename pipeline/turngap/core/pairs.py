"""The same turns, taken by two agents."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from turngap.core.budget import Outcome, outcome_of

# Shifts up to this are real on a quiet machine and matter to nobody.
TOLERANCE_MS = 3.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One turn as one agent took it.

    Attributes:
        gap_ms: None without a reply.
        stages: in ms by name.
        budget_ms: the budget behind `outcome`; None where that is not known.
        caller_error_ms: by how much the gap may read long, since the caller was starved; 0 where it
            was not.
    """

    outcome: Outcome
    gap_ms: float | None
    stages: Mapping[str, float]
    budget_ms: float | None = None
    caller_error_ms: float = 0.0

    @property
    def starved(self) -> bool:
        """Whether the caller was later in this turn than its run accepts."""
        return self.caller_error_ms > 0

    @property
    def at_best(self) -> "Reading":
        """The turn at its quickest: as read, with all taken off that may be the caller's.

        A turn without a reply stays one: late packets delay an answer, they do not swallow it.
        """
        if not self.starved or self.gap_ms is None or self.gap_ms <= 0:
            return self
        if self.outcome not in ("answered", "late"):
            return self
        gap_ms = max(0.0, self.gap_ms - self.caller_error_ms)
        outcome = self.outcome
        if self.budget_ms is not None:
            outcome = outcome_of(gap_ms, self.budget_ms, "reply_done")
        return replace(self, outcome=outcome, gap_ms=gap_ms)


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

    @property
    def starved(self) -> bool:
        """Whether the caller was starved on either side."""
        return self.reference.starved or self.candidate.starved

    @property
    def in_doubt_for(self) -> "Pair":
        """The candidate at its quickest beside the reference as read: what surely is a loss."""
        return replace(self, candidate=self.candidate.at_best)

    @property
    def in_doubt_against(self) -> "Pair":
        """The candidate as read beside the reference at its quickest: what may be a loss."""
        return replace(self, reference=self.reference.at_best)


@dataclass(frozen=True, slots=True)
class Limits:
    """The smallest regression that must not pass unseen, per metric."""

    p50_ms: float = 30.0
    p95_ms: float = 100.0
    hit_rate: float = 0.10
