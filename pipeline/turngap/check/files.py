"""A check's reports as files in its folder, and a stored check read back."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from turngap.check import words as check_words
from turngap.check.report import check_report
from turngap.core.errors import InputError
from turngap.report import page, terminal
from turngap.report import words as report_words
from turngap.report.junit import Case, document, times
from turngap.report.markdown import markdown
from turngap.store.checks import CHECK_FILE, CheckRecord, CheckVerdict, MetricVerdict, SideRecord
from turngap.store.documents import read_document
from turngap.store.runs import Run, read_run_beside

PAGE_FILE = "check.html"
TEXT_WIDTH = 100

_HINT = "give the folder that `turngap check` names at its end"


def write_reports(record: CheckRecord, folder: Path, candidate: Run, reference: Run | None) -> None:
    """Write `check.html`, `summary.md` and `junit.xml` into `folder`, each whole or not at all.

    Raises:
        InputError: the folder cannot be written to.
    """
    report = check_report(record, candidate, reference, folder)
    page.write(folder / PAGE_FILE, page.render(report))
    page.write(folder / "summary.md", markdown(report))
    page.write(folder / "junit.xml", junit(record, check_text(record)))


def check_text(record: CheckRecord, width: int = TEXT_WIDTH) -> str:
    """Render the text that the terminal shows, without styles."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(terminal.block(check_report(record), width), end="")
    return captured.get()


def check_json(record: CheckRecord, folder: Path) -> dict[str, Any]:
    """Build the output of `--json`. Scripts rely on its keys: keys may be added, none removed."""
    return {**record.model_dump(mode="json"), "path": str(folder)}


def read_check(path: Path) -> tuple[CheckRecord, Run, Run | None]:
    """Read a check's folder: its record, the candidate's run, and the reference's if it was played.

    Raises:
        InputError: no check, damaged, of another version, or one of its runs is missing.
    """
    record = read_document(path / CHECK_FILE, CheckRecord, hint=_HINT)
    candidate = _read_side(path, record.candidate)
    if candidate is None:
        raise InputError(
            "document.damaged", f"{path / CHECK_FILE}: names no run of the candidate", hint=_HINT
        )
    reference = record.reference and _read_side(path, record.reference)
    return _still_borne(record, candidate, reference), candidate, reference


def _still_borne(record: CheckRecord, candidate: Run, reference: Run | None) -> CheckRecord:
    """Withdraw a verdict whose runs have lost turns since it was made."""
    sides = [("candidate", record.candidate, candidate)]
    if record.reference is not None and reference is not None:
        sides.append(("reference", record.reference, reference))
    lost = tuple(
        f"the {name}'s run holds {len(run.turns)} of the {side.turns} turns that were judged"
        for name, side, run in sides
        if len(run.turns) != side.turns
    )
    if not lost:
        return record
    return record.model_copy(update={"verdict": "cannot_compare", "why": lost})


def _read_side(folder: Path, side: SideRecord) -> Run | None:
    """Read the run next to `check.json`; a check that failed at once has one without turns."""
    return None if side.run is None else read_run_beside(folder / CHECK_FILE, side.run)


# A check as JUnit XML.


SUITE = "turngap check"


def junit(record: CheckRecord, console_text: str) -> bytes:
    """Build the document: a regression is a failure, no verdict is a skipped test with a reason."""
    seconds, started = times(record.started_utc, record.finished_utc)
    return document(
        SUITE,
        _cases(record),
        properties=dict(_properties(record)),
        output=console_text,
        seconds=seconds,
        started=started,
    )


def _cases(record: CheckRecord) -> Sequence[Case]:
    cases = [_case(m.name, m.verdict, _metric_message(record, m)) for m in record.metrics]
    for budget in record.budgets:
        share, interval = check_words.budget_figures(budget)
        target = check_words.percents(budget.target)
        message = f"{share} of {budget.n} turns within ({interval}), target {target}"
        cases.append(_case(check_words.budget_name(budget), budget.verdict, message))
    why = "; ".join(check_words.why_words(record))
    if record.verdict == "cannot_compare":
        # Whatever the figures look like: they do not bear a verdict.
        return [_case(c.name, "cannot_compare", why) for c in cases] or [
            _case("comparison", "cannot_compare", why)
        ]
    return cases or [_case("comparison", "undecided", why)]


def _case(name: str, verdict: CheckVerdict, message: str) -> Case:
    """Build the test case of a metric, a budget, or the comparison as such."""
    if verdict == "pass":
        return Case(name, "passed", message)
    if verdict == "regressed":
        return Case(name, "failed", message, kind="regressed")
    return Case(name, "skipped", f"{verdict}: {message}")


def _metric_message(record: CheckRecord, metric: MetricVerdict) -> str:
    parts = [
        check_words.difference_words(metric) if metric.difference is not None else "",
        f"95 % interval {interval}" if (interval := check_words.interval_words(metric)) else "",
        f"limit {check_words.limit_words(metric)}",
        f"n={metric.n}",
        check_words.metric_note(record, metric),
    ]
    return ", ".join(filter(None, parts))


def _properties(record: CheckRecord) -> list[tuple[str, str]]:
    pairs = [
        ("verdict", record.verdict),
        ("pairs", str(record.pairs)),
        ("left_out", str(record.left_out)),
        ("cut_ins", check_words.cut_ins_words(record)),
        ("starved_ms", f"{record.starved_ms:g}"),
        ("caller", check_words.starved_words(record) or report_words.ON_TIME),
        ("moved_stage", record.moved_stage or "none"),
        ("candidate", check_words.side_words(record.candidate)),
        ("machine", record.machine.fingerprint),
    ]
    if record.reference is not None:
        pairs.append(("reference", check_words.side_words(record.reference)))
    return pairs
