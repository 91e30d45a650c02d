"""`turngap load`: how many calls at once an agent holds, measured in an open loop."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli import options
from turngap.cli.progress import Display
from turngap.cli.results import show, stored_load
from turngap.cli.shared import leave, say, telemetry_of
from turngap.core.budget import (
    CALIBRATION_TURNS,
    DEFAULT_BUDGET_MS,
    MAX_STARVED_MS,
    NO_REPLY_MS,
    QUIET_MS,
    STARVED_MS,
)
from turngap.core.errors import ExitCode
from turngap.core.lengths import minutes_words
from turngap.core.sizes import several
from turngap.load.search import MAX_MINUTES

if TYPE_CHECKING:
    from turngap.load.keeping import Now
    from turngap.load.plan import LoadPlan
    from turngap.load.play import Loaded
    from turngap.load.record import LoadRecord


# What `--min-sessions` exits with, and what that means.
_EXITS = {True: ExitCode.PASS, False: ExitCode.OVER_BUDGET, None: ExitCode.INCONCLUSIVE}
ENOUGH = {
    ExitCode.PASS: "certified",
    ExitCode.OVER_BUDGET: "surely not",
    ExitCode.INCONCLUSIVE: "not sure",
}


def load(
    ctx: typer.Context,
    scenarios: options.Scenarios = None,
    agent: options.Agent = "embedded",
    start: options.Start = None,
    dialect: options.Dialect = "",
    header: options.Headers = None,
    llm: options.LLM = None,
    set_: options.Sets = None,
    tag: options.Tag = None,
    sessions: Annotated[
        str | None,
        options.for_play(
            metavar="N|N1..N2",
            help="Hold this level, as 16, or one level after the other, as 1..64. Default: search "
            "for the most sessions that the agent holds.",
        ),
    ] = None,
    max_sessions: Annotated[
        int | None,
        options.for_play(
            min=1, max=10_000, help="The search goes no higher than this. Default: 32."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        options.for_play(
            metavar="N/s|N/min",
            help="Let calls arrive at this rate, as 2/s, whether or not earlier ones have ended.",
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        options.for_play(help="How calls arrive at --rate: poisson or constant. Default: poisson."),
    ] = None,
    duration: Annotated[
        float | None,
        options.for_play(
            metavar="SECONDS",
            help="Measure each step for this long. Default: as long as it takes to tell, which a "
            "search finds out itself.",
        ),
    ] = None,
    warm_up: Annotated[
        float | None,
        options.for_play(
            metavar="SECONDS",
            help="Leave this much out at the beginning of each step. Default: as long as two turns "
            "take; at a rate, as the longest call.",
        ),
    ] = None,
    callers: Annotated[
        int | None,
        options.for_play(
            min=1, max=1000, help="Call from this many processes. Default: as many as it takes."
        ),
    ] = None,
    on: Annotated[
        str,
        options.for_play(
            metavar="local|ray", help="Where the callers run: on this machine, or on Ray's nodes."
        ),
    ] = "local",
    ray_address: Annotated[
        str | None,
        options.for_play(
            metavar="HOST:PORT|auto",
            help="With --on ray: the cluster's address. Default: a cluster on this machine alone.",
        ),
    ] = None,
    max_minutes: Annotated[
        float,
        options.for_play(
            min=0.1,
            help="Once a search has certified a level, it starts no further step after this time.",
        ),
    ] = MAX_MINUTES,
    calibration: options.CalibrationTurns = CALIBRATION_TURNS,
    budget_ms: Annotated[
        float,
        options.for_limits(
            min=1,
            max=60_000,
            help="A turn is on time if its gap is at most this, counted from when the person was "
            "meant to end.",
        ),
    ] = DEFAULT_BUDGET_MS,
    target: Annotated[
        float,
        options.for_limits(
            help="The agent holds a level if this share of turns is on time: 0.5 to 0.999."
        ),
    ] = 0.95,
    confidence: Annotated[
        float,
        options.for_limits(
            help="How sure the certificate is, over the whole search: 0.5 to 0.999."
        ),
    ] = 0.95,
    min_sessions: Annotated[
        int | None,
        options.for_limits(
            min=1,
            help="For CI: exit 0 if this many sessions are certified, 1 if they surely do not "
            "hold, 3 if that is uncertain.",
        ),
    ] = None,
    no_reply_ms: options.NoReplyMs = NO_REPLY_MS,
    quiet_ms: options.QuietMs = QUIET_MS,
    starved_ms: Annotated[
        float,
        options.for_limits(
            min=1,
            max=MAX_STARVED_MS,
            help="A step is void if the caller itself was later than this (p99). A ramp then ends; "
            "a search goes on with fewer sessions, or ends if it was confirming a level.",
        ),
    ] = STARVED_MS,
    label: options.Label = "",
    out: options.Out = None,
    otlp: options.Otlp = None,
    json_: options.Json = False,
) -> None:
    """Find how many calls at once an agent holds, and how sure that is.

    Calls are made by a schedule that no agent can slow down, and a gap counts from when the person
    was meant to end. A call that is refused, dropped or opened too late counts as turns that were
    missed.

    Exit: 0 measured, and --min-sessions certified; 1 they surely do not hold; 2 bad input; 3 not
    sure, or the caller itself was late; 4 the agent failed; 130 ended by Ctrl-C or SIGTERM.
    """
    from turngap.load.plan import LoadPlan
    from turngap.play.target import AgentChoice

    plan = LoadPlan.of(
        AgentChoice.of(
            agent,
            set_,
            llm,
            start=start,
            dialect=dialect,
            headers=tuple(header or ()),
        ),
        scenarios or (),
        tag,
        None,
        sessions=sessions,
        max_sessions=max_sessions,
        rate=rate,
        arrivals=arrivals,
        duration_s=duration,
        warm_up_s=warm_up,
        callers=callers,
        executor=on,
        ray_address=ray_address,
        budget_ms=budget_ms,
        target=target,
        confidence=confidence,
        min_sessions=min_sessions,
        max_minutes=max_minutes,
        no_reply_ms=no_reply_ms,
        quiet_ms=quiet_ms,
        starved_ms=starved_ms,
        calibration_turns=calibration,
        label=label,
        out=out,
        telemetry=telemetry_of(ctx, otlp),
    )
    loaded = _played(plan, quiet=json_)
    if loaded.failure is not None and not loaded.record.steps and not json_:
        say(f"stored in {loaded.path}")  # there is nothing to show but the error
        leave(loaded.failure, ExitCode.AGENT_FAILED)
    show(stored_load(loaded.path, loaded.record), json_=json_)
    code = exit_code(loaded.record, min_sessions)
    if min_sessions is not None and loaded.failure is None:
        say(f"{several(min_sessions, 'session')} or more: {ENOUGH[code]}")
    leave(loaded.failure, code)


def _played(plan: "LoadPlan", *, quiet: bool) -> "Loaded":
    """Say how long it takes, run the load test, and show how it goes on."""
    import asyncio

    from turngap.load.keeping import LoadProgress
    from turngap.load.play import load as play

    if not quiet:
        for line in announcement(plan):
            say(line)
    folders: list[Path] = []
    promise = Promise(plan.probable_s)
    with Display(plan.probable_s, "s", plan.probable_s / 60) as shown:

        def tell(now: "Now") -> None:
            if not quiet and (longer := promise.broken(now)) is not None:
                say(longer)
            shown.tell(now_words(now), now.done_s, now.left_s)

        try:
            return asyncio.run(play(plan, LoadProgress(tell, folders.append)))
        except KeyboardInterrupt:
            say(kept(folders))
            raise


def announcement(plan: "LoadPlan") -> list[str]:
    """Announce what will be done, and how long it probably takes."""
    what = {
        "search": f"searching for the capacity, up to {several(plan.most_sessions, 'session')}",
        "held": f"holding {several(plan.most_sessions, 'session')}",
        "ramp": f"holding {len(plan.levels)} levels one after the other, up to "
        + several(plan.most_sessions, "session"),
        "rate": f"calls at a rate, about {several(plan.most_sessions, 'session')} at once",
    }[plan.mode]
    # A search plays more turns where some are late; elsewhere they are fixed beforehand.
    more = "; more if turns are late" if plan.mode == "search" else ""
    return [
        f"{what}, in real time: {minutes_words(plan.probable_s / 60)}{more}",
        f"the first {plan.warm_up_s:.0f} s of each step, and its end, are left out of the figures",
    ]


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
    """The announced length of a load test; says so where it takes longer."""

    def __init__(self, seconds: float) -> None:
        self._said_s = seconds

    def broken(self, now: "Now") -> str | None:
        """Say that the estimate has grown; None if it has not grown by much."""
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
        return f"{said}; {several(now.sessions, 'session')} {need} {turns}"


def now_words(now: "Now") -> str:
    """Describe the progress: `step 3, 8 sessions: measured, 8 running, 97 % of 33`."""
    if now.step == 0:
        return PHASES[now.phase]
    level = "" if now.sessions is None else f", {several(now.sessions, 'session')}"
    said = f"step {now.step}{level}{' to confirm' if now.confirms else ''}: {PHASES[now.phase]}"
    if now.certified is not None:
        said = f"{several(now.certified, 'session')} certified; {said}"
    said += f", {now.running} running"
    if now.turns:
        said += f", {now.hits} of {now.turns} turns on time"
    return said


def kept(folders: "list[Path]") -> str:
    """Say what an interruption leaves."""
    from turngap.load.report import read_load

    steps = len(read_load(folders[0]).steps) if folders else 0
    if not steps:
        return "interrupted before the first step was over: there is nothing to show"
    over = "the step that was over is" if steps == 1 else f"the {steps} steps that were over are"
    return f"interrupted: {over} kept: turngap report {shlex.quote(str(folders[0]))}"


def exit_code(record: "LoadRecord", min_sessions: int | None) -> ExitCode:
    """Return the exit code of a load test that did not fail."""
    from turngap.load.figures import enough

    certified = record.capacity.sessions if record.capacity is not None else None
    steps = [step for step in record.steps if step.void is None]
    if min_sessions is None:
        told = record.mode != "search" or any(step.holds is False for step in steps)
        whole = told and len(steps) == len(record.steps)
        return ExitCode.PASS if certified is not None or whole else ExitCode.INCONCLUSIVE
    return _EXITS[enough(certified, steps, min_sessions)]
