"""`turngap compare`: LLM backends over the same recordings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli.shared import (
    AGENT,
    JSON,
    LIBRARY,
    SEED,
    SET,
    STARVED,
    STT,
    TTS,
    agent_choice,
    print_block,
    print_json,
    progress_bar,
    say,
    show_failure,
)
from turngap.core.budget import STARVED_MS
from turngap.core.errors import AgentError, ExitCode, TurngapError

if TYPE_CHECKING:
    from turngap.compare.play import ComparePlan
    from turngap.compare.record import ComparisonRecord
    from turngap.core.results import Turn


def compare(
    scenarios: Annotated[
        list[str] | None, typer.Argument(help="Names or files; default: all of the library.")
    ] = None,
    llm: Annotated[
        list[str] | None,
        typer.Option("--llm", help="[LABEL=]BACKEND[,KEY=VALUE…]; at least twice."),
    ] = None,
    agent: Annotated[str, AGENT] = "embedded",
    stt: Annotated[str | None, STT] = None,
    tts: Annotated[str | None, TTS] = None,
    set_: Annotated[list[str] | None, SET] = None,
    seed: Annotated[int | None, SEED] = None,
    judge: Annotated[
        str | None,
        typer.Option(
            help="LLM[,KEY=VALUE…]: judges the answers too, afterwards, in a column of its own."
        ),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(help="NAME=IN,OUT: US dollars per million tokens of one compared."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each backend plays all.")] = 1,
    phases: Annotated[
        int, typer.Option(min=1, max=32, help="Sweep the agent's 32 ms grid over the rounds.")
    ] = 1,
    budget_ms: Annotated[
        float | None,
        typer.Option(min=1, max=60_000, help="A budget instead of the scenarios' own."),
    ] = None,
    starved_ms: Annotated[float, STARVED] = STARVED_MS,
    tag: Annotated[str | None, typer.Option(help="Only scenarios with this tag.")] = None,
    library: Annotated[Path | None, LIBRARY] = None,
    out: Annotated[Path | None, typer.Option(help="Where it is kept; ./runs.")] = None,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Compare LLM backends on the same recordings: speed, right answers, price, long tasks.

    Examples: `turngap compare --llm sim:full --llm sim:distilled --rounds 3`;
    `turngap compare --llm small --price small=0.1,0.4 --llm 'race,fast=small,fast_price=[0.1,0.4]'`

    Exit: 0 compared, 2 bad input, 3 a run is invalid (caller starved), 4 an agent failed, even in
    a single turn.
    """
    from turngap.caller.pipecat import PipecatDialect
    from turngap.cli.judging import judged_comparison
    from turngap.compare.console import comparison_block
    from turngap.compare.files import comparison_json, write_markdown
    from turngap.compare.page import write_page
    from turngap.compare.play import ComparePlan, parse_contender, parse_price
    from turngap.judge.play import engine
    from turngap.scenario.library import library_for, load_scenarios, require_inside, scenario_paths

    folder = library_for(scenarios or (), library)
    paths = scenario_paths(folder, scenarios or (), tag)
    if "://" not in agent:
        require_inside(folder, paths)
    plan = ComparePlan(
        choice=agent_choice(agent, {"stt": stt, "tts": tts}, set_, seed, True),
        library=folder,
        contenders=[parse_contender(text) for text in llm or ()],
        scenarios=load_scenarios(paths),
        dialect=PipecatDialect(),
        prices=dict(parse_price(text) for text in price or ()),
        rounds=rounds,
        phases=phases,
        budget_ms=budget_ms,
        out=out,
        starved_ms=starved_ms,
    )
    plan.targets()
    model = None if judge is None else engine("llm", judge, folder)
    record, path, failure = _play(plan, quiet=json_)
    if model is not None and failure is None:
        try:
            record = judged_comparison(record, path, model, folder, quiet=json_)
        except TurngapError as e:
            say(f"not judged; turngap judge {path} --llm LLM asks again")
            failure = e
    write_markdown(record, path)
    page = write_page(record, path)
    if json_:
        print_json(comparison_json(record, path))
    else:
        # Of agents that never answered the reason is all there is to tell.
        if any(backend.turns for backend in record.backends):
            print_block(lambda width: comparison_block(record, width))
        say(f"stored in {path}\npage: {page}")
    if failure := failure or _failed(record, path):
        show_failure(failure)
        raise typer.Exit(failure.exit_code)
    if not all(backend.valid for backend in record.backends):
        raise typer.Exit(ExitCode.INCONCLUSIVE)


def _failed(record: "ComparisonRecord", path: Path) -> AgentError | None:
    """That a backend could not make some of its replies; None where all of them could."""
    from turngap.compare.words import failed

    broken = [backend for backend in record.backends if backend.failed]
    if not broken:
        return None
    return AgentError(
        "agent.turn_failed",
        "; ".join(f"{backend.name}: {failed(backend)}" for backend in broken),
        hint=f"the runs are kept, with the agents' logs: {path}",
    )


def _play(
    plan: "ComparePlan", *, quiet: bool
) -> "tuple[ComparisonRecord, Path, TurngapError | None]":
    import asyncio

    from turngap.compare.play import compare
    from turngap.play.plan import Progress

    if not quiet:
        say(f"{plan.turns} turns, {len(plan.contenders)} backends in turns, in real time")
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task("", total=plan.turns)

        def on_turn(_: "Turn") -> None:
            bar.advance(task)

        def on_step(step: str) -> None:
            bar.update(task, description=step)

        folders: list[Path] = []
        try:
            return asyncio.run(compare(plan, Progress(on_step, on_turn, folders.append)))
        except KeyboardInterrupt:
            bar.stop()
            say(
                f"interrupted: the turns that were played are stored (turngap report {folders[0]})"
                if folders and bar.tasks[0].completed
                else "interrupted before the first turn: there is nothing to show"
            )
            raise


def add_to(app: typer.Typer) -> None:
    """Register this module's commands."""
    app.command()(compare)
