"""Series of runs whose trend is known: entries, and what reads their gaps."""

from collections.abc import Sequence
from dataclasses import replace

import made_runs as made
import numpy as np

from turngap.history.entry import Entry
from turngap.history.trend import ReadGaps, Trend, trends

# None of those that the benchmark judges on, nor of those that it was tuned on.
SEED = 300


def entry(number: int, **changes) -> Entry:
    values = {"kind": "replay", "status": "finished", "valid": True, "agent": "embedded"}
    values |= {"started_utc": f"2026-09-{number:02d}T03:00:00+00:00", "played": "ab12cd34ef"}
    values |= {"path": f"runs/{number}"}
    values |= {"commit": made.commit_of(number), "machine": "730e", "metrics_version": 4, "n": 12}
    return Entry(gap_ms={"p50": 300.0, "p95": None}, **(values | changes))


def reader(gaps: np.ndarray) -> ReadGaps:
    """Reads the gaps of the run of each entry, whose path ends in its number."""

    def read(of: Entry):
        row = gaps[int(of.path.rpartition("/")[2]) - 1]
        return {("x", turn, 0.0, 1): float(gap) for turn, gap in enumerate(row)}

    return read


def found(entries: Sequence[Entry], change_ms: float = 25.0, at: int = 18) -> list[Trend]:
    """The trends of these entries, slower from run `at` on."""
    return trends(entries, reader(made.gaps_of(SEED, 40, change_ms, at)))


def lost_from(run: int, entries: Sequence[Entry], lost: int = 2) -> list[Entry]:
    """The entries, with so many of twelve replies lost from a run on."""
    return [
        replace(entry, hits=12 - lost * (number >= run), cut_ins=0)
        for number, entry in enumerate(entries, start=1)
    ]
