"""`turngap check`, `compare` and `judge`."""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from turngap.cli.results import show, stored_check, stored_comparison, stored_run
from turngap.cli.shared import (
    Display,
    leave,
    played,
    print_json,
    print_text,
    say,
    telemetry_of,
)
from turngap.core.errors import AgentError, ExitCode, InputError, TurngapError
from turngap.play.options import Asked

if TYPE_CHECKING:
    from turngap.backends import ConfiguredBackend
    from turngap.scenario.model import Scenario
    from turngap.store.checks import CheckRecord
    from turngap.store.comparisons import ComparisonRecord
    from turngap.store.runs import Run

EXIT_CODES = {
    "pass": ExitCode.PASS,
    "regressed": ExitCode.OVER_BUDGET,
    "undecided": ExitCode.INCONCLUSIVE,
    "cannot_compare": ExitCode.INCONCLUSIVE,
}


def check(ctx: typer.Context, asked: Asked) -> None:
    """Compare an agent with a reference, and fail if it got slower or cuts in more.

    Exit: 0 pass (or saved, with nothing to compare), 1 regressed, 2 bad input, 3 undecided or not
    comparable, 4 an agent failed. With --self-test: 0 every planted fault is caught and the
    unchanged agent passes, 1 not, 3 the unchanged agent stays undecided.
    """
    from turngap.check.plan import CheckPlan
    from turngap.check.play import check as play

    plan = CheckPlan.asked(asked)
    if asked.self_test:
        from turngap.check.self_test import lines_of, self_test

        tried = self_test(plan)
        print_json(asdict(tried)) if asked.json_ else print_text("\n".join(lines_of(tried)))
        leave(None, tried.exit_code)
    plan = replace(plan, telemetry=telemetry_of(ctx, asked.otlp))
    what = "in 1 round" if plan.rounds == 1 else f"in {plan.rounds} rounds"
    if plan.reference is not None:
        what += f", half of them {plan.reference.choice.name}'s"
    if plan.until_decided:
        what += f", and more while undecided, for {plan.max_minutes:g} min in all"
    checked = played(
        plan,
        what,
        play,
        quiet=asked.json_,
        most_minutes=plan.max_minutes if plan.until_decided else None,
    )
    if checked.failure is not None and not asked.json_ and not checked.turns:
        leave(checked.failure, exit_code(checked.record))
    stored = stored_check(checked.path, checked.record, checked.candidate, checked.reference)
    show(stored, json_=asked.json_)
    leave(checked.failure, exit_code(checked.record))


def exit_code(record: "CheckRecord") -> ExitCode:
    """Return a check's exit code; a check that only saves has passed."""
    if record.verdict == "cannot_compare" and record.saved is not None and record.saved.done:
        return ExitCode.PASS
    return EXIT_CODES[record.verdict]


def compare(ctx: typer.Context, asked: Asked) -> None:
    """Compare LLMs on the same recordings: speed, cut-ins, right answers, price, long tasks.

    Exit: 0 compared, 2 bad input, 3 inconclusive because turngap itself was late too often,
    or mainly with one LLM, 4 an agent failed, even in a single turn.
    """
    from turngap.compare.play import ComparePlan, parse_price
    from turngap.compare.play import compare as play

    plan = ComparePlan.asked(asked, dict(map(parse_price, asked.prices)))
    plan = replace(plan, telemetry=telemetry_of(ctx, asked.otlp))
    plan.targets()
    from turngap.judge import judge_backend  # needs what the agent needs

    model = None if asked.judge is None else judge_backend(asked.judge, plan.library)
    what = f"against {plan.agents} backends in turn"
    record, path, failure = played(plan, what, play, quiet=asked.json_)
    if model is not None and failure is None:
        try:
            record = judged_comparison(record, path, model, plan.library)
        except TurngapError as e:
            say(f"not judged; turngap judge {shlex.quote(str(path))} --llm LLM asks again")
            failure = e
    stored = stored_comparison(path, record)
    # Of agents that never answered the reason is all there is to say.
    if not any(backend.turns for backend in record.backends):
        stored = replace(stored, blocks=lambda _: [])
    show(stored, json_=asked.json_)
    conclusive = not record.inconclusive and all(backend.valid for backend in record.backends)
    leave(
        failure or _failed_backends(record, path),
        ExitCode.PASS if conclusive else ExitCode.INCONCLUSIVE,
    )


def _failed_backends(record: "ComparisonRecord", path: Path) -> AgentError | None:
    """Build the error if a backend failed some turns; None if none did."""
    from turngap.compare.words import failed

    broken = [backend for backend in record.backends if backend.failed]
    if not broken:
        return None
    return AgentError(
        "agent.turn_failed",
        "; ".join(f"{backend.name}: {failed(backend)}" for backend in broken),
        hint=f"the runs are kept, with the agents' logs: {path}",
    )


def judge(_: typer.Context, asked: Asked) -> None:
    """Judge the answers of a stored run again, from a transcript of its audio or with an LLM.

    The first verdict, which the scenario's `expect` gave on the text that the agent reported, is
    kept with the new ones. In a comparison the LLM judges the turns of every backend. Give
    --transcribe, --llm or both.

    Exit: 0 judged, 2 bad input, 4 the STT or the LLM failed.
    """
    from turngap.judge import PROMPT, expectations, judge_backend, recogniser_backend
    from turngap.store.comparisons import COMPARISON_FILE
    from turngap.store.documents import find_folder
    from turngap.store.folders import find_run
    from turngap.store.runs import read_run

    if asked.show_judge_prompt:
        print_text(PROMPT)
        return
    if asked.transcribe is None and asked.llm is None:
        raise InputError(
            "judge.nothing",
            "nothing to judge with",
            hint="--transcribe STT, --llm LLM or both; `turngap backends` lists them",
        )
    library, root = asked.library, asked.root
    stt, llm = asked.transcribe, asked.llm
    recogniser = None if stt is None else recogniser_backend(stt, library)
    model = None if llm is None else judge_backend(llm, library)
    if (comparison := find_folder(asked.run, COMPARISON_FILE, root)) is not None:
        _show_judged(comparison, recogniser, model, library, json_=asked.json_)
        return
    stored = read_run(find_run(asked.run, root))
    scenarios = expectations(stored, library)
    show(stored_run(_judged(stored, recogniser, model, scenarios)), json_=asked.json_)


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
            f"{folder} is a comparison, which a model judges (--llm), not a recogniser",
            hint="to judge by sound, name one of its runs with --transcribe",
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
        TurngapError: as `turngap.judge.judge_comparison`.
    """
    from turngap.judge import judge_comparison
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
    """Judge by sound first, because a model judges the transcript of it."""
    from turngap.judge import judged, transcribed

    steps = [(transcribed, recogniser, "transcribing"), (judged, model, "asking the judge")]
    with Display(len(run.turns), "turns") as shown:
        for step, engine, what in steps:
            if engine is not None:
                shown.step(what, total=len(run.turns))
                run = step(run, engine, scenarios, shown.advance)
    return run
