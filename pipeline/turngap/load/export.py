"""A load test's page, its figures as JSON, and its steps and turns as CSV."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from turngap.core.budget import OUTCOMES
from turngap.core.stats import Percentile
from turngap.core.untrusted import printable
from turngap.load.curve import knee
from turngap.load.record import Certificate, LoadRecord, LoadTurn, Missed, StepFigures
from turngap.load.report import PAGE_FILE, load_report
from turngap.report import page
from turngap.store.documents import exists, parse_document
from turngap.store.folders import TURNS_FILE
from turngap.store.runs import is_json, read_lines

STEPS_CSV, TURNS_CSV = "steps.csv", "turns.csv"
# What may become of a turn: a column of `steps.csv` each.
_BECAME = (*OUTCOMES, *get_args(Missed))


def load_json(record: LoadRecord, folder: Path) -> dict[str, Any]:
    """What `--json` prints. Scripts rely on its keys: more may come, none goes."""
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
    """The same keys where no capacity was searched for, or none was found in time."""
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
    file = folder / TURNS_FILE
    if not exists(file):
        return
    for number, line in enumerate(read_lines(file), start=1):
        if line.endswith(b"\n") or is_json(line):
            yield parse_document(line.removesuffix(b"\n"), LoadTurn, f"{file}:{number}")


def turn_row(turn: LoadTurn, budget_ms: float) -> dict[str, Any]:
    """A turn as a flat row: the columns are the same for every turn, played or not."""
    played = turn.played
    return {
        "step": turn.step,
        "call": turn.call,
        "line": turn.line,
        "scenario": printable(turn.scenario),
        "turn": turn.turn,
        "due_s": turn.due_s,
        "counted": turn.counted,
        "outcome": turn.outcome,
        "on_time": turn.hit(budget_ms),
        "latency_ms": turn.latency_ms,
        "waited_ms": turn.waited_ms,
        "gap_ms": None if played is None else played.gap_ms,
        "yield_ms": None if played is None else played.yield_ms,
        "hole_ms": turn.hole_ms,
        "why": printable(turn.why or (played and played.why_no_gap) or ""),
        "starved": None if played is None else played.pacing.starved,
        "node": printable(turn.node),
    }


def step_row(number: int, step: StepFigures) -> dict[str, Any]:
    """A step as a flat row."""
    mean, most = step.at_once
    return {
        "step": number,
        "sessions": step.sessions,
        "confirms": step.confirms,
        "offered_per_s": step.offered_per_s,
        "seconds": step.seconds,
        "calls": step.calls,
        "turns": step.turns,
        "hits": step.hit_rate.hits,
        "hit_rate": step.hit_rate.value,
        "low": step.hit_rate.low,
        "high": step.hit_rate.high,
        "effective_n": step.effective_n,
        "holds": step.holds,
        **{f"gap_{name}_ms": p.value for name, p in step.gap_ms.items()},
        "yield_ms": step.yield_ms.value,
        "holes": step.holes,
        "at_once_mean": mean,
        "at_once_most": most,
        "calls_refused": step.refused,
        "calls_late_started": step.late_started,
        "calls_dropped": step.dropped,
        "caller_late_ms": step.caller_late_ms,
        "void": printable(step.void or ""),
        **{f"turns_{name}": step.outcomes.get(name, 0) for name in _BECAME},
        "turns_waited": step.waited,
        "turns_not_played": step.not_played,
    }


def _csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows of equal keys as CSV with a line of names; None is an empty cell; empty without any."""
    text = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(text, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
    return text.getvalue()


def write_reports(record: LoadRecord, folder: Path) -> Path:
    """Write the page and both CSV files into the load test's folder; returns the page's path.

    Raises:
        InputError: the folder cannot be written to, or its turns are damaged.
    """
    steps = (step_row(number, step) for number, step in enumerate(record.steps, start=1))
    turns = (turn_row(turn, record.budget_ms) for turn in read_load_turns(folder))
    page.write(folder / STEPS_CSV, _csv(steps))
    page.write(folder / TURNS_CSV, _csv(turns))
    return page.write(folder / PAGE_FILE, page.render(load_report(record)))
