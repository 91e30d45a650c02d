"""`turngap replay` and `turngap calibrate`."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli.shared import (
    AGENT,
    CALIBRATION,
    CALIBRATION_TURNS,
    JSON,
    LIBRARY,
    LLM,
    OUT,
    SCENARIOS,
    SEED,
    SET,
    STARVED,
    STT,
    TAG,
    TTS,
    agent_choice,
    chosen_scenarios,
    print_block,
    print_json,
    progress_bar,
    say,
    show_failure,
)
from turngap.core.budget import STARVED_MS
from turngap.core.errors import AgentError, ExitCode, InputError, TurngapError

if TYPE_CHECKING:
    from turngap.core.results import Turn
    from turngap.play.calibrate import Calibration
    from turngap.play.plan import ReplayPlan
    from turngap.store.runs import Run

DIALECTS = ("pipecat",)


def replay(
    scenarios: Annotated[list[str] | None, SCENARIOS] = None,
    agent: Annotated[str, AGENT] = "embedded",
    llm: Annotated[str | None, LLM] = None,
    stt: Annotated[str | None, STT] = None,
    tts: Annotated[str | None, TTS] = None,
    set_: Annotated[list[str] | None, SET] = None,
    dialect: Annotated[str, typer.Option(help="The protocol of a ws:// agent.")] = "pipecat",
    tag: Annotated[str | None, TAG] = None,
    repeat: Annotated[int, typer.Option(min=1, help="How often to play everything.")] = 1,
    budget_ms: Annotated[
        float | None,
        typer.Option(min=1, max=60_000, help="A budget instead of the scenarios' own."),
    ] = None,
    min_hit_rate: Annotated[
        float | None, typer.Option(min=0, max=1, help="Exit 1 below this share of hits.")
    ] = None,
    seed: Annotated[int | None, SEED] = None,
    phase_ms: Annotated[
        float, typer.Option(min=0, max=31, help="Shift on the agent's 32 ms VAD grid.")
    ] = 0.0,
    greeting_ms: Annotated[
        float | None,
        typer.Option(min=0, max=60_000, help="How long the agent may take to greet; found out."),
    ] = None,
    starved_ms: Annotated[float, STARVED] = STARVED_MS,
    marks: Annotated[bool, typer.Option(help="Let the agent report its marks.")] = True,
    calibration: Annotated[int, CALIBRATION] = CALIBRATION_TURNS,
    library: Annotated[Path | None, LIBRARY] = None,
    out: Annotated[Path | None, OUT] = None,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Play recorded people against an agent and measure every turn.

    Examples: `turngap replay` plays every shipped scenario against the built-in agent;
    `turngap replay coffee-order --repeat 5`; `turngap replay --agent ws://127.0.0.1:8765/ws`
    measures somebody's pipecat bot; `turngap replay --set llm.ttft_ms=400` a slower model.

    Exit: 0 played, 1 below --min-hit-rate, 2 bad input, 3 invalid (caller starved), 4 agent failed.
    """
    from turngap.caller.pipecat import PipecatDialect
    from turngap.caller.stream import RATE
    from turngap.play.plan import ReplayPlan
    from turngap.play.target import resolve
    from turngap.report.console import summary_block
    from turngap.report.html import write_html
    from turngap.report.json import run_json

    if dialect not in DIALECTS:
        raise InputError(
            "dialect.unknown", f"no dialect {dialect!r}", hint=f"known: {', '.join(DIALECTS)}"
        )
    choice = agent_choice(agent, {"llm": llm, "stt": stt, "tts": tts}, set_, seed, marks)
    folder, loaded = chosen_scenarios(agent, scenarios, tag, library)
    plan = ReplayPlan(
        scenarios=loaded,
        target=resolve(choice, folder),
        dialect=PipecatDialect(),
        rounds=repeat,
        phase=round(phase_ms * RATE / 1000),
        budget_ms=budget_ms,
        out=out,
        calibration_turns=calibration,
        greeting_ms=greeting_ms,
        starved_ms=starved_ms,
        settings={"tag": tag, "repeat": repeat, "phase_ms": phase_ms, "seed": seed, "marks": marks},
    )
    run, failure = _play(plan, quiet=json_)
    page = write_html(run)
    if json_:
        print_json(run_json(run))
    elif run.turns:
        print_block(lambda width: summary_block(run, width))
        say(f"page with recordings: {page}")
    if failure := failure or failed_turns(run):
        show_failure(failure)
    raise typer.Exit(exit_code(run, failure, min_hit_rate))


