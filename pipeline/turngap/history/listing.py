"""The history as a list: on a terminal, as JSON and as CSV."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from turngap.core.columns import Column, row_of
from turngap.core.untrusted import printable
from turngap.history.entry import Entry
from turngap.report import sections, terminal, words
from turngap.report.sections import TERMINAL, Cell, Item, Line, Lines
from turngap.report.words import Style
from turngap.store.tables import Table

# So many reasons are printed below the list, the newest ones; `--json` has all of them.
MOST_REASONS = 10
_SHORT_COMMIT = 9
_MOST_LABEL = 20
_NONE = "–"
CAPTION = (
    "n: turns that count. Gap in ms: a turn without a reply counts as slower than any; – where "
    "there are too few turns for it. Of a check, the figures are the candidate's; of a load test, "
    "those of the longest step at the level that it certifies"
)
COLUMNS: Sequence[Column[Entry]] = (
    Column("path", "text", "Its folder.", lambda entry: entry.path),
    Column("kind", "text", "What made it.", lambda entry: entry.kind),
    Column("status", "text", "How it ended.", lambda entry: entry.status),
    Column("label", "text", "What `--label` gave.", lambda entry: entry.label, True),
    Column("agent", "text", "The agent.", lambda entry: entry.agent, True),
    Column("commit", "text", "The commit of your checkout.", lambda entry: entry.commit, True),
    Column(
        "line",
        "text",
        "The dialect and the rate in Hz in which an agent at a URL was spoken to.",
        lambda entry: entry.line,
        True,
    ),
    Column("started_utc", "text", "When it began.", lambda entry: entry.started_utc, True),
    Column("valid", "boolean", "Whether its figures can be used.", lambda entry: entry.valid),
    Column("verdict", "text", "Its verdict.", lambda entry: entry.verdict, True),
    Column("machine", "text", "The machine's fingerprint.", lambda entry: entry.machine, True),
    Column("played", "text", "A digest of what was played.", lambda entry: entry.played, True),
    Column("budget_ms", "number", "The budget.", lambda entry: entry.budget_ms, True),
    Column(
        "metrics_version",
        "integer",
        "How figures were made of events.",
        lambda entry: entry.metrics_version,
        True,
    ),
    Column(
        "starved_ms",
        "number",
        "How late the caller might be before a turn counted as starved.",
        lambda entry: entry.starved_ms,
        True,
    ),
    Column("n", "integer", "Turns that count.", lambda entry: entry.n),
    Column("gap_p50_ms", "number", "The gap's median.", lambda entry: entry.gap_ms["p50"], True),
    Column("gap_p95_ms", "number", "Its p95.", lambda entry: entry.gap_ms["p95"], True),
    Column("hits", "integer", "Turns within the budget.", lambda entry: entry.hits, True),
    Column("hit_rate", "number", "Their share.", lambda entry: entry.hit_rate, True),
    Column("cut_ins", "integer", "Turns cut into.", lambda entry: entry.cut_ins, True),
    Column("why", "text", "Why it cannot be used.", lambda entry: "; ".join(entry.why), True),
)


def list_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """What `--json` prints. Scripts rely on its keys: more may come, none goes."""
    return {"runs": [_document(entry) for entry in entries]}


def entries_table(entries: Sequence[Entry]) -> Table:
    """The list as a table for `store.tables.write_csv`, with a row for each entry."""
    return Table(COLUMNS, (row_of(COLUMNS, entry) for entry in entries))


def _document(entry: Entry) -> dict[str, Any]:
    row = dataclasses.asdict(entry) | {"hit_rate": entry.hit_rate, "why": list(entry.why)}
    # A file's name need not be text, and JSON must be.
    return row | {"path": entry.path.encode("utf-8", "replace").decode()}


def list_block(entries: Sequence[Entry], width: int) -> Text:
    """The list on a terminal, the newest entry last, and why some are not valid."""
    items: list[Item] = [list_table(entries), reasons(entries)]
    found = [line for item in items for line in terminal.item_lines(item, width)]
    return terminal.joined(found)


def list_table(entries: Sequence[Entry]) -> sections.Table:
    """A row for each entry, in their order."""
    name = namer(entries)
    labels = any(entry.label for entry in entries)
    head = [
        sections.Column("folder"),
        sections.Column("kind", left=True, spare=True),
        *([sections.Column("label", left=True)] if labels else []),
        sections.Column("agent", left=True, spare=True),
        sections.Column("commit", left=True, spare=True),
        sections.Column("n"),
        sections.Column("hit rate"),
        sections.Column("cut in"),
        sections.Column("p50"),
        sections.Column("p95"),
        sections.Column("result", left=True),
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
    return sections.Table(head, rows, CAPTION)


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
