"""A check's reports as files in its folder, and a stored check read back."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from turngap.check.junit import junit
from turngap.check.record import CHECK_FILE, CheckRecord, SideRecord
from turngap.check.report import check_block, check_report
from turngap.core.errors import InputError
from turngap.report import page
from turngap.report.markdown import markdown
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
    """Render what the terminal shows, as plain text."""
    console = Console(file=io.StringIO(), width=width, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(check_block(record, width), end="")
    return captured.get()


def check_json(record: CheckRecord, folder: Path) -> dict[str, Any]:
    """Build the output of `--json`. Scripts rely on its keys: keys may be added, none removed."""
    return {**record.model_dump(mode="json"), "path": str(folder)}


def read_check(path: Path) -> tuple[CheckRecord, Run, Run | None]:
    """Read a check's folder: its record, the candidate's run, the reference's where it was played.

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
