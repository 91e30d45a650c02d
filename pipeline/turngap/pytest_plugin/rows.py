"""The summary at the end of the test run: each measured test in a row."""

from collections.abc import Iterator
from typing import TypedDict

import pytest

# The attribute of a report that holds its rows; xdist sends it along, since it is plain JSON.
ROWS = "turngap_rows"
_HEADERS = ("test", "hit rate", "p50", "p95", "verdict")


class Row(TypedDict):
    """One run of one test, in words."""

    test: str
    hit_rate: str
    p50: str
    p95: str
    verdict: str
    runs: str


def write_rows(terminal: pytest.TerminalReporter) -> None:
    """Write the section, where anything was measured."""
    rows = list(_rows(terminal))
    if not rows:
        return
    terminal.section("turngap")
    cells = [
        _HEADERS,
        *((r["test"], r["hit_rate"], r["p50"], r["p95"], r["verdict"]) for r in rows),
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADERS))]
    for index, line in enumerate(cells):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminal.line(text.rstrip())
        if index:
            terminal.line(f"  runs: {rows[index - 1]['runs']}")


def _rows(terminal: pytest.TerminalReporter) -> Iterator[Row]:
    for reports in terminal.stats.values():
        for report in reports:
            yield from getattr(report, ROWS, ())
