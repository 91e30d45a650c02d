"""`turngap check`: the regression gate."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli import options
from turngap.cli.progress import played
from turngap.cli.results import show, stored_check
from turngap.cli.shared import leave, telemetry_of
from turngap.core.budget import CALIBRATION_TURNS, NO_REPLY_MS, QUIET_MS, STARVED_MS
from turngap.core.errors import ExitCode, InputError

if TYPE_CHECKING:
    from turngap.check.record import CheckRecord

EXIT_CODES = {
    "pass": ExitCode.PASS,
    "regressed": ExitCode.OVER_BUDGET,
    "undecided": ExitCode.INCONCLUSIVE,
    "cannot_compare": ExitCode.INCONCLUSIVE,
}


def check(
    ctx: typer.Context,
    scenarios: options.Scenarios = None,
    agent: options.Agent = "embedded",
    start: options.Start = None,
    dialect: options.Dialect = "",
    header: options.Headers = None,
    llm: options.LLM = None,
    set_: options.Sets = None,
    against: Annotated[
        str | None,
        options.for_agent(
            help="The reference, which is measured alternately with the agent: a stack's name, a "
            "stack file, a ws:// URL, or the folder of another checkout of turngap. --against '' "
            "means none, even if the repository's file names one.",
            autocompletion=options.stack_names,
        ),
    ] = None,
    start_against: Annotated[
        str | None,
        options.for_agent(
            metavar="COMMAND",
            help="Start the reference with this command, as --start does the agent.",
        ),
    ] = None,
    against_dialect: Annotated[
        str,
        options.for_agent(
            metavar="NAME[,KEY=VALUE...]",
            help="The protocol of the reference's URL. Default: the agent's.",
            autocompletion=options.dialect_names,
        ),
    ] = "",
    against_header: Annotated[
        list[str] | None,
        options.for_agent(
            metavar="'NAME: VALUE'",
            help="An HTTP header to open the reference's URL with. Default: the agent's, where the "
            "scheme and the host of both URLs are the same, and none elsewhere, since they may "
            "hold keys.",
        ),
    ] = None,
    against_set: Annotated[
        list[str] | None,
        options.for_agent(
            metavar="TABLE.KEY=VALUE",
            help="Change a setting of the reference; the agent's --set does not hold for it. "
            "Repeatable.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        options.for_agent(help="A stored reference, which --save made on this machine."),
    ] = None,
    tag: options.Tag = None,
    rounds: Annotated[
        int | None,
        options.for_play(
            min=1,
            help="How many rounds. Each plays every turn twice against each agent. Default: 2, or "
            "more where few scenarios would leave a clear shift undecided.",
        ),
    ] = None,
    phases: options.Phases = 1,
    until_decided: Annotated[
        bool,
        options.for_play(
            "--until-decided/--no-until-decided",
            help="Play further rounds for as long as the verdict is undecided.",
        ),
    ] = False,
    max_minutes: Annotated[
        float,
        options.for_play(
            min=0.1, help="With --until-decided: start no further round after this time."
        ),
    ] = 10.0,
    calibration: options.CalibrationTurns = CALIBRATION_TURNS,
    limit_p50_ms: Annotated[
        float,
        options.for_limits(min=1, help="Fail if the gap's p50 is longer by this much, or more."),
    ] = 30.0,
    limit_p95_ms: Annotated[
        float,
        options.for_limits(min=1, help="Fail if the gap's p95 is longer by this much, or more."),
    ] = 100.0,
    budget: Annotated[
        list[str] | None,
        options.for_limits(
            metavar="NAME=MS",
            help="A fixed limit in ms: gap=800, or one for a stage, as llm_first_token=450. It "
            "needs no reference. Repeatable.",
        ),
    ] = None,
    target: Annotated[
        float, options.for_limits(help="The share of turns that must be within each --budget.")
    ] = 0.95,
    no_reply_ms: options.NoReplyMs = NO_REPLY_MS,
    quiet_ms: options.QuietMs = QUIET_MS,
    starved_ms: options.StarvedMs = STARVED_MS,
    save: Annotated[
        Path | None,
        options.for_output(
            help="Store this run as a baseline. With a reference or budgets: only if it passes."
        ),
    ] = None,
    label: options.Label = "",
    out: options.Out = None,
    otlp: options.Otlp = None,
    json_: options.Json = False,
) -> None:
    """Compare an agent with a reference, and fail if it got slower or cuts in more.

    Exit: 0 pass (or saved, with nothing to compare), 1 regressed, 2 bad input, 3 undecided or not
    comparable, 4 an agent failed.
    """
    from turngap.check.plan import CheckPlan
    from turngap.check.play import check as play
    from turngap.core.paired import Limits
    from turngap.play.target import AgentChoice

    plan = CheckPlan.of(
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
        against=against or None,
        against_sets=against_set or (),
        start_against=start_against,
        against_dialect=against_dialect,
        against_headers=against_header or (),
        baseline=baseline,
        save=save,
        rounds=rounds or 0,
        phases=phases,
        limits=Limits(limit_p50_ms, limit_p95_ms),
        budgets=_budgets(budget or ()),
        target=target,
        until_decided=until_decided,
        max_minutes=max_minutes,
        no_reply_ms=no_reply_ms,
        quiet_ms=quiet_ms,
        starved_ms=starved_ms,
        calibration_turns=calibration,
        label=label,
        out=out,
        telemetry=telemetry_of(ctx, otlp),
    )
    what = "in 1 round" if plan.rounds == 1 else f"in {plan.rounds} rounds"
    if plan.reference is not None:
        what += f", half of them {plan.reference.choice.name}'s"
    if until_decided:
        what += f", and more while undecided, for {max_minutes:g} min in all"
    checked = played(
        plan,
        what,
        lambda progress: play(plan, progress),
        quiet=json_,
        most_minutes=max_minutes if until_decided else None,
    )
    if checked.failure is not None and not json_ and not checked.turns:
        leave(checked.failure, exit_code(checked.record))
    stored = stored_check(checked.path, checked.record, checked.candidate, checked.reference)
    show(stored, json_=json_)
    leave(checked.failure, exit_code(checked.record))


def exit_code(record: "CheckRecord") -> ExitCode:
    """Return a check's exit code; one that was only to save has passed."""
    if record.verdict == "cannot_compare" and record.saved is not None and record.saved.done:
        return ExitCode.PASS
    return EXIT_CODES[record.verdict]


def _budgets(assignments: Sequence[str]) -> dict[str, float]:
    """`NAME=MS` flags.

    Raises:
        InputError: no such stage, or no number.
    """
    from turngap.check.plan import require_budget

    budgets: dict[str, float] = {}
    for assignment in assignments:
        name, _, ms = assignment.partition("=")
        try:
            budgets[name] = float(ms)
        except ValueError as e:
            raise InputError(
                "check.budget",
                f"--budget {assignment!r}: expected NAME=MS",
                hint="for example --budget gap=800",
            ) from e
        require_budget(name, budgets[name])
    return budgets
