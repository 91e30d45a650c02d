"""`turngap replay`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli import options
from turngap.cli.progress import Display, announce
from turngap.cli.shared import print_block, print_json, say, show_failure, telemetry_of
from turngap.core.budget import CALIBRATION_TURNS, MOST_PLAYED, NO_REPLY_MS, QUIET_MS, STARVED_MS
from turngap.core.errors import AgentError, ExitCode, InputError, TurngapError

if TYPE_CHECKING:
    from turngap.core.results import Turn
    from turngap.play.plan import ReplayPlan
    from turngap.store.runs import Run

# What may be given along with --resume; all else is as the run began.
_WITH_RESUME = frozenset(
    {"resume", "agent", "start", "dialect", "header", "llm", "set_", "scenarios", "min_hit_rate"}
    | {"out", "json_", "otlp", "verbose", "quiet"}
)


def replay(
    ctx: typer.Context,
    scenarios: options.Scenarios = None,
    agent: options.Agent = "embedded",
    start: options.Start = None,
    dialect: options.Dialect = "",
    header: options.Headers = None,
    llm: options.LLM = None,
    set_: options.Sets = None,
    tag: options.Tag = None,
    repeat: Annotated[
        int, options.for_play(min=1, max=MOST_PLAYED, help="How often to play everything.")
    ] = 1,
    resume: Annotated[
        str | None,
        options.for_play(
            metavar="RUN|latest",
            help="Finish an interrupted run: play its missing turns with the same settings, into "
            "the same folder. `latest` is the latest that lacks turns. The run may be somebody "
            "else's: what acts or names a secret, such as --start, has to be given again, and an "
            "error shows the whole command.",
            autocompletion=options.run_names,
        ),
    ] = None,
    greeting_ms: Annotated[
        float | None,
        options.for_play(
            min=0,
            max=60_000,
            help="How long to wait for a greeting before the first turn. Default: learned from the "
            "first call.",
        ),
    ] = None,
    stop_on_error: Annotated[
        bool,
        options.for_play(
            "--stop-on-error",
            help="End with the first call that the agent loses or ends early. Default: go on with "
            "the next.",
        ),
    ] = False,
    calibration: options.CalibrationTurns = CALIBRATION_TURNS,
    budget_ms: options.BudgetMs = None,
    min_hit_rate: Annotated[
        float | None,
        options.for_limits(
            min=0, max=1, help="Exit 1 if a smaller share of turns is within the budget."
        ),
    ] = None,
    no_reply_ms: options.NoReplyMs = NO_REPLY_MS,
    quiet_ms: options.QuietMs = QUIET_MS,
    starved_ms: options.StarvedMs = STARVED_MS,
    label: options.Label = "",
    out: options.Out = None,
    otlp: options.Otlp = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    json_: options.Json = False,
) -> None:
    """Call an agent with recorded speech, and measure every turn.

    Exit: 0 played, 1 below --min-hit-rate, 2 bad input or nowhere to store it (a full disk),
    3 invalid because turngap itself was late too often, 4 the agent failed, 130 interrupted.
    """
    from turngap.play.plan import ReplayPlan
    from turngap.play.resume import command_to_resume
    from turngap.play.target import AgentChoice
    from turngap.report.run import run_json, summary_block, write_html

    telemetry = telemetry_of(ctx, otlp)
    if resume is not None:
        plan = _resumed(ctx, resume, out)
        plan = replace(plan, telemetry=telemetry)
        if (whole := plan.continues) is not None and whole.complete:
            say(f"nothing is missing: all {len(whole.turns)} turns of {whole.path} were played")
            if json_:
                print_json(run_json(whole))
            raise typer.Exit(exit_code(whole, failed_turns(whole), min_hit_rate))
    else:
        plan = ReplayPlan.of(
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
            {"repeat": repeat},
            rounds=repeat,
            budget_ms=budget_ms,
            label=label,
            out=out,
            calibration_turns=calibration,
            greeting_ms=greeting_ms,
            no_reply_ms=no_reply_ms,
            quiet_ms=quiet_ms,
            stop_on_error=stop_on_error,
            starved_ms=starved_ms,
            telemetry=telemetry,
        )
    run, failure = _play(plan, quiet=json_ or quiet, verbose=verbose)
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
    elif run.valid and failure is None and not (json_ or quiet):
        say(f"next: see whether a change makes it slower: {_save_command(plan, scenarios or ())}")
    raise typer.Exit(exit_code(run, failure, min_hit_rate))


def _resumed(ctx: typer.Context, name: str, out: Path | None) -> "ReplayPlan":
    """Plan what a stored run lacks.

    Raises:
        InputError: another setting is given, or the run cannot be continued.
    """
    from turngap.play.resume import changes_since, continued
    from turngap.store.folders import find_run, latest_to_resume
    from turngap.store.runs import read_run

    # By name: typer may bring a click of its own.
    sources = {
        param: str(getattr(ctx.get_parameter_source(param), "name", "")) for param in ctx.params
    }
    given = {p: ctx.params[p] for p, source in sources.items() if source == "COMMANDLINE"}
    scenarios = given.get("scenarios") or ()
    if not all(Path(each).exists() for each in scenarios):
        raise InputError(
            "resume.settings",
            "scenario names cannot be given with --resume, which plays what that run planned, "
            "under its own settings",
            hint="drop them; if the scenarios have moved, give the one folder that has them",
        )
    if others := sorted(given.keys() - _WITH_RESUME):
        param = next(each for each in ctx.command.params if each.name == others[0])
        raise InputError(
            "resume.settings",
            f"{param.opts[0]} cannot be given with --resume, which plays what that run planned, "
            "under its own settings",
            hint="drop it, or start a new run without --resume",
        )
    folder = latest_to_resume(out) if name == "latest" else find_run(name, out)
    run = read_run(folder, empty=True)
    llm = [f"llm={given['llm']}"] if "llm" in given else []
    plan = continued(
        run,
        agent=ctx.params["agent"] if sources["agent"] in ("COMMANDLINE", "ENVIRONMENT") else None,
        start=given.get("start"),
        dialect=given.get("dialect", ""),
        headers=given.get("header", ()),
        sets=(*llm, *given.get("set_", ())),
        scenarios=scenarios,
    )
    if plan.target.choice.is_url:
        say(f"continues with {plan.target.choice.endpoint.flags}")
    for change in changes_since(run):
        say(f"warning: {change}")
    return plan


def _save_command(plan: "ReplayPlan", names: Sequence[str]) -> str:
    """Return the command that saves the same agent and scenarios as a baseline of `check`."""
    from turngap.play.again import agent_flags, played_again, typed

    choice = plan.target.choice
    at = choice.endpoint.flags if choice.is_url else f"--agent {choice.agent}"
    flags = typed([*agent_flags(choice), ("--tag", (plan.settings or {}).get("tag"))])
    return " ".join(["turngap check", *played_again(names, None), at, *flags, "--save base.json"])


def _play(plan: "ReplayPlan", *, quiet: bool, verbose: bool) -> "tuple[Run, TurngapError | None]":
    """Play the plan and show how it goes on, printing each turn as it is stored."""
    import asyncio

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
            except (OSError, SystemExit):  # nobody reads on, or a disk is full: the run goes on
                console.quiet = True

        return asyncio.run(replay(plan, shown.playing(on_turn)))


def failed_turns(run: "Run") -> AgentError | None:
    """Build the error if the agent failed some replies or lost the line; None if it did not."""
    from turngap.core.untrusted import printable
    from turngap.report.turn_words import why_words

    failed = [turn for turn in run.turns if turn.outcome == "error"]
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
