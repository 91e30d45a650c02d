"""What `turngap load` says before and while it runs, and what it exits with."""

from pathlib import Path
from typing import TYPE_CHECKING

from turngap.core.errors import ExitCode
from turngap.core.lengths import minutes_words

if TYPE_CHECKING:
    from turngap.load.plan import LoadPlan
    from turngap.load.progress import Now
    from turngap.load.record import LoadRecord

# What `--min-sessions` exits with, and what that means.
_EXITS = {True: ExitCode.PASS, False: ExitCode.OVER_BUDGET, None: ExitCode.INCONCLUSIVE}
ENOUGH = {
    ExitCode.PASS: "certified",
    ExitCode.OVER_BUDGET: "surely not",
    ExitCode.INCONCLUSIVE: "not sure",
}


def announcement(plan: "LoadPlan") -> list[str]:
    """What is about to be done, and how long it probably takes."""
    what = {
        "search": f"searching for the capacity, up to {sessions_words(plan.most_sessions)}",
        "held": f"holding {sessions_words(plan.most_sessions)}",
        "ramp": f"holding {len(plan.levels)} levels one after the other, up to "
        + sessions_words(plan.most_sessions),
        "rate": f"calls at a rate, about {sessions_words(plan.most_sessions)} at once",
    }[plan.mode]
    # A search plays more turns where some are late; elsewhere they are fixed beforehand.
    more = "; more if turns are late" if plan.mode == "search" else ""
    return [
        f"{what}, in real time: {minutes_words(plan.probable_s / 60)}{more}",
        f"the first {plan.warm_up_s:.0f} s of each step, and its end, are left out of the figures",
    ]


def sessions_words(n: int) -> str:
    """`8 sessions`."""
    return "1 session" if n == 1 else f"{n:,} sessions"


PHASES = {
    "calibration": "measuring turngap's own error",
    "start": "starting the agent and the callers",
    "warm-up": "warm-up, not counted",
    "measured": "measured",
    "cool-down": "cool-down, not counted",
}


# An estimate that grows by less is as good as the one before.
LONGER = 1.25
LONGER_S = 60.0


class Promise:
    """How long somebody was told that a load test takes; says so where it takes longer."""

    def __init__(self, seconds: float) -> None:
        self._said_s = seconds

    def broken(self, now: "Now") -> str | None:
        """What to say now that the estimate has grown; None where it has not by much."""
        if now.left_s is None:
            return None
        whole_s = now.done_s + now.left_s
        if whole_s < max(LONGER * self._said_s, self._said_s + LONGER_S):
            return None
        self._said_s = whole_s
        said = f"longer than first said: {minutes_words(now.left_s / 60)} to go"
        more = now.planned - now.turns
        if now.sessions is None or more <= 0:
            return said
        need = "needs" if now.sessions == 1 else "need"
        turns = "1 more turn" if more == 1 else f"{more:,} more turns"
        return f"{said}; {sessions_words(now.sessions)} {need} {turns}"


def now_words(now: "Now") -> str:
    """What a running load test does: `step 3, 8 sessions: measured, 8 running, 97 % of 33`."""
    if now.step == 0:
        return PHASES[now.phase]
    level = "" if now.sessions is None else f", {sessions_words(now.sessions)}"
    said = f"step {now.step}{level}{' to confirm' if now.confirms else ''}: {PHASES[now.phase]}"
    if now.certified is not None:
        said = f"{sessions_words(now.certified)} certified; {said}"
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
    from turngap.load.curve import enough

    certified = record.capacity.sessions if record.capacity is not None else None
    steps = [step for step in record.steps if step.void is None]
    if min_sessions is None:
        told = record.mode != "search" or any(step.holds is False for step in steps)
        whole = told and len(steps) == len(record.steps)
        return ExitCode.PASS if certified is not None or whole else ExitCode.INCONCLUSIVE
    return _EXITS[enough(certified, steps, min_sessions)]
