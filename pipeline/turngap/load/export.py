"""A load test's page, its figures as JSON, and its steps and turns as CSV."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turngap.core.columns import row_of
from turngap.core.stats import Percentile
from turngap.load.columns import STEP_COLUMNS, TURN_COLUMNS
from turngap.load.curve import knee
from turngap.load.record import Certificate, LoadRecord, LoadTurn, StepFigures
from turngap.load.report import PAGE_FILE, load_report
from turngap.report import page
from turngap.store.documents import MAX_LOAD_BYTES, read_turns
from turngap.store.folders import TURNS_FILE
from turngap.store.tables import Table, csv_text

STEPS_CSV, TURNS_CSV = "steps.csv", "turns.csv"


def load_json(record: LoadRecord, folder: Path) -> dict[str, Any]:
    """Build the output of `--json`. Scripts rely on its keys: keys may be added, none removed."""
    found, bend = record.capacity, knee(record.steps)
    return {
        "path": str(folder),
        "valid": record.valid,
        **record.model_dump(mode="json", exclude={"capacity", "steps"}),
        "capacity": _no_capacity(record) if found is None else _capacity(found),
        "knee": bend and {"sessions": bend[0].sessions, "grown_at": bend[1].sessions},
        "steps": [_step(step) for step in record.steps],
    }


def _no_capacity(record: LoadRecord) -> dict[str, Any]:
    """Build the same keys for a test without a capacity, searched for or not."""
    searched = (
        "the search did not come to its end"
        if record.mode == "search"
        else ("no capacity was searched for")
    )
    return {
        **dict.fromkeys(("sessions", "hit_rate", "low", "not_held", "caller_late_ms", "at_once")),
        "turns": 0,
        "confidence": record.confidence,
        "why": searched,
    }


def _capacity(found: Certificate) -> dict[str, Any]:
    return {**asdict(found), "at_once": found.at_once and _at_once(found.at_once)}


def _at_once(at_once: tuple[float, int]) -> dict[str, Any]:
    return {"mean": at_once[0], "most": at_once[1]}


def _step(step: StepFigures) -> dict[str, Any]:
    return {
        **asdict(step),
        "hit_rate": step.hit_rate.value,
        "low": step.hit_rate.low,
        "high": step.hit_rate.high,
        "hits": step.hit_rate.hits,
        "gap_ms": _percentiles(step.gap_ms),
        "at_once": _at_once(step.at_once),
    }


def _percentiles(found: Mapping[str, Percentile]) -> dict[str, Any]:
    return {
        **{name: p.value for name, p in found.items()},
        "ci95": {name: [p.low, p.high] for name, p in found.items()},
        "why_none": {name: p.why_none for name, p in found.items() if p.why_none},
    }


def read_load_turns(folder: Path) -> Iterator[LoadTurn]:
    """Each stored turn; a last line that was cut off in mid-write is left out.

    Raises:
        InputError: the file cannot be read, or is damaged (with the line).
    """
    return read_turns(folder / TURNS_FILE, LoadTurn, most=MAX_LOAD_BYTES)


def turns_table(record: LoadRecord, folder: Path) -> Table:
    """Each turn that was planned as a row, played or not.

    Raises:
        InputError: the file cannot be read, or is damaged (with the line).
    """
    turns = ((turn, record.budget_ms) for turn in read_load_turns(folder))
    return Table(TURN_COLUMNS, (row_of(TURN_COLUMNS, turn) for turn in turns))


def write_reports(record: LoadRecord, folder: Path) -> Path:
    """Write the page and both CSV files into the load test's folder; returns the page's path.

    Raises:
        InputError: the folder cannot be written to, or its turns are damaged.
    """
    steps = (row_of(STEP_COLUMNS, step) for step in enumerate(record.steps, start=1))
    page.write(folder / STEPS_CSV, csv_text(Table(STEP_COLUMNS, steps)))
    page.write(folder / TURNS_CSV, csv_text(turns_table(record, folder)))
    return page.write(folder / PAGE_FILE, page.render(load_report(record)))
