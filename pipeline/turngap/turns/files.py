"""A curve's files: read back, and as page, Markdown and JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turngap.report import page
from turngap.report.markdown import markdown
from turngap.store.documents import read_document
from turngap.store.runs import Run, read_run_beside
from turngap.turns.record import TURNS_FILE, TurnsRecord
from turngap.turns.report import turns_report

MARKDOWN_FILE = "turns.md"
PAGE_FILE = "report.html"

_HINT = "give the folder that `turngap turns` names at its end"


def read_turns(folder: Path) -> tuple[TurnsRecord, list[Run]]:
    """Read a stored curve and the run of each of its points.

    Raises:
        InputError: it or a run cannot be read, is damaged, or of another version.
    """
    record = read_document(folder / TURNS_FILE, TurnsRecord, hint=_HINT)
    return record, [read_run_beside(folder / TURNS_FILE, point.run) for point in record.points]


def turns_json(record: TurnsRecord, folder: Path) -> dict[str, Any]:
    """Build the output of `--json`. Scripts rely on its keys: keys may be added, none removed."""
    return {"path": str(folder), "valid": record.valid, **record.model_dump(mode="json")}


def write_reports(record: TurnsRecord, runs: Sequence[Run], folder: Path) -> Path:
    """Write the page and `turns.md` into the curve's folder; returns the page's path.

    Raises:
        InputError: the folder cannot be written to.
    """
    report = turns_report(record, runs)
    page.write(folder / MARKDOWN_FILE, markdown(report))
    return page.write(folder / PAGE_FILE, page.render(report))
