"""The instrument's own error, printed from `calibrate --json`'s document."""

import itertools
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_BINS_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def calibration_block(document: dict[str, Any], width: int) -> RenderableType:
    """Quantiles overall and by condition, and a histogram of the absolute errors."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("|error| in ms", "n", "p50", "p95", "p99", "max"):
        table.add_column(column, justify="left" if column.startswith("|") else "right")
    table.add_row(*_row("all", document["error_ms"]), style="bold")
    for condition, groups in document["by"].items():
        for name, quantiles in groups.items():
            table.add_row(*_row(f"{condition.replace('_', ' ')} {name}", quantiles))
    signed = document["signed_p50_ms"]
    bias = "" if signed is None else f"the median reading is {signed:+.2f} ms from the truth"
    missed = document["missed"]
    lost = f"; {missed} turns had no onset at all" if missed else ""
    errors = [abs(s["error_ms"]) for s in document["samples"]]
    return Group(table, Text(), *_histogram(errors, width), Text(), Text(bias + lost))


def _row(name: str, quantiles: dict[str, Any]) -> list[str]:
    figures = ("p50", "p95", "p99", "max")
    return [name, str(quantiles["n"]), *(_figure(quantiles[f]) for f in figures)]


def _figure(value: float | None) -> str:
    return "n too small" if value is None else f"{value:.2f}"


def _histogram(errors: Sequence[float], width: int) -> list[Text]:
    edges = (0.0, *_BINS_MS, float("inf"))
    counts = [sum(low <= e < high for e in errors) for low, high in itertools.pairwise(edges)]
    room = max(10, min(60, width - 24))
    top = max(counts, default=0) or 1
    names = [f"under {high:g}" for high in _BINS_MS] + [f"{_BINS_MS[-1]:g} or more"]
    return [
        Text(f"{name:>12}  {'█' * round(count / top * room)} {count}")
        for name, count in zip(names, counts, strict=True)
        if count or name == names[0]
    ]
