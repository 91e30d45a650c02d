"""`turngap judge`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turngap.cli import options
from turngap.cli.progress import Display
from turngap.cli.results import show, stored_comparison, stored_run
from turngap.cli.shared import print_text
from turngap.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turngap.backends import ConfiguredBackend
    from turngap.compare.record import ComparisonRecord
    from turngap.scenario.model import Scenario
    from turngap.store.runs import Run


def judge(
    run: Annotated[
        str,
        typer.Argument(
            help="A run or a comparison: its folder, its name, or `latest`, the finished run that "
            "began last.",
            autocompletion=options.run_names,
        ),
    ] = "latest",
    transcribe: Annotated[
        str | None,
        options.for_agent(
            metavar="STT[,KEY=VALUE…]",
            help="Judge a transcript of the agent's audio, which this STT backend makes.",
            autocompletion=options.stt_names,
        ),
    ] = None,
    llm: Annotated[
        str | None,
        options.for_agent(
            metavar="LLM[,KEY=VALUE…]",
            help="Let this LLM judge the answers, too.",
            autocompletion=options.llm_names,
        ),
    ] = None,
    library: options.Library = None,
    root: options.RunsFolder = None,
    show_judge_prompt: Annotated[
        bool,
        options.for_output("--show-judge-prompt", help="Print what the LLM is told, and exit."),
    ] = False,
    json_: options.Json = False,
) -> None:
    """Judge the answers of a stored run again, from a transcript of its audio or with an LLM.

    The first verdict, which the scenario's `expect` gave on the text that the agent reported, is
    kept beside the new ones. In a comparison the LLM judges the turns of every backend. Give
    --transcribe, --llm or both.

    Exit: 0 judged, 2 bad input, 4 the STT or the LLM failed.
    """
    from turngap.compare.record import COMPARISON_FILE
    from turngap.judge.play import PROMPT, expectations, judge_backend, recogniser_backend
    from turngap.store.documents import find_folder
    from turngap.store.folders import find_run
    from turngap.store.runs import read_run

    if show_judge_prompt:
        print_text(PROMPT)
        return
    if transcribe is None and llm is None:
        raise InputError(
            "judge.nothing",
            "nothing to judge with",
            hint="--transcribe STT, --llm LLM or both; `turngap backends` lists them",
        )
    recogniser = None if transcribe is None else recogniser_backend(transcribe, library)
    model = None if llm is None else judge_backend(llm, library)
    if (comparison := find_folder(run, COMPARISON_FILE, root)) is not None:
        _show_judged(comparison, recogniser, model, library, json_=json_)
        return
    stored = read_run(find_run(run, root))
    scenarios = expectations(stored, library)
    show(stored_run(_judged(stored, recogniser, model, scenarios)), json_=json_)


def _show_judged(
    folder: Path,
    recogniser: "ConfiguredBackend | None",
    model: "ConfiguredBackend | None",
    library: Path | None,
    *,
    json_: bool,
) -> None:
    from turngap.compare.report import read_comparison

    if model is None or recogniser is not None:
        raise InputError(
            "judge.comparison",
            f"{folder} is a comparison: a model judges it (--llm), and no recogniser",
            hint="--transcribe takes one of its runs; a model then judges that one's words",
        )
    record = judged_comparison(read_comparison(folder), folder, model, library)
    show(stored_comparison(folder, record), json_=json_)


def judged_comparison(
    record: "ComparisonRecord",
    folder: Path,
    model: "ConfiguredBackend",
    library: Path | None,
) -> "ComparisonRecord":
    """Judge a stored comparison by a model, and rewrite the pages of its runs.

    Raises:
        TurngapError: as `turngap.judge.play.judge_comparison`.
    """
    from turngap.judge.play import judge_comparison
    from turngap.report.run import write_html

    with Display(sum(b.turns for b in record.backends), "turns") as shown:
        shown.step("asking the judge")
        record, runs = judge_comparison(record, folder, model, library, shown.advance)
    for run in runs:
        write_html(run)
    return record


def _judged(
    run: "Run",
    recogniser: "ConfiguredBackend | None",
    model: "ConfiguredBackend | None",
    scenarios: "Mapping[str, Scenario]",
) -> "Run":
    """First the sound: a model judges what was made of it."""
    from turngap.judge.play import judged, transcribed

    steps = [(transcribed, recogniser, "transcribing"), (judged, model, "asking the judge")]
    with Display(len(run.turns), "turns") as shown:
        for step, engine, what in steps:
            if engine is not None:
                shown.step(what, total=len(run.turns))
                run = step(run, engine, scenarios, shown.advance)
    return run
