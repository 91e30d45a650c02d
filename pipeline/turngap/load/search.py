"""The sequential search for the most sessions that an agent holds. Pure: it plays nothing.

It explores first, by bisection, and says nothing sure by it. Then it confirms the best level with
turns of its own, and goes down where that fails; the error budget is shared among all the looks of
the confirmation, so that the whole search certifies a level that does not hold with a chance of at
most one less the confidence.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """A level to be held next.

    Attributes:
        sessions: the level.
        turns: how many counted turns to play at it.
        confirms: whether the turns count towards the certificate.
    """

    sessions: int
    turns: int
    confirms: bool


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one probe brought.

    Attributes:
        turns: those that count, missed ones included.
        hits: those on time.
        effective_n: how many independent turns tell as much; at most `turns`.
    """

    turns: int
    hits: int
    effective_n: float
