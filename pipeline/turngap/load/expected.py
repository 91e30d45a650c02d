"""What is expected of a step before it is played: its calls, and how many turns tell."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from turngap.core.stats import proportion
from turngap.load.asked import Mode
from turngap.load.schedule import SETUP_S, Shape, turn_s
from turngap.play.plan import expected_turns_ms
from turngap.scenario.library import LoadedScenario

# Turns that are left out while every line begins: with the second turn of each, all lines speak
# as often as they will, and the agent has done everything once.
WARM_UP_TURNS = 2
SHORTEST_WARM_UP_S, LONGEST_DEFAULT_WARM_UP_S = 5.0, 30.0

# Conversations are rehearsed as long as all together should take no longer than this.
REHEARSED_S = 40.0


@dataclass(frozen=True, slots=True)
class Waits:
    """How long this agent takes from each person's end until the next recording, or the call's end.

    It is measured in calls alone, before any schedule is made: nothing that happens under load
    changes it.

    Attributes:
        measured_s: of each turn of the scenarios that were rehearsed.
        pace: of other scenarios, how much longer the waits for a reply are than expected.
    """

    measured_s: Mapping[str, tuple[float, ...]] = field(
        default_factory=dict[str, tuple[float, ...]]
    )
    pace: float = 1.0

    def of(self, scenario: LoadedScenario) -> list[float]:
        """Seconds, of each turn."""
        if measured := self.measured_s.get(scenario.scenario.name):
            return list(measured)
        expected = [wait_ms / 1000 for _, wait_ms in expected_turns_ms(scenario)]
        waits = zip(expected, awaits_reply(scenario), strict=True)
        return [wait_s * self.pace if awaits else wait_s for wait_s, awaits in waits]


def awaits_reply(scenario: LoadedScenario) -> Iterator[bool]:
    """Yield for each turn whether the next one waits for the agent."""
    yield from (turn.when.at_ms is None for turn in scenario.scenario.turns[1:])
    yield True


def shape_of(scenario: LoadedScenario, greeted_s: float = 0.0, waits: Waits | None = None) -> Shape:
    """Estimate the timing of a conversation, from the instant at which it is dialled."""
    at_s, ends_s = SETUP_S + greeted_s, list[float]()
    waits_s = (waits or Waits()).of(scenario)
    for (end_ms, _), wait_s in zip(expected_turns_ms(scenario), waits_s, strict=True):
        ends_s.append(at_s + end_ms / 1000)
        at_s = ends_s[-1] + wait_s
    return Shape(scenario.scenario.name, tuple(ends_s), at_s)


def rehearsed(shapes: Sequence[Shape]) -> int:
    """Count the conversations to rehearse: the first, and more while there is time."""
    over_s = accumulate(shape.length_s for shape in shapes)
    return max(1, sum(at_s <= REHEARSED_S for at_s in over_s))


def turns_to_tell(target: float) -> int:
    """Return how many turns without a miss prove, by Wilson's interval, that a level holds."""
    turns = 1
    while not proportion(turns, turns).reaches(target):
        turns += 1
    return turns


def warm_up_of(shapes: Sequence[Shape], mode: Mode) -> float:
    """Return the default warm-up, the part of a step's beginning that is left out.

    Calls that arrive at a rate reach their final number once the first of them have ended.
    """
    if mode == "rate":
        return max(shape.length_s for shape in shapes)
    least_s = WARM_UP_TURNS * turn_s(shapes)
    return min(max(least_s, SHORTEST_WARM_UP_S), LONGEST_DEFAULT_WARM_UP_S)
