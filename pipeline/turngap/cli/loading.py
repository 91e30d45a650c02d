"""`turngap load`, in real time, and `turngap simulate`, in virtual time."""

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from turngap.cli.results import show, stored_load, stored_simulation
from turngap.cli.shared import Display, leave, say, telemetry_of
from turngap.core.errors import ExitCode, InputError
from turngap.core.wording import minutes_words, several
from turngap.play.options import Asked

if TYPE_CHECKING:
    from turngap.load.keeping import Now
    from turngap.load.plan import LoadPlan
    from turngap.load.play import Loaded
    from turngap.store.loads import LoadRecord, SimulationRecord


# What `--min-sessions` exits with, and what that means.
_EXITS = {True: ExitCode.PASS, False: ExitCode.OVER_BUDGET, None: ExitCode.INCONCLUSIVE}
ENOUGH = {
    ExitCode.PASS: "certified",
    ExitCode.OVER_BUDGET: "certainly not",
    ExitCode.INCONCLUSIVE: "not sure",
}


def load(ctx: typer.Context, asked: Asked) -> None:
    """Find how many calls at once an agent holds, and how sure that is.

    Calls are made by a schedule that no agent can slow down, and a gap is counted from when the
    person was scheduled to end. A call that is refused, dropped or opened too late counts as turns
    that were missed.

    Exit: 0 measured, and --min-sessions certified; 1 --min-sessions certainly not held; 2 bad
    input; 3 not sure, or the caller itself was late; 4 the agent failed; 130 ended by Ctrl-C or
    SIGTERM.
    """
    from turngap.load.plan import LoadPlan

    plan = replace(LoadPlan.asked(asked), telemetry=telemetry_of(ctx, asked.otlp))
    loaded = _played(plan, quiet=asked.json_)
    if loaded.failure is not None and not loaded.record.steps and not asked.json_:
        say(f"stored in {loaded.path}")  # there is nothing to show but the error
        leave(loaded.failure, ExitCode.AGENT_FAILED)
    show(stored_load(loaded.path, loaded.record), json_=asked.json_)
    code = exit_code(loaded.record, min_sessions := asked.min_sessions)
    if min_sessions is not None and loaded.failure is None:
        say(f"{several(min_sessions, 'session')} or more: {ENOUGH[code]}")
    leave(loaded.failure, code)


def _played(plan: "LoadPlan", *, quiet: bool) -> "Loaded":
    """Announce the duration, run the load test, and show its progress."""
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
    """Announce the plan, and how long it probably takes."""
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
    """The announced length of a load test; it reports if the test takes longer."""

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
    """Say which results remain after an interruption."""
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
        decided = record.mode != "search" or any(step.holds is False for step in steps)
        whole = decided and len(steps) == len(record.steps)
        return ExitCode.PASS if certified is not None or whole else ExitCode.INCONCLUSIVE
    return _EXITS[enough(certified, steps, min_sessions)]


def simulate(_: typer.Context, asked: Asked) -> None:
    """Simulate how many calls a fleet of LLM servers holds, and what a turn costs on it.

    Everything but the LLM comes from a measured run. The LLM server is simulated;
    docs/simulate.md says how far you can believe it.

    Exit: 0 done, 1 below --min-hit-rate, 2 bad input, 3 too few turns to decide.
    """
    from turngap.fleet.files import build_fleet, read_fleet
    from turngap.fleet.run import SimulationPlan, run_simulation, source_of, workload_of
    from turngap.report.words import validity_words
    from turngap.store.folders import find_run
    from turngap.store.runs import read_run

    loads = _loads(asked.calls)
    if asked.min_hit_rate is not None and not loads:
        raise InputError(
            "simulate.no_load", "--min-hit-rate applies to a load", hint="give --calls N with it"
        )
    if not loads and (asked.workers is not None or asked.on != "local" or asked.ray_address):
        raise InputError(
            "simulate.no_load",
            "--workers, --on and --ray-address apply to loads that are simulated at once",
            hint="give --calls N1,N2,… with them",
        )
    described = read_fleet(asked.fleet, asked.settings)
    runs = [read_run(find_run(name, asked.root)) for name in asked.from_]
    for run in runs:
        if not run.valid:
            say(f"warning: {run.path}: {validity_words(run.record)}")
    source = source_of(runs, described.turn)
    workload = workload_of(source, described.call)
    plan = SimulationPlan(
        fleet=build_fleet(described, workload.longest_tokens),
        workload=workload,
        source=source,
        loads=loads,
        budget_ms=asked.budget_ms,
        target=asked.target if asked.min_hit_rate is None else asked.min_hit_rate,
        seconds=None if asked.minutes is None else asked.minutes * 60,
        seed=asked.seed,
        agent=described.agent,
        out=asked.out,
        workers=asked.workers,
        executor=asked.on,
        ray_address=asked.ray_address,
        settings={"fleet": asked.fleet and asked.fleet.name, "set": [*asked.settings] or None},
    )
    with Display(100, "%") as shown:
        try:
            record, folder = run_simulation(
                plan,
                lambda loads: shown.step(f"{_words(loads)} calls, % played", total=100),
                lambda share: shown.reach(round(100 * share)),
            )
        except KeyboardInterrupt:
            say("interrupted: a simulation is stored when it ends, so nothing is kept of this one")
            raise
    show(stored_simulation(folder, record), json_=asked.json_)
    if asked.min_hit_rate is not None:
        raise typer.Exit(_exit_code_of(record))


def _words(loads: Sequence[float]) -> str:
    return ", ".join(f"{load:g}" for load in loads)


def _loads(calls: str | None) -> tuple[float, ...]:
    """Parse `--calls N1,N2,…`."""
    if calls is None:
        return ()
    try:
        loads = tuple(float(part) for part in calls.split(","))
    except ValueError:
        loads = (0.0,)
    if not all(0 < load <= 1_000_000 for load in loads):
        raise InputError(
            "simulate.calls", f"--calls {calls!r}: expected N1,N2,…", hint="--calls 100,200,400"
        )
    return loads


def _exit_code_of(record: "SimulationRecord") -> ExitCode:
    """Return the exit code of the worst load."""
    holds = [load.holds for load in record.loads]
    if False in holds:
        return ExitCode.OVER_BUDGET
    return ExitCode.INCONCLUSIVE if None in holds else ExitCode.PASS