def _play(plan: "ReplayPlan", *, quiet: bool) -> "tuple[Run, TurngapError | None]":
    """Play the plan with a progress bar, printing each turn as it is stored."""
    import asyncio

    from rich.console import Console

    from turngap.play.plan import Progress
    from turngap.play.replay import replay
    from turngap.report.console import turn_block

    console = Console(highlight=False, quiet=quiet)
    if not quiet:
        say(f"{plan.turns} turns against {plan.target.choice.name}, in real time")
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task("", total=plan.turns)

        def on_turn(turn: "Turn") -> None:
            bar.advance(task)
            # Above the bar where both are on the terminal.
            to = bar.console if console.is_terminal and bar.console.is_terminal else console
            try:
                to.print(turn_block(turn, console.width))
            except SystemExit:  # rich's word for a closed pipe (`| head`): the run goes on unseen
                console.quiet = True

        def on_step(step: str) -> None:
            bar.update(task, description=step)

        try:
            return asyncio.run(replay(plan, Progress(on_step, on_turn)))
        except KeyboardInterrupt:
            bar.stop()
            say(
                "interrupted: the turns that were played are stored (turngap report shows them)"
                if bar.tasks[0].completed
                else "interrupted before the first turn: there is nothing to show"
            )
            raise


def failed_turns(run: "Run") -> AgentError | None:
    """That the agent could not make some of its replies, and why not; None where it could."""
    from turngap.report.words import clean

    failed = [turn for turn in run.turns if turn.error is not None]
    if not failed:
        return None
    first = failed[0]
    return AgentError(
        "agent.turn_failed",
        f"the agent failed in {len(failed)} of {len(run.turns)} turns, first in {first.scenario}, "
        f"turn {first.turn}: {clean(first.error or '')}",
        hint=f"the run is kept, with the agent's log: {run.path}",
    )


def exit_code(run: "Run", failure: TurngapError | None, min_hit_rate: float | None) -> ExitCode:
    """What a replay exits with."""
    from turngap.core.summary import summarise

    if failure is not None:
        return failure.exit_code
    answered = any(t.outcome in ("answered", "late", "cut_in") for t in run.turns)
    if not answered and any(t.faults for t in run.turns):
        return ExitCode.AGENT_FAILED
    if not run.record.valid:
        return ExitCode.INCONCLUSIVE
    if min_hit_rate is not None and (summarise(run.turns).hit_rate.value or 0.0) < min_hit_rate:
        return ExitCode.OVER_BUDGET
    return ExitCode.PASS


def calibrate(
    turns: Annotated[int, typer.Option(min=1, help="How many known gaps to measure.")] = 200,
    seed: Annotated[int, typer.Option(help="Order of the conditions.")] = 1,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Measure the instrument itself, against known gaps that a loopback agent injects.

    Example: `turngap calibrate --turns 400`
    """
    from turngap.report.calibration import calibration_block

    document = _calibrate(turns, seed, quiet=json_).as_json()
    if json_:
        print_json(document)
    else:
        print_block(lambda width: calibration_block(document, width))


def _calibrate(turns: int, seed: int, *, quiet: bool) -> "Calibration":
    import asyncio

    from turngap.play.calibrate import calibrate
    from turngap.play.run import undisturbed

    with tempfile.TemporaryDirectory() as folder, progress_bar(quiet=quiet) as bar:
        task = bar.add_task("known gaps", total=turns)
        log = Path(folder) / "loopback.log"
        with undisturbed():
            return asyncio.run(
                calibrate(
                    turns, seed=seed, log=log, on_turn=lambda n: bar.update(task, completed=n)
                )
            )


def add_to(app: typer.Typer) -> None:
    """Register this module's commands."""
    for command in (replay, calibrate):
        app.command()(command)
