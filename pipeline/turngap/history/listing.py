"""The history as a list: on a terminal, as JSON and as CSV."""

import csv
import dataclasses
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from turngap.core.untrusted import printable
from turngap.history.entry import Entry
from turngap.report import terminal, words
from turngap.report.sections import TERMINAL, Cell, Column, Item, Line, Lines, Table
from turngap.report.words import Style

# So many reasons are printed below the list, the newest ones; `--json` has all of them.
MOST_REASONS = 10
_SHORT_COMMIT = 9
_MOST_LABEL = 20
_NONE = "–"
CAPTION = (
    "n: turns that count. Gap in ms: a turn without a reply counts as slower than any; – where "
    "there are too few turns for it. Of a check, the figures are the candidate's; of a load test, "
    "those of the level that it certifies"
)
CSV_COLUMNS = (
    *("path", "kind", "status", "label", "agent", "commit", "started_utc", "valid", "verdict"),
    *("machine", "played", "budget_ms", "metrics_version", "n", "gap_p50_ms", "gap_p95_ms"),
    *("hits", "hit_rate", "cut_ins", "why"),
)


def list_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """What `--json` prints. Scripts rely on its keys: more may come, none goes."""
    return {"runs": [_document(entry) for entry in entries]}


def list_csv(entries: Sequence[Entry]) -> str:
    """The list as CSV, with a line of column names; None is an empty cell."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, CSV_COLUMNS, extrasaction="ignore")
    writer.writeheader()
    for entry in entries:
        row = _document(entry)
        writer.writerow(
            row
            | {f"gap_{name}_ms": row["gap_ms"][name] for name in ("p50", "p95")}
            | {"why": "; ".join(entry.why)}
        )
    return out.getvalue()


def _document(entry: Entry) -> dict[str, Any]:
    row = dataclasses.asdict(entry) | {"hit_rate": entry.hit_rate, "why": list(entry.why)}
    # A file's name need not be text, and JSON must be.
    return row | {"path": entry.path.encode("utf-8", "replace").decode()}


def list_block(entries: Sequence[Entry], width: int) -> Text:
    """The list on a terminal, the newest entry last, and why some are not valid."""
    items: list[Item] = [list_table(entries), reasons(entries)]
    found = [line for item in items for line in terminal.item_lines(item, width)]
    return terminal.joined(found)


def list_table(entries: Sequence[Entry]) -> Table:
    """A row for each entry, in their order."""
    name = namer(entries)
    labels = any(entry.label for entry in entries)
    head = [
        Column("folder"),
        Column("kind", left=True, spare=True),
        *([Column("label", left=True)] if labels else []),
        Column("agent", left=True, spare=True),
        Column("commit", left=True, spare=True),
        Column("n"),
        Column("hit rate"),
        Column("cut in"),
        Column("p50"),
        Column("p95"),
        Column("result", left=True),
    ]
    rows = [
        [
            name(entry),
            entry.kind,
            *([terminal.cropped(printable(entry.label), _MOST_LABEL)] if labels else []),
            entry.agent,
            commit_words(entry.commit),
            f"{entry.n:,}" if entry.n else _NONE,
            _NONE if entry.hit_rate is None else words.percent(entry.hit_rate),
            _NONE if entry.cut_ins is None or not entry.n else f"{entry.cut_ins:,}",
            ms(entry.gap_ms["p50"]),
            ms(entry.gap_ms["p95"]),
            result(entry),
        ]
        for entry in entries
    ]
    return Table(head, rows, CAPTION)


def reasons(entries: Sequence[Entry]) -> Lines:
    """Why the newest of those entries whose figures cannot be used are as they are."""
    name = namer(entries)
    told = [(name(entry), entry.why[0]) for entry in entries if not entry.valid and entry.why]
    shown = [Line("why", f"{who}: {why}", short=True) for who, why in told[-MOST_REASONS:]]
    if len(told) > MOST_REASONS:
        more = f"{len(told) - MOST_REASONS} more have a reason: --json shows all of them"
        shown.append(Line("why", more, "dim"))
    return Lines(shown, where=TERMINAL)


def namer(entries: Sequence[Entry]) -> Callable[[Entry], str]:
    """How to name entries: by their paths, without the folder that all of them lie in."""
    try:
        above = os.path.commonpath([Path(entry.path).parent for entry in entries])
    except ValueError:  # none, or some are absolute and some are not
        return lambda entry: printable(entry.path)
    return lambda entry: printable(str(Path(entry.path).relative_to(above)))


def commit_words(commit: str | None) -> str:
    """A commit, shortened; `+` behind one from which files differed."""
    if commit is None:
        return _NONE
    bare, dirty, _ = commit.partition("-dirty")
    return bare[:_SHORT_COMMIT] + ("+" if dirty else "")


def ms(value: float | None) -> str:
    """Milliseconds, or a dash."""
    return _NONE if value is None else words.ms(value)


def result(entry: Entry) -> Cell:
    """What came of it in a word or two."""
    if entry.status != "finished":
        style: Style = "bad" if entry.status == "failed" else "unsure"
        mark = "✗" if entry.status == "failed" else "?"
        return Cell(f"{mark} {entry.status}", style)
    if not entry.valid:
        return Cell(f"≠ {entry.verdict or 'invalid'}", "odd")
    if entry.verdict == "regressed":
        return Cell(f"✗ {entry.verdict}", "bad")
    return Cell(entry.verdict or "valid", "unsure" if entry.verdict == "undecided" else "")
