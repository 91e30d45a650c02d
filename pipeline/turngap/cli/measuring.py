"""`turngap replay`, `score`, `turns` and `calibrate`."""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from turngap.cli.commands import given_options
from turngap.cli.results import show, stored_turns
from turngap.cli.shared import (
    Display,
    announce,
    leave,
    played,
    print_block,
    print_json,
    say,
    show_failure,
    table,
    telemetry_of,
)
from turngap.core.errors import AgentError, ExitCode, InputError, TurngapError
from turngap.play.options import Asked, quoted, typed

if TYPE_CHECKING:
    from turngap.core.results import Turn
    from turngap.play.plan import ReplayPlan
    from turngap.store.runs import Run

# What may be given along with --resume; all else is as the run began.
_WITH_RESUME = frozenset(
    {"resume", "agent", "start", "dialect", "headers", "llm", "sets", "scenarios", "min_hit_rate"}
    | {"out", "json_", "otlp", "verbose", "quiet"}
)


def replay(ctx: typer.Context, asked: Asked) -> None:
    """Call an agent with recorded speech, and measure every turn.

    Exit: 0 played, 1 below --min-hit-rate, 2 bad input or nowhere to store it (a full disk),
    3 invalid because turngap itself was late too often, 4 the agent failed, 130 interrupted.
    """
    from turngap.play.plan import ReplayPlan
    from turngap.play.resume import command_to_resume
    from turngap.report.run import run_json, summary_block, write_html

    telemetry, json_ = telemetry_of(ctx, asked.otlp), asked.json_
    if asked.resume is None:
        plan = replace(ReplayPlan.asked(asked), telemetry=telemetry)
    else:
        plan = replace(_resumed(ctx, asked), telemetry=telemetry)
        if (whole := plan.continues) is not None and whole.complete:
            say(f"nothing is missing: all {len(whole.turns)} turns of {whole.path} were played")
            if json_:
                print_json(run_json(whole))
            raise typer.Exit(exit_code(whole, failed_turns(whole), asked.min_hit_rate))
    quiet = json_ or asked.quiet
    run, failure = _play(plan, quiet=quiet, verbose=asked.verbose)
    page: Path | None = None
    try:
        page = write_html(run)
    except InputError as e:  # the figures are shown all the same
        failure = failure or e
    if json_:
        print_json(run_json(run))
    elif run.turns:
        if not quiet:
            sys.stdout.write("\n")
        print_block(lambda width: summary_block(run, width))
        say(f"page with recordings: {page}" if page else f"stored in {run.path}")
    if failure := failure or failed_turns(run):
        show_failure(failure)
    if run.turns and not run.complete and not json_:
        say(f"next: play what is missing: {command_to_resume(run)}")
    elif run.valid and failure is None and not quiet:
        say(f"next: see whether a change makes it slower: {_save_command(plan, asked.scenarios)}")
    raise typer.Exit(exit_code(run, failure, asked.min_hit_rate))


def _resumed(ctx: typer.Context, asked: Asked) -> "ReplayPlan":
    """Plan the missing conversations of a stored run.

    Raises:
        InputError: another setting is given, or the run cannot be continued.
    """
    from turngap.play.resume import changes_since, continued
    from turngap.store.folders import find_run, latest_to_resume
    from turngap.store.runs import read_run

    given = given_options(ctx)
    scenarios = given.get("scenarios") or ()
    if not all(Path(each).exists() for each in scenarios):
        raise _not_resumed(
            "scenario names",
            "drop them; if the scenarios have moved, give the one folder that has them",
        )
    if others := sorted(given.keys() - _WITH_RESUME):
        param = next(each for each in ctx.command.params if each.name == others[0])
        raise _not_resumed(param.opts[0], "drop it, or start a new run without --resume")
    name, out = asked.resume, asked.out
    folder = latest_to_resume(out) if name == "latest" else find_run(name, out)
    run = read_run(folder, empty=True)
    llm = [f"llm={given['llm']}"] if "llm" in given else []
    plan = continued(
        run,
        agent=given.get("agent"),
        start=given.get("start"),
        dialect=given.get("dialect", ""),
        headers=given.get("headers", ()),
        sets=(*llm, *given.get("sets", ())),
        scenarios=scenarios,
    )
    if plan.target.choice.is_url:
        say(f"continues with {plan.target.choice.endpoint.flags}")
    for change in changes_since(run):
        say(f"warning: {change}")
    return plan


def _not_resumed(what: str, hint: str) -> InputError:
    return InputError(
        "resume.settings",
        f"{what} cannot be given with --resume, which plays the rest of that run with its own "
        "settings",
        hint=hint,
    )


