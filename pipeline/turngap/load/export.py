"""A load test's page, its figures as JSON, and its steps and turns as CSV."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import Any, cast, get_args

from turngap.core.budget import OUTCOMES
from turngap.core.stored import Cell, Column, Type, row_of
from turngap.core.untrusted import printable
from turngap.load.figures import knee
from turngap.load.report import PAGE_FILE, load_report
from turngap.report import page
from turngap.store.documents import MAX_LOAD_BYTES, read_turns
from turngap.store.folders import TURNS_FILE
from turngap.store.loads import Certificate, LoadRecord, LoadTurn, Missed, StepFigures
from turngap.store.runs import Table, csv_text

# A turn with the budget of its load test, and a step with its number.
TurnAndBudget = tuple[LoadTurn, float]
NumberedStep = tuple[int, StepFigures]

# A line for each column: its name, its type, `?` where a value may be missing, and what it holds.
_TURN = """
step integer: Which step of the load test it is, from 1.
call integer: Which call of the step it is, from 1.
line integer: Which session of the level it is, where a level is held.
scenario text: The scenario's name.
turn integer: Which turn of the scenario it is, from 1.
due_s number: When the person was scheduled to end, in s from the beginning of the step.
counted boolean: Whether it lies in the measured window. No figure counts any other.
outcome text?: As of any turn, or why it was missed: `refused`, `late_start`, `dropped`,
 `not_reached` or `worker_lost`.
on_time boolean: Whether it was answered within the budget, counted from when the person was
 scheduled to end.
latency_ms number?: The gap and the wait for the line before it, in ms.
waited_ms number: How much later than intended the person could begin to speak, in ms: the line was
 not open, or the greeting came late.
gap_ms number?: From the person's last sound to the agent's first, in ms.
yield_ms number?: Where the person interrupted: from their first sound to the agent's silence, in
 ms.
hole_ms number?: The longest time that the reply's audio was interrupted for, in ms.
why text?: Why it was missed, or has no gap.
starved boolean?: Whether turngap itself was late in the turn.
node text?: The machine and process of the caller.
"""
_STEP = """
step integer: Which step it is, from 1.
sessions integer?: The level that was held. Missing where calls arrive at a rate.
confirms boolean: Whether its turns count towards the certificate of a search.
offered_per_s number: Calls a second that the schedule dialled in the measured window.
seconds number: The length of the measured window, in s.
calls integer: Calls with a turn that counts.
turns integer: Turns that count.
hits integer: Turns on time.
hit_rate number?: The share of turns on time.
low number?: The lower end of its 95 % interval.
high number?: The upper end of its 95 % interval.
effective_n number: How many independent turns would say as much.
holds boolean?: Whether the target share is on time. Missing where these turns do not decide.
gap_p50_ms number?: The p50 of the latency in ms, in which a missed turn is slower than any. Missing
 with too few turns.
gap_p95_ms number?: The p95 of the latency in ms, in which a missed turn is slower than any. Missing
 with too few turns.
yield_ms number?: The median time to the agent's silence where the person interrupted, in ms.
holes number?: The share of replies with a hole in their audio of 20 ms or more.
at_once_mean number: Calls at the same time, on average.
at_once_most integer: The same, at most.
calls_refused integer: Calls that the agent refused, or that could not be opened.
calls_late_started integer: Calls whose person had to wait for the line, or for a late greeting.
calls_dropped integer: Calls that broke off.
caller_late_ms number?: The p99 of how late turngap's own packets were, in ms.
void text?: Why the step does not measure the agent.
turns_answered integer: Turns with the outcome `answered`.
turns_late integer: Turns with the outcome `late`.
turns_no_reply integer: Turns with the outcome `no_reply`.
turns_cut_in integer: Turns with the outcome `cut_in`.
turns_abandoned integer: Turns with the outcome `abandoned`.
turns_error integer: Turns with the outcome `error`.
turns_refused integer: Turns that were missed: `refused`.
turns_late_start integer: Turns that were missed: `late_start`.
turns_dropped integer: Turns that were missed: `dropped`.
turns_not_reached integer: Turns that were missed: `not_reached`.
turns_worker_lost integer: Turns that were missed: `worker_lost`.
turns_waited integer: Turns whose gap was within the budget but for the wait for the line, or a
 greeting.
