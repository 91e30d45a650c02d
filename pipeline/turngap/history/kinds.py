"""What each kind of stored folder says of itself, as an `Entry`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from turngap.check.record import CHECK_FILE, CheckRecord
from turngap.compare.record import COMPARISON_FILE, ComparisonRecord
from turngap.core.errors import InputError
from turngap.core.run_record import RunRecord
from turngap.fleet.record import SIMULATION_FILE, LoadFigures, SimulationRecord
from turngap.history.entry import Entry, Kind, Status
from turngap.history.figures import NO_FIGURES, Figures, figures_of
from turngap.history.parts import (
    beside,
    commit_of,
    ended,
    line_of,
    played_beside,
    played_digest,
    several,
    texts,
    values,
    word,
)
from turngap.load.record import LOAD_FILE, LoadRecord, StepFigures
from turngap.store.documents import read_document
from turngap.store.folders import RUN_FILE, TURNS_FILE, read_record, status_of
from turngap.store.outcomes import read_outcomes
from turngap.store.tables import agent_called
from turngap.turns.record import TURNS_FILE as CURVE_FILE
from turngap.turns.record import TurnsRecord

_HINT = "delete the folder, or measure again"


def read_entry(folder: Path, kind: Kind) -> Entry:
    """Read what a folder of that kind says of itself; its texts are printable.

    Raises:
        InputError: it cannot be read, is damaged, or of another version.
    """
    return _READERS[kind](folder)


def _run(folder: Path) -> Entry:
    record = read_record(folder)
    played, figures = figures_of(read_outcomes(folder))
    status, of = status_of(record, played), ""
    if record.planned_turns:
        of = f" of {record.planned_turns}"
    why = [] if record.valid else list(record.why_invalid) or ["no reason was stored"]
    if status == "unfinished":
        why = [record.failure or "it was ended, or is being played"]
        why = [f"unfinished: {played}{of} turns: {why[0]}"]
        if record.failure is None and record.finished_utc is not None:
            why = [f"unfinished: only {played}{of} turns were played"]
    elif record.failure is not None:
        why.insert(0, record.failure)
    return Entry(
        path=str(folder),
        kind="talk" if record.settings.get("live") is True else "replay",
        status=status,
        **_about_run(record),
        valid=record.valid and status == "finished",
        why=texts(why),
        budget_ms=record.budget_ms,
        metrics_version=record.metrics_version,
        **figures.fields(),
    )


def _about_run(record: RunRecord) -> dict[str, Any]:
    return {
        "label": word(record.label),
        "agent": word(agent_called(record.name, record.agent)),
        "commit": commit_of(record.measured_commit),
        "line": line_of(record.agent),
        "starved_ms": record.starved_ms,
        "started_utc": word(record.started_utc),
        "machine": word(record.machine.fingerprint),
        "played": played_digest(record.scenario_hashes),
    }


def _check(folder: Path) -> Entry:
    """A check, with the figures of its candidate."""
    record = read_document(folder / CHECK_FILE, CheckRecord, hint=_HINT)
    side = record.candidate
    if side.run is None:
        raise InputError("document.damaged", f"{CHECK_FILE}: names no run of the candidate")
    run = _run(beside(folder, side.run))
    ended = read_record(beside(folder, side.run))
    status: Status = "finished"
    if ended.failure is not None or ended.finished_utc is None:
        status = run.status
    why: list[str] = []
    if record.verdict == "cannot_compare":
        why += record.why
    if not run.valid:
        why += run.why
    if run.n and side.turns != (held := figures_of(read_outcomes(beside(folder, side.run)))[0]):
        why.append(f"the candidate's run holds {held} of the {side.turns} turns that were judged")
    return replace(
        run,
        path=str(folder),
        kind="check",
        status=status,
        label=word(record.label),
        started_utc=word(record.started_utc),
        machine=word(record.machine.fingerprint),
        valid=not why and status == "finished",
        why=texts(why),
        verdict=record.verdict.replace("_", " "),
        metrics_version=record.metrics_version,
    )


def _comparison(folder: Path) -> Entry:
    record = read_document(folder / COMPARISON_FILE, ComparisonRecord, hint=_HINT)
    backends = record.backends
    figures = Figures(sum(backend.turns for backend in backends))
    if len(backends) == 1:
        only = backends[0]
        figures = Figures(
            only.hit_rate.n,
            values(only.gap_ms),
            only.hit_rate.hits,
            None if only.cut_ins is None else only.cut_ins.hits,
        )
    why = [record.failure or ""]
    why += [f"{b.name}: {b.why_invalid}" for b in backends if not b.valid]
    verdict = several(len(backends), "backend")
    return Entry(
        path=str(folder),
        kind="compare",
        status=ended(record.failure),
        label=word(record.label),
        agent=word(record.agent),
        commit=commit_of(record.commit),
        started_utc=word(record.started_utc),
        valid=record.valid,
        why=texts(why),
        verdict=f"{verdict}, inconclusive" if record.inconclusive else verdict,
        machine=word(record.machine.fingerprint),
        played=played_beside(folder, (backend.run for backend in backends)),
        budget_ms=record.budget_ms,
        metrics_version=record.metrics_version,
        **figures.fields(),
    )


def _curve(folder: Path) -> Entry:
    record = read_document(folder / CURVE_FILE, TurnsRecord, hint=_HINT)
    points = record.points
    figures = Figures(sum(point.turns for point in points))
    if len(points) == 1:
        _, figures = figures_of(read_outcomes(beside(folder, points[0].run)))
    why = [record.failure or ""]
    for point in points:
        name = f"{record.setting}={point.value}: " if point.value is not None else ""
        why += [name + reason for reason in point.why_invalid]
    return Entry(
        path=str(folder),
        kind="turns",
        status=ended(record.failure),
        label=word(record.label),
        agent=word(record.agent),
        commit=commit_of(record.commit),
        started_utc=word(record.started_utc),
        valid=record.valid,
        why=texts(why),
        verdict=several(len(points), "value") if record.setting else "",
        machine=word(record.machine.fingerprint),
        played=played_beside(folder, (point.run for point in points)),
        metrics_version=record.metrics_version,
        **figures.fields(),
    )


def _load(folder: Path) -> Entry:
    """A load test, with the figures of its longest step at the level that it certified or held.

    A certificate pools several steps: `turngap report` has that.
    """
    record = read_document(folder / LOAD_FILE, LoadRecord, hint=_HINT)
    step = _decisive(record)
    figures = NO_FIGURES
    if step is not None:
        rate, cut_ins = step.hit_rate, step.outcomes.get("cut_in", 0)
        figures = Figures(rate.n, values(step.gap_ms), rate.hits, cut_ins)
    status = ended(record.failure)
    if status == "finished" and record.finished_utc is None:
        status = "unfinished"
    why = [record.failure or "", "" if record.failure else record.void or ""]
    if status == "unfinished" and record.failure is None:
        why = ["unfinished: it was ended, or is being played"]
    return Entry(
        path=str(folder),
        kind="load",
        status=status,
        label=word(record.label),
        agent=word(agent_called(record.name, record.agent)),
        commit=commit_of(record.commit),
        started_utc=word(record.started_utc),
        valid=record.valid,
        why=texts(why),
        verdict=_held(record, step),
        machine=word(record.machine.fingerprint),
        played=played_digest(record.scenario_hashes),
        budget_ms=record.budget_ms,
        **figures.fields(),
    )


def _decisive(record: LoadRecord) -> StepFigures | None:
    """The step with the most turns at the level that is certified; without one, that was held."""
    steps = [step for step in record.steps if step.void is None and step.turns]
    if record.certified and record.capacity is not None:
        steps = [step for step in steps if step.sessions == record.capacity.sessions]
    elif len(record.steps) != 1:
        return None
    return max(steps, key=lambda step: step.turns, default=None)


def _held(record: LoadRecord, step: StepFigures | None) -> str:
    if record.certified and record.capacity is not None:
        return several(record.capacity.sessions or 0, "session")
    if record.mode == "search" and record.finished_utc is not None:
        return "void" if record.void else "nothing certified"
    if record.finished_utc is None or step is None:
        return ""
    level = "" if step.sessions is None else f"{several(step.sessions, 'session')} "
    return level + {True: "held", False: "not held", None: "not sure"}[step.holds]


def _simulation(folder: Path) -> Entry:
    """A simulation, with the figures of the most calls that it says are held."""
    record = read_document(folder / SIMULATION_FILE, SimulationRecord, hint=_HINT)
    figures, verdict = NO_FIGURES, ""
    held = None if record.capacity is None else record.capacity.held
    if record.capacity is not None:
        verdict = "holds none" if held is None else f"{held:,.0f} calls"
    load: LoadFigures | None = next((each for each in record.loads if each.calls == held), None)
    if load is None and len(record.loads) == 1:
        load = record.loads[0]
    if load is not None:
        figures = Figures(load.turns, values(load.gap_ms), load.hit_rate.hits)
    return Entry(
        path=str(folder),
        kind="simulate",
        status="finished",
        agent=word(record.name),
        commit=commit_of(record.commit),
        started_utc=word(record.started_utc),
        valid=True,
        verdict=verdict,
        machine=word(record.machine.fingerprint),
        budget_ms=record.budget_ms,
        **figures.fields(),
    )


# The file that makes a folder one of a kind, in the order in which they are looked for: a load test
# has turns, too.
FILES: tuple[tuple[str, Kind], ...] = (
    (CHECK_FILE, "check"),
    (SIMULATION_FILE, "simulate"),
    (COMPARISON_FILE, "compare"),
    (CURVE_FILE, "turns"),
    (LOAD_FILE, "load"),
    (RUN_FILE, "replay"),
)
_READERS: dict[Kind, Callable[[Path], Entry]] = {
    "replay": _run,
    "check": _check,
    "compare": _comparison,
    "turns": _curve,
    "load": _load,
    "simulate": _simulation,
}


def files_behind(folder: Path, kind: Kind) -> Iterator[tuple[str, Path]]:
    """The files that the entry of a folder of that kind may have been read from, by their names.

    Raises:
        OSError: the folder cannot be listed.
    """
    record = next(name for name, each in FILES if each == kind)
    yield record, folder / record
    if kind == "replay":
        yield TURNS_FILE, folder / TURNS_FILE
    elif kind in ("check", "compare", "turns"):
        for run in sorted(path for path in folder.iterdir() if path.is_dir()):
            for name in (RUN_FILE, TURNS_FILE):
                yield f"{run.name}/{name}", run / name