def _save_command(plan: "ReplayPlan", names: Sequence[str]) -> str:
    """Return the command that saves the same agent and scenarios as a baseline of `check`."""
    choice = plan.target.choice
    at = choice.endpoint.flags if choice.is_url else f"--agent {choice.agent}"
    line = [("--line", plan.line.text)] if plan.line else []
    flags = typed([*choice.flags, ("--tag", (plan.settings or {}).get("tag")), *line])
    return " ".join(["turngap check", *map(quoted, names), at, *flags, "--save base.json"])


def _play(plan: "ReplayPlan", *, quiet: bool, verbose: bool) -> "tuple[Run, TurngapError | None]":
    """Play the plan and show its progress, printing each turn as it is stored."""
    from rich.console import Console

    from turngap.play.rounds import replay
    from turngap.report.console import TurnList

    console = Console(highlight=False, quiet=quiet)
    missing = plan.turns - (len(plan.continues.turns) if plan.continues else 0)
    if missing == plan.turns:
        announce(plan, f"against {plan.target.choice.name}", quiet=quiet)
        if why := plan.target.without_tools(loaded.scenario for loaded in plan.scenarios):
            say(f"note: {why}")
    elif not quiet:
        say(f"{missing} of {plan.turns} turns are missing")
    minutes = plan.minutes * missing / plan.turns
    listed = TurnList(verbose=verbose)
    with Display(missing, "turns", minutes) as shown:

        def on_turn(turn: "Turn") -> None:
            # Above the bar where both are on the terminal.
            both = console.is_terminal and shown.console.is_terminal and not quiet
            block = listed.shown(turn, console.width)
            try:
                if block is not None:
                    (shown.console if both else console).print(block)
            except (OSError, SystemExit):  # no one reads on, or a disk is full: the run continues
                console.quiet = True

        return asyncio.run(replay(plan, shown.playing(on_turn)))


def failed_turns(run: "Run") -> AgentError | None:
    """Build the error if the agent failed some replies or lost the line; None if it did not.

    A line that was to break is no failure of the agent.
    """
    from turngap.core.untrusted import printable
    from turngap.report.turn_words import why_words

    breaks = run.record.line is not None and run.record.line.breaks
    failed = [
        turn
        for turn in run.turns
        if turn.outcome == "error" and not (breaks and turn.ended == "line_lost")
    ]
    if not failed:
        return None
    first = failed[0]
    why = first.error or why_words(first) or ""
    return AgentError(
        "agent.turn_failed",
        f"the agent failed in {len(failed)} of {len(run.turns)} turns, first in {first.scenario}, "
        f"turn {first.turn}: {printable(why)}",
        hint=f"the run is kept, with the agent's log: {run.path}",
    )


def exit_code(run: "Run", failure: TurngapError | None, min_hit_rate: float | None) -> ExitCode:
    """Return the exit code of a replay."""
    if failure is not None:
        return failure.exit_code
    answered = any(t.outcome in ("answered", "late", "cut_in") for t in run.turns)
    if not answered and any(t.faults for t in run.turns):
        return ExitCode.AGENT_FAILED
    if not run.record.valid:
        return ExitCode.INCONCLUSIVE
    if min_hit_rate is not None and (run.summary.hit_rate.value or 0.0) < min_hit_rate:
        return ExitCode.OVER_BUDGET
    return ExitCode.PASS


def score(ctx: typer.Context, asked: Asked) -> None:
    """Measure recorded calls: two channels, a person in one and an agent in the other.

    Every turn that is heard in them is measured as a played one is, with an error bar for each of
    its ends. Which stage took the time, a recording cannot tell.

    Exit: 0 scored, 1 below --min-hit-rate, 2 bad input or no call that could be scored, 3 invalid
    because its answers cannot be told apart, 130 interrupted.
    """
    from turngap.report.console import turn_block
    from turngap.report.run import run_json, summary_block, write_html
    from turngap.score.play import ScorePlan, unscored_words
    from turngap.score.play import score as play

    plan = replace(ScorePlan.asked(asked), telemetry=telemetry_of(ctx, asked.otlp))
    quiet = asked.json_ or asked.quiet
    if not quiet:
        several = "1 call" if len(plan.files) == 1 else f"{len(plan.files)} calls"
        say(f"{several} in {plan.name}, {plan.workers} at once")
    with Display(len(plan.files), "calls") as shown:
        progress = replace(shown.playing(), on_turn=lambda _: None)
        run, failure = asyncio.run(play(plan, progress, shown.advance))
    scored = run.record.scored
    if scored is not None and (left_out := scored.unscored):
        say(
            f"{len(left_out)} of {len(plan.files)} calls could not be scored: "
            f"{unscored_words(left_out)}"
        )
    page: Path | None = None
    try:
        page = write_html(run)
    except InputError as e:  # the figures are shown all the same
        failure = failure or e
    if asked.json_:
        print_json(run_json(run))
    else:
        if asked.verbose:
            for turn in run.turns:
                print_block(lambda width, turn=turn: turn_block(turn, width))
        print_block(lambda width: summary_block(run, width))
        say(f"page with recordings: {page}" if page else f"stored in {run.path}")
    if failure is not None:
        show_failure(failure)
    raise typer.Exit(exit_code(run, failure, asked.min_hit_rate))


