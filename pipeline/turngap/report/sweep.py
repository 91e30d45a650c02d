"""A sweep as a table and a curve: gap against cut-in rate over one setting."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turngap.report.words import stand_ins_words

PLOT_ROWS = 10


def sweep_block(document: dict[str, Any], width: int) -> RenderableType:
    """`sweep --json`'s document for the terminal."""
    points = document["points"]
    table = Table(box=None, header_style="bold", pad_edge=False)
    columns = (document["setting"], "turns", "gap p50", "endpoint p50", "cut-ins", "95 % interval")
    for column in columns:
        table.add_column(column, justify="right")
    for point in points:
        table.add_row(*_cells(point))
    note = stand_ins_words(document["stand_ins"])
    notes = [Text(note, style="dim")] if note else []
    return Group(*notes, table, *_why_invalid(points), Text(), *_plot(points, width))


def _why_invalid(points: Sequence[dict[str, Any]]) -> list[Text]:
    """Why a point's figures do not hold, for each that has none that do."""
    return [
        Text(f"{point['value']} is invalid: {'; '.join(point['why_invalid'])}", style="bold red")
        for point in points
        if not point["valid"]
    ]


def _cells(point: dict[str, Any]) -> tuple[str, ...]:
    low, high = point["cut_in_rate_ci95"]
    interval = "–" if low is None else f"{low:.0%} to {high:.0%}"
    return (
        str(point["value"]) + ("" if point["valid"] else " (invalid)"),
        str(point["turns"]),
        _ms(point["gap_ms_p50"]),
        _ms(point["endpoint_ms_p50"]),
        f"{point['cut_ins']} of {point['turns']}",
        interval,
    )


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} ms"


def _plot(points: Sequence[dict[str, Any]], width: int) -> list[Text]:
    """Cut-in rate upwards, gap to the right; each point is the letter of its value."""
    shown = [p for p in points if p["gap_ms_p50"] is not None and p["cut_in_rate"] is not None]
    if len(shown) < 2:
        return [Text("too few points with a median gap for a curve", style="dim")]
    room = max(30, min(70, width - 20))
    gaps = [p["gap_ms_p50"] for p in shown]
    left, right = min(gaps), max(gaps)
    top = max(*(p["cut_in_rate"] for p in shown), 0.01)
    grid = [[" "] * room for _ in range(PLOT_ROWS)]
    for letter, point in zip("ABCDEFGH", shown, strict=False):
        share = 0.5 if right == left else (point["gap_ms_p50"] - left) / (right - left)
        row = PLOT_ROWS - 1 - round(point["cut_in_rate"] / top * (PLOT_ROWS - 1))
        column = round(share * (room - 1))
        while grid[row][column] != " " and column < room - 1:
            column += 1
        grid[row][column] = letter
    lines = [
        Text(f"{_axis(row, top):>8} ┤{''.join(cells)}".rstrip()) for row, cells in enumerate(grid)
    ]
    ends = f"{left:.0f} ms"
    lines.append(Text(f"{'cut-ins':>8} └{'─' * room}"))
    lines.append(Text(f"{'':10}{ends}{f'{right:.0f} ms gap p50':>{room - len(ends)}}"))
    legend = "  ".join(f"{k} {p['value']}" for k, p in zip("ABCDEFGH", shown, strict=False))
    return [*lines, Text(f"{'':10}{legend}")]


def _axis(row: int, top: float) -> str:
    if row == 0:
        return f"{top:.0%}"
    return "0 %" if row == PLOT_ROWS - 1 else ""
