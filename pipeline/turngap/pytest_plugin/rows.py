"""The summary at the end of the test run: each measured test in a row."""

from typing import TypedDict

import pytest

from turngap.core.untrusted import inert

# The attribute of a report that holds its rows; xdist sends it along, since it is plain JSON.
ROWS = "turngap_rows"
# How the reason of a test begins that was skipped for being inconclusive.
INCONCLUSIVE = "inconclusive: "


class Row(TypedDict):
    """One run of one test, in words; the last one of a test has what was warned of in it."""

    test: str
    hit_rate: str
    p50: str
    p95: str
    cut_ins: str
    verdict: str
    runs: str
    warnings: list[str]


def write_rows(terminal: pytest.TerminalReporter) -> None:
    """Write the section, where anything was measured."""
    reports = [report for reports in terminal.stats.values() for report in reports]
    rows: list[Row] = [row for report in reports for row in getattr(report, ROWS, ())]
    if not rows:
        return
    terminal.section("turngap")
    below = ("runs", "warnings")
    lines = [[str(cell) for name, cell in row.items() if name not in below] for row in rows]
    lines.insert(0, ["test", "hit rate", "p50", "p95", "cut-ins", "verdict"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for index, line in enumerate(lines):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        terminal.line(inert(text.rstrip()))
        if index:
            row = rows[index - 1]
            for said in (f"runs: {row['runs']}", *row["warnings"]):
                terminal.line(inert(f"  {said}"))
