"""`turngap judge`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli.shared import JSON, LIBRARY, print_block, print_json, print_text, progress_bar
from turngap.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turngap.core.scenario import Scenario
    from turngap.harness.judge import Engine
    from turngap.runs import StoredRun


def judge(
    run: Annotated[str, typer.Argument(help="A run's folder or name, or `latest`.")] = "latest",
    transcribe: Annotated[
        str | None,
        typer.Option(help="STT[,KEY=VALUE…]: judge what it makes of the agent's recorded sound."),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(help="LLM[,KEY=VALUE…]: a model that gives a verdict beside the rule's."),
    ] = None,
    show_judge_prompt: Annotated[
        bool, typer.Option("--show-judge-prompt", help="Print what that model is told, and end.")
    ] = False,
    library: Annotated[Path | None, LIBRARY] = None,
    json_: Annotated[bool, JSON] = False,
) -> None:
    """Judge a stored run again: by the sound of the agent, or by a model. Both are off by default.

    The verdicts are stored beside the one on the agent's own words, which stays.

    Examples: `turngap judge --transcribe pocketsphinx`;
    `turngap judge runs/NAME --llm openai,base_url=http://127.0.0.1:8000/v1,model=NAME`
    """
    from turngap.core.judging import PROMPT
    from turngap.harness.judge import engine, expectations
    from turngap.lookup import find_run
    from turngap.report.console import summary_block, turn_block
    from turngap.report.json import run_json
    from turngap.runs import read_run

    if show_judge_prompt:
        print_text(PROMPT)
        return
    if transcribe is None and llm is None:
        raise InputError(
            "judge.nothing",
            "nothing to judge with",
            hint="--transcribe STT, --llm LLM or both; `turngap backends` lists them",
        )
    recogniser = engine("stt", transcribe, library) if transcribe else None
    model = engine("llm", llm, library) if llm else None
    stored = read_run(find_run(run))
    scenarios = expectations(stored, library)
    stored = _judged(stored, recogniser, model, scenarios, quiet=json_)
    if json_:
        print_json(run_json(stored))
        return
    for turn in stored.turns:
        print_block(lambda width, turn=turn: turn_block(turn, width))
    print_block(lambda width: summary_block(stored, width))


def _judged(
    run: "StoredRun",
    recogniser: "Engine | None",
    model: "Engine | None",
    scenarios: "Mapping[str, Scenario]",
    *,
    quiet: bool,
) -> "StoredRun":
    """First the sound: a model judges what was made of it."""
    from turngap.harness.judge import judged, transcribed
    from turngap.report.html import write_html

    steps = [(transcribed, recogniser, "transcribing"), (judged, model, "asking the judge")]
    with progress_bar(quiet=quiet) as bar:
        for step, engine, what in steps:
            if engine is not None:
                task = bar.add_task(what, total=len(run.turns))
                run = step(run, engine, scenarios, lambda task=task: bar.advance(task))
    write_html(run)
    return run


def add_to(app: typer.Typer) -> None:
    """Register this module's commands."""
    app.command()(judge)
