"""What `turngap load` says before and while it runs, and what it exits with."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

from turngap.cli.progress import minutes_words
from turngap.core.errors import ExitCode

if TYPE_CHECKING:
    from turngap.load.plan import LoadPlan
    from turngap.load.progress import Now
    from turngap.load.record import LoadRecord

# What `--min-sessions` came to.
ASKED = {
    ExitCode.PASS: "certified",
    ExitCode.OVER_BUDGET: "surely not",
    ExitCode.INCONCLUSIVE: "not sure",
}


def announcement(plan: "LoadPlan") -> list[str]:
    """What is about to be done, and how long it takes: probably, and at most."""
    what = {
        "search": f"searching for the capacity, up to {sessions_words(plan.most_sessions)}",
        "held": f"holding {sessions_words(plan.most_sessions)}",
        "ramp": f"holding {len(plan.levels)} levels one after the other, up to "
        + sessions_words(plan.most_sessions),
        "rate": f"calls at a rate, about {sessions_words(plan.most_sessions)} at once",
    }[plan.mode]
    takes = f"{minutes_words(plan.probable_s / 60)}, at most {_at_most(plan.most_s)}"
    return [
        f"{what}, in real time: {takes} if the agent keeps up",
        f"the first {plan.warm_up_s:.0f} s of each step, and its end, are left out of the figures",
    ]


def sessions_words(n: int) -> str:
    """`8 sessions`."""
    return "1 session" if n == 1 else f"{n:,} sessions"


def _at_most(seconds: float) -> str:
    """An upper bound is rounded up."""
    minutes = math.ceil(seconds / 60)
    return "1 minute" if minutes <= 1 else f"{minutes} minutes"


PHASES = {
    "calibration": "measuring turngap's own error",
    "start": "starting the agent and the callers",
    "warm-up": "warm-up, not counted",
    "measured": "measured",
    "cool-down": "cool-down, not counted",
}


def now_words(now: "Now") -> str:
    """What a running load test does: `step 3, 8 sessions: measured, 8 running, 97 % of 33`."""
    if now.step == 0:
        return PHASES[now.phase]
    level = "" if now.sessions is None else f", {sessions_words(now.sessions)}"
    said = f"step {now.step}{level}{' to confirm' if now.confirms else ''}: {PHASES[now.phase]}"
    said += f", {now.running} running"
    if now.turns:
        said += f", {now.hits} of {now.turns} turns on time"
    return said


def kept(folders: "list[Path]") -> str:
    """What an interruption leaves."""
    from turngap.load.report import read_load

    steps = len(read_load(folders[0]).steps) if folders else 0
    if not steps:
        return "interrupted before the first step was over: there is nothing to show"
    over = "the step that was over is" if steps == 1 else f"the {steps} steps that were over are"
    return f"interrupted: {over} kept: turngap report {folders[0]}"


def exit_code(record: "LoadRecord", min_sessions: int | None) -> ExitCode:
    """What a load test exits with that did not fail."""
    from turngap.load.curve import surely_not_held

    certified = record.capacity.sessions if record.capacity is not None else None
    steps = [step for step in record.steps if step.void is None]
    if min_sessions is None:
        told = record.mode != "search" or any(step.holds is False for step in steps)
        whole = told and len(steps) == len(record.steps)
        return ExitCode.PASS if certified is not None or whole else ExitCode.INCONCLUSIVE
    if certified is not None and certified >= min_sessions:
        return ExitCode.PASS
    # More sessions do not make an agent faster: who does not hold fewer does not hold these.
    asked = range((certified or 0) + 1, min_sessions + 1)
    if any(surely_not_held(step) for step in steps if step.sessions in asked):
        return ExitCode.OVER_BUDGET
    return ExitCode.INCONCLUSIVE