def turns(_ctx: typer.Context, asked: Asked) -> None:
    """Measure how quickly an agent answers against how often it cuts in, as one curve.

    Exit: 0 played, 2 bad input, 3 invalid because turngap itself was late too often, 4 an agent
    failed, even in a single turn.
    """
    from turngap.turns.play import TurnsPlan, turns_in_virtual_time
    from turngap.turns.play import turns as play
    from turngap.turns.report import read_turns

    plan = TurnsPlan.asked(asked)
    if asked.virtual:
        with Display(plan.turns, "turns") as shown:
            _, path, failure = turns_in_virtual_time(plan, shown.playing())
    else:
        varied = f"with {plan.agents} values in turn"
        what = varied if plan.setting else f"against {plan.choice.name}"
        _, path, failure = played(plan, what, play, quiet=asked.json_)
    record, runs = read_turns(path)
    show(stored_turns(path, record, runs), json_=asked.json_)
    failure = failure or next(filter(None, map(failed_turns, runs)), None)
    valid = all(point.valid for point in record.points)
    leave(failure, ExitCode.PASS if valid else ExitCode.INCONCLUSIVE)


# About how long all agents take on one core.
ZOO_MINUTES = 1.0


def calibrate(_: typer.Context, asked: Asked) -> None:
    """Measure the error of the instrument itself, against known gaps of a loopback agent.

    Exit: 0 measured, 1 an agent is measured wrongly, 2 bad input, 4 a dialect could not be
    measured.
    """
    if asked.agents:
        _play_agents(json_=asked.json_)
        return
    from turngap.play.calibrate import loopback_dialects
    from turngap.report.run import calibration_block, calibrations_block

    dialect = asked.dialect
    names = loopback_dialects() if dialect == "all" else [dialect]
    found = _calibrated(names, asked.turns, asked.seed, asked.line)
    document = {"dialects": found} if dialect == "all" else found[0]
    block = calibrations_block if dialect == "all" else calibration_block
    if asked.json_:
        print_json(document)
    else:
        print_block(lambda width: block(document, width))
    if any("error" in each for each in found):
        raise typer.Exit(ExitCode.AGENT_FAILED)


def _play_agents(*, json_: bool) -> None:
    from turngap.play.calibrate import DIALECTS, play_zoo, rows_of
    from turngap.testing.zoo import ZOO

    with Display(len(ZOO) * len(DIALECTS), "known agents", ZOO_MINUTES) as shown:
        readings = list(play_zoo(on_agent=shown.advance))
    if json_:
        print_json({"agents": [each.as_json() for each in readings]})
    else:
        print_block(lambda _: table(rows_of(readings)))
    if any(each.verdict == "wrong" for each in readings):
        raise typer.Exit(ExitCode.OVER_BUDGET)


def _calibrated(dialects: list[str], turns: int, seed: int, line: str) -> list[dict[str, Any]]:
    """Calibrate in one dialect after the other; return what `--json` prints for each.

    With several dialects, one that fails does not stop the others.
    """
    from turngap.clocks import undisturbed
    from turngap.play.calibrate import calibrate
    from turngap.play.plan import calibration_s

    found: list[dict[str, Any]] = []
    minutes = len(dialects) * calibration_s(turns) / 60
    with (
        tempfile.TemporaryDirectory() as folder,
        Display(len(dialects) * turns, "known gaps", minutes) as shown,
        undisturbed(),
    ):
        for number, dialect in enumerate(dialects):
            course = calibrate(
                turns,
                dialect=dialect,
                line=line,
                seed=seed,
                log=Path(folder) / f"loopback-{number}.log",
                on_turn=lambda done, before=number * turns: shown.reach(before + done),
            )
            try:
                found.append(asyncio.run(course).as_json())
            except TurngapError as e:
                if len(dialects) == 1:
                    raise
                found.append({"dialect": dialect, "error": str(e)})
    return found