turns_not_played integer: Turns that were planned and not played, because the step was ended before.
"""


# Values that are not an attribute of the column's name.
_OF_TURN: dict[str, Callable[[LoadTurn], Cell]] = {
    "scenario": lambda turn: printable(turn.scenario),
    "gap_ms": lambda turn: turn.played and turn.played.gap_ms,
    "yield_ms": lambda turn: turn.played and turn.played.yield_ms,
    "why": lambda turn: printable(turn.why or (turn.played and turn.played.why_no_gap) or ""),
    "starved": lambda turn: turn.played and turn.played.pacing.starved,
    "node": lambda turn: printable(turn.node),
}
_OF_STEP: dict[str, Callable[[StepFigures], Cell]] = {
    "hits": lambda step: step.hit_rate.hits,
    "hit_rate": lambda step: step.hit_rate.value,
    "low": lambda step: step.hit_rate.low,
    "high": lambda step: step.hit_rate.high,
    "gap_p50_ms": lambda step: step.gap_ms["p50"].value,
    "gap_p95_ms": lambda step: step.gap_ms["p95"].value,
    "yield_ms": lambda step: step.yield_ms.value,
    "at_once_mean": lambda step: step.at_once[0],
    "at_once_most": lambda step: step.at_once[1],
    "calls_refused": lambda step: step.refused,
    "calls_late_started": lambda step: step.late_started,
    "calls_dropped": lambda step: step.dropped,
    "void": lambda step: printable(step.void or ""),
    "turns_waited": lambda step: step.waited,
    "turns_not_played": lambda step: step.not_played,
}


_OF_STEP |= {
    f"turns_{name}": lambda step, name=name: step.outcomes.get(name, 0)
    for name in (*OUTCOMES, *get_args(Missed))
}


def _turn_value(name: str) -> Callable[[TurnAndBudget], Cell]:
    if name == "on_time":
        return lambda pair: pair[0].hit(pair[1])
    of = _OF_TURN.get(name) or attrgetter(name)
    return lambda pair: of(pair[0])


def _step_value(name: str) -> Callable[[NumberedStep], Cell]:
    if name == "step":
        return lambda pair: pair[0]
    of = _OF_STEP.get(name) or attrgetter(name)
    return lambda pair: of(pair[1])


def _columns(table: str, value_of: Callable[[str], Callable[[Any], Cell]]) -> Iterator[Column[Any]]:
    for row in table.replace("\n ", " ").split("\n"):
        if row:
            head, about = row.split(": ", 1)
            name, kind = head.split(" ")
            optional = kind.endswith("?")
            type_ = cast("Type", kind.removesuffix("?"))
            yield Column(name, type_, about, value_of(name), optional)


TURN_COLUMNS: Sequence[Column[TurnAndBudget]] = (*_columns(_TURN, _turn_value),)
STEP_COLUMNS: Sequence[Column[NumberedStep]] = (*_columns(_STEP, _step_value),)


STEPS_CSV, TURNS_CSV = "steps.csv", "turns.csv"


def load_json(record: LoadRecord, folder: Path) -> dict[str, Any]:
    """Build the output of `--json`. Scripts rely on its keys: keys may be added, none removed."""
    certificate, bend = record.capacity, knee(record.steps)
    if certificate is None:
        searched = record.mode == "search"
        why = "the search did not come to its end" if searched else "no capacity was searched for"
        certificate = Certificate(None, None, 0, None, record.confidence, None, None, why)
    at_once = certificate.at_once and _at_once(certificate.at_once)
    return {
        "path": str(folder),
        "valid": record.valid,
        **record.model_dump(mode="json", exclude={"capacity", "steps"}),
        "capacity": {**asdict(certificate), "at_once": at_once},
        "knee": bend and {"sessions": bend[0].sessions, "grown_at": bend[1].sessions},
        "steps": [_step(step) for step in record.steps],
    }


def _at_once(at_once: tuple[float, int]) -> dict[str, Any]:
    return {"mean": at_once[0], "most": at_once[1]}


def _step(step: StepFigures) -> dict[str, Any]:
    return {
        **asdict(step),
        "hit_rate": step.hit_rate.value,
        "low": step.hit_rate.low,
        "high": step.hit_rate.high,
        "hits": step.hit_rate.hits,
        "gap_ms": {
            **{name: p.value for name, p in step.gap_ms.items()},
            "ci95": {name: [p.low, p.high] for name, p in step.gap_ms.items()},
            "why_none": {name: p.why_none for name, p in step.gap_ms.items() if p.why_none},
        },
        "at_once": _at_once(step.at_once),
    }


def read_load_turns(folder: Path) -> Iterator[LoadTurn]:
    """Yield each stored turn; leave out a last line that is incomplete.

    Raises:
        InputError: the file cannot be read, or is damaged (with the line).
    """
    return read_turns(folder / TURNS_FILE, LoadTurn, most=MAX_LOAD_BYTES)


def turns_table(record: LoadRecord, folder: Path) -> Table:
    """Return a row for each planned turn, played or not.

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
