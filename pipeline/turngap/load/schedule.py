"""When which call begins: made before anything is played, so that no agent can slow it down.

All of it is pure and seeded. A call is dialled at its instant whatever became of those before it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """What a conversation is expected to look like, from its recordings and expected replies.

    Attributes:
        scenario: its name.
        ends_s: of each turn, when the person is expected to end, from the call's instant.
        length_s: from the call's instant until it is expected to be over.
    """

    scenario: str
    ends_s: tuple[float, ...]
    length_s: float


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is to be made.

    Attributes:
        number: counted from 1 within its step.
        at_s: when it is dialled, from the beginning of the step.
        line: at a held level, which of the sessions it continues, counted from 0; else 0.
        counted: of each turn, whether it counts: whether the instant at which it is expected to
            end lies in the measured window. What lies before or after is warm-up or cool-down.
    """

    number: int
    at_s: float
    line: int
    shape: Shape
    counted: tuple[bool, ...]
