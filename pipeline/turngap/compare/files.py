"""A comparison's files: read back, and as Markdown and JSON."""

from pathlib import Path
from typing import Any

from turngap.compare import words
from turngap.compare.record import COMPARISON_FILE, ComparisonRecord
from turngap.compare.report import comparison_report
from turngap.report import page
from turngap.report.markdown import markdown
from turngap.store.documents import read_document
from turngap.store.runs import Run, read_run_beside

MARKDOWN_FILE = "compare.md"
PAGE_FILE = "report.html"

_HINT = "give the folder that `turngap compare` names at its end"


def read_comparison(folder: Path) -> ComparisonRecord:
    """Read a stored comparison.

    Raises:
        InputError: it cannot be read, is damaged, or of another version.
    """
    return read_document(folder / COMPARISON_FILE, ComparisonRecord, hint=_HINT)


def read_runs(record: ComparisonRecord, folder: Path) -> list[Run]:
    """Read the run of each backend.

    Raises:
        InputError: one is missing, damaged, or of another version.
    """
    return [read_run_beside(folder / COMPARISON_FILE, b.run) for b in record.backends if b.run]


def comparison_json(record: ComparisonRecord, folder: Path) -> dict[str, Any]:
    """Build the output of `--json`. Scripts rely on its keys: keys may be added, none removed."""
    document = record.model_dump(mode="json")
    for backend, stored in zip(document["backends"], record.backends, strict=True):
        backend["cut_ins"] = stored.cut_ins and stored.cut_ins.as_json()
        backend["hit_rate_ci95"] = [backend["hit_rate"]["low"], backend["hit_rate"]["high"]]
        backend["hit_rate"] = backend["hit_rate"]["value"]
    inconclusive = [words.inconclusive(pair) for pair in record.inconclusive]
    return {"path": str(folder), "valid": record.valid, "inconclusive": inconclusive, **document}


def write_reports(record: ComparisonRecord, folder: Path) -> Path:
    """Write the page and `compare.md` into the comparison's folder; returns the page's path.

    Raises:
        InputError: the folder cannot be written to.
    """
    report = comparison_report(record)
    page.write(folder / MARKDOWN_FILE, markdown(report))
    return page.write(folder / PAGE_FILE, page.render(report))
