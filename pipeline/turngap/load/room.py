"""What a load test must have before it is started: no more calls than anybody means, and turns."""

from bisect import bisect_left
from math import sqrt
from typing import TYPE_CHECKING

from turngap.core.errors import InputError
from turngap.load.schedule import COOL_DOWN_S, MOST_CALLS, too_many

# Making the schedule of more calls beforehand would take seconds.
MANY_CALLS = 5000

if TYPE_CHECKING:
    from turngap.load.plan import LoadPlan


def require_room(plan: "LoadPlan") -> None:
    """Refuse what has more calls than anybody means.

    Raises:
        InputError: it has.
    """
    if (calls := _most_calls(plan)) > MOST_CALLS:
        raise too_many(calls)


def require_turns(plan: "LoadPlan") -> None:
    """Refuse what has a step in which no turn counts.

    A level has some, unless it is held too briefly; so have thousands of calls.

    Raises:
        InputError: it has, of the kind `load.nothing_counts`.
    """
    if _most_calls(plan) > MANY_CALLS:
        return
    if plan.mode == "rate":
        steps = (plan.rate_step(1) for _ in range(1))
    elif plan.duration_s is not None:
        steps = (plan.level_step(number, level) for number, level in enumerate(plan.levels, 1))
    else:
        return
    brief = plan.duration_s is None and plan.instants and plan.instants[-1] <= plan.warm_up_s
    for step in steps:
        if brief or not step.turns:
            window = step.window
            raise InputError(
                "load.nothing_counts",
                f"nobody ends a turn in the {window.measured_s:.3g} s that are measured after the "
                f"warm-up of {window.warm_up_s:.3g} s: there would be nothing to count",
                hint="measure for longer (--duration), make more calls, or give a shorter "
                "--warm-up or a longer trace",
            )


def _most_calls(plan: "LoadPlan") -> float:
    """How many calls one step has at most."""
    beside_s = plan.warm_up_s + COOL_DOWN_S
    if plan.mode != "rate":
        lines = max(plan.levels)
        calls_s = sum(shape.length_s for shape in plan.shapes) / len(plan.shapes)
        return lines * (1 + (plan.level_s(lines) + beside_s) / calls_s)
    if plan.instants:
        return bisect_left(plan.instants, plan.rate_s + beside_s)
    calls = plan.rate_per_s * (plan.rate_s + beside_s)
    # By chance there are more than in the mean, by this much once in ten million schedules.
    return calls + 1 + (5.2 * sqrt(calls) if plan.arrivals == "poisson" else 0.0)
