"""What a search asks to be played, and what that takes."""

from dataclasses import dataclass

# For so long a search goes on to certify more sessions than it has.
MAX_MINUTES = 15.0


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
class Pace:
    """The lengths of things, to say beforehand how long the search will.

    Attributes:
        turn_s: from one turn of a session to its next.
        step_s: what each step takes beyond its measured window.
    """

    turn_s: float
    step_s: float

    def measured_s(self, probe: Probe) -> float:
        """Return how long the measured window is in which this is played."""
        return probe.turns * self.turn_s / probe.sessions

    def seconds(self, probe: Probe) -> float:
        """Return how long the whole step lasts."""
        return self.step_s + self.measured_s(probe)


@dataclass(frozen=True, slots=True)
class ToCome:
    """The rest of a search, at least and at most, whichever level turns out to hold."""

    turns: tuple[int, int]
    seconds: tuple[float, float]
