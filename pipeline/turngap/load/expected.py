"""What is expected of a step before it is played: its calls, and how many turns tell."""

from collections.abc import Sequence

from turngap.core.stats import proportion
from turngap.load.asked import Mode
from turngap.load.schedule import SETUP_S, Shape, turn_s
from turngap.play.plan import expected_turns_ms
from turngap.scenario.library import LoadedScenario

# Turns that are left out while every line begins: with the second turn of each, all lines speak
# as often as they will, and the agent has done everything once.
WARM_UP_TURNS = 2
SHORTEST_WARM_UP_S, LONGEST_DEFAULT_WARM_UP_S = 5.0, 30.0


def shape_of(scenario: LoadedScenario, greeted_s: float = 0.0) -> Shape:
    """What a conversation is expected to look like, from the instant at which it is dialled."""
    at_s, ends_s = SETUP_S + greeted_s, list[float]()
    for end_ms, wait_ms in expected_turns_ms(scenario):
        ends_s.append(at_s + end_ms / 1000)
        at_s = ends_s[-1] + wait_ms / 1000
    return Shape(scenario.scenario.name, tuple(ends_s), at_s)


def turns_to_tell(target: float) -> int:
    """How many turns without a miss show, by Wilson's interval, that a level holds."""
    turns = 1
    while not proportion(turns, turns).reaches(target):
        turns += 1
    return turns


def warm_up_of(shapes: Sequence[Shape], mode: Mode) -> float:
    """How much of a step's beginning is left out, where nobody says.

    Calls that arrive at a rate are as many as they will be once the first of them have ended.
    """
    if mode == "rate":
        return max(shape.length_s for shape in shapes)
    least_s = WARM_UP_TURNS * turn_s(shapes)
    return min(max(least_s, SHORTEST_WARM_UP_S), LONGEST_DEFAULT_WARM_UP_S)
