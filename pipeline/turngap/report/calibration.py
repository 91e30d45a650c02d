"""What the report of a calibration says: the instrument's own error."""

import itertools
from typing import Any

from rich.text import Text

from turngap.report import terminal
from turngap.report.sections import Cell, Column, Gauge, Report, Section, Table, lines

_BINS_MS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_FIGURES = ("p50", "p95", "p99", "max")


def calibration_block(document: dict[str, Any], width: int) -> Text:
    """`calibrate --json`'s document on a terminal."""
    return terminal.block(calibration_report(document), width)


def calibration_report(document: dict[str, Any]) -> Report:
    """Quantiles overall and by condition, and a histogram of the absolute errors."""
    rows = [_row("all", document["error_ms"])]
    for condition, groups in document["by"].items():
        rows += [_row(f"{condition.replace('_', ' ')} {name}", q) for name, q in groups.items()]
    errors = [abs(sample["error_ms"]) for sample in document["samples"]]
    edges = (0.0, *_BINS_MS, float("inf"))
    counts = [sum(low <= e < high for e in errors) for low, high in itertools.pairwise(edges)]
    names = [f"under {high:g}" for high in _BINS_MS] + [f"{_BINS_MS[-1]:g} or more"]
    top = max(counts, default=0) or 1
    histogram = [
        (name, str(count), Cell("", gauge=Gauge(count / top)))
        for name, count in zip(names, counts, strict=True)
        if count or name == names[0]
    ]
    signed, missed = document["signed_p50_ms"], document["missed"]
    bias = "" if signed is None else f"the median reading is {signed:+.2f} ms from the truth"
    lost = f"{missed} turns had no onset at all" if missed else ""
    items = [
        Table(("|error| in ms", "n", *_FIGURES), rows),
        Table((Column("|error| in ms"), Column("turns"), Column("", left=True)), histogram),
        lines(("bias", bias), ("missed", lost)),
    ]
    subject = (
        f"calibration · {len(errors)} known gaps in {document['dialect']} at {_rates(document)} Hz"
    )
    return Report("calibrate", subject, "", [Section("Error of the instrument", items)])


def calibrations_block(document: dict[str, Any], width: int) -> Text:
    """`calibrate --dialect all --json`'s document on a terminal."""
    told = document["dialects"]
    rows = [[d["dialect"], _rates(d), *_of(d)] for d in told if "error" not in d]
    head = ("dialect", "Hz", "n", *_FIGURES, "bias")
    items = [
        Table(head, rows, caption="|error| in ms of known gaps; rates of the person and the agent"),
        lines(*(("failed", f"{d['dialect']}: {d['error']}") for d in told if "error" in d)),
    ]
    section = Section("Error of the instrument", items)
    return terminal.block(Report("calibrate", "calibration by dialect", "", [section]), width)


def _rates(document: dict[str, Any]) -> str:
    rates = [rate for rate in (document["rate"], document["agent_rate"]) if rate]
    return " / ".join(f"{rate:,}" for rate in dict.fromkeys(rates))


def _of(document: dict[str, Any]) -> list[str]:
    signed = document["signed_p50_ms"]
    return [*_row("", document["error_ms"])[1:], "" if signed is None else f"{signed:+.2f}"]


def _row(name: str, quantiles: dict[str, Any]) -> list[str]:
    shown = ("n too small" if (v := quantiles[f]) is None else f"{v:.2f}" for f in _FIGURES)
    return [name, str(quantiles["n"]), *shown]
