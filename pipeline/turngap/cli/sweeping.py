"""`turngap sweep`: one setting over several values."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli.shared import (
    AGENT,
    JSON,
    LIBRARY,
    LLM,
    OUT,
    PHASES,
    SCENARIOS,
    SEED,
    SET,
    STARVED,
    STT,
    TAG,
    TTS,
    agent_choice,
    chosen_scenarios,
    kept_when_interrupted,
    print_block,
    print_json,
    progress_bar,
    say,
    show_failure,
)
from turngap.core.budget import STARVED_MS
from turngap.core.errors import ExitCode, InputError

if TYPE_CHECKING:
    from turngap.core.errors import TurngapError
    from turngap.core.results import Turn
    from turngap.play.sweep import Sweep, SweepPlan


def sweep(
    setting: Annotated[str, typer.Argument(help="TABLE.KEY=V1,V2,… of the stack.")],
    scenarios: Annotated[list[str] | None, SCENARIOS] = None,
    agent: Annotated[str, AGENT] = "embedded",
    llm: Annotated[str | None, LLM] = None,
    stt: Annotated[str | None, STT] = None,
    tts: Annotated[str | None, TTS] = None,
    set_: Annotated[list[str] | None, SET] = None,
    seed: Annotated[int | None, SEED] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each value plays all.")] = 1,
    phases: Annotated[int, PHASES] = 1,
    tag: Annotated[str | None, TAG] = None,
    starved_ms: Annotated[float, STARVED] = STARVED_MS,
    library: Annotated[Path | None, LIBRARY] = None,
    out: Annotated[Path | None, OUT] = None,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Vary one setting: what an agent's patience costs in gap and saves in cut-ins.

    Exit code: 0 played, 2 bad input, 3 a point is invalid (caller starved), 4 an agent failed.

    Example: `turngap sweep turn.hold_ms=0,150,300,600 --tag pause --rounds 4 --phases 4`
    """
    from turngap.caller.pipecat import PipecatDialect
    from turngap.play.sweep import SweepPlan
    from turngap.report.sweep import sweep_block

    name, equals, values = setting.partition("=")
    if not equals or "." not in name:
        raise InputError(
            "sweep.setting",
            f"{setting!r}: expected TABLE.KEY=V1,V2,…",
            hint="for example: turngap sweep turn.hold_ms=0,100,200,400",
        )
    folder, loaded = chosen_scenarios(agent, scenarios, tag, library)
    plan = SweepPlan(
        choice=agent_choice(agent, {"llm": llm, "stt": stt, "tts": tts}, set_, seed, True),
        library=folder,
        setting=name,
        values=[value.strip() for value in values.split(",") if value.strip()],
        scenarios=loaded,
        dialect=PipecatDialect(),
        rounds=rounds,
        phases=phases,
        out=out,
        starved_ms=starved_ms,
    )
    plan.targets()
    swept, failure = _play(plan, quiet=json_)
    if json_:
        print_json(swept.as_json())
    else:
        print_block(lambda width: sweep_block(swept.as_json(), width))
        say(f"stored in {swept.path}")
    if failure is not None:
        show_failure(failure)
        raise typer.Exit(failure.exit_code)
    raise typer.Exit(ExitCode.PASS if swept.valid else ExitCode.INCONCLUSIVE)


def _play(plan: "SweepPlan", *, quiet: bool) -> "tuple[Sweep, TurngapError | None]":
    import asyncio

    from turngap.play.plan import Progress
    from turngap.play.sweep import sweep

    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task("", total=plan.turns)

        def on_turn(_: "Turn") -> None:
            bar.advance(task)

        def on_step(step: str) -> None:
            bar.update(task, description=step)

        with kept_when_interrupted(bar) as on_folder:
            return asyncio.run(sweep(plan, Progress(on_step, on_turn, on_folder)))


def add_to(app: typer.Typer) -> None:
    """Register this module's commands."""
    app.command()(sweep)
