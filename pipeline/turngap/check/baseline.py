"""Stored references: written, read, and refused if a comparison would mean nothing."""

import shlex
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turngap.caller.endpoint import PIPECAT
from turngap.caller.stream import RATE
from turngap.core import paired
from turngap.core.budget import REPLIED, STARVED_MS, outcome_of
from turngap.core.errors import InputError
from turngap.core.paired import Pair, Reading
from turngap.core.results import Turn, TurnKey
from turngap.core.run_record import METRICS_VERSION, TOLD_BY_THE_LINE, MachineRecord, RunRecord
from turngap.core.summary import summarise
from turngap.core.untrusted import printable
from turngap.report.words import over_words
from turngap.store.checks import BaselineRecord, BaselineTurn
from turngap.store.documents import encode, read_document, write_atomically, writing
from turngap.store.folders import utc_now


def reading_of(turn: Turn) -> Reading:
    """Read a stored turn for a check; its caller error counts only if the caller was starved."""
    reading = paired.reading_of(turn)
    return reading if reading.starved else replace(reading, caller_error_ms=0.0)


def pairs_of(
    reference: Mapping[TurnKey, Reading], candidate: Mapping[TurnKey, Reading]
) -> list[Pair]:
    """Pair the turns that both sides took, in the candidate's order."""
    return [
        Pair(key, reference[key], reading) for key, reading in candidate.items() if key in reference
    ]


def readings(turns: Sequence[Turn]) -> dict[TurnKey, Reading]:
    """Map stored turns to readings by key."""
    return {turn.key: reading_of(turn) for turn in turns}


@dataclass(frozen=True, slots=True)
class Matched:
    """The pairs of a run's turns with a baseline's; `BaselineUse` says what the counts are."""

    pairs: list[Pair]
    unmatched: int
    rejudged: int


def matched(baseline: BaselineRecord, turns: Sequence[Turn]) -> Matched:
    """Pair a run with a baseline, both judged by the run's budgets.

    A changed budget would otherwise move the hit rate of an unchanged agent.
    """
    known = {t.key: t for t in baseline.turns}
    pairs: list[Pair] = []
    rejudged = 0
    for turn in turns:
        twin = known.get(turn.key)
        if twin is not None:
            rejudged += twin.budget_ms != turn.budget_ms
            pairs.append(Pair(turn.key, _judged(twin, turn.budget_ms), reading_of(turn)))
    return Matched(pairs, len(turns) - len(pairs), rejudged)


def _judged(turn: BaselineTurn, budget_ms: float) -> Reading:
    error_ms = turn.caller_error_ms
    return judged_by(
        Reading(turn.outcome, turn.gap_ms, turn.stages, turn.budget_ms, error_ms, error_ms > 0),
        budget_ms,
    )


def judged_by(reading: Reading, budget_ms: float) -> Reading:
    """Judge a turn's reading again under another budget."""
    outcome = reading.outcome
    if outcome in REPLIED:
        outcome = outcome_of(reading.gap_ms, budget_ms, "reply_done")
    return replace(reading, outcome=outcome, budget_ms=budget_ms)


def more_pairs(
    baseline: BaselineRecord,
    scenarios: Container[str],
    rounds: int,
    phase_ms: Callable[[int], float],
) -> int:
    """Count the pairs that rounds beyond `rounds` could make, each round with its own phase."""
    return sum(
        turn.scenario in scenarios
        and turn.repeat > rounds
        and turn.phase_ms == phase_ms(turn.repeat - 1)
        for turn in baseline.turns
    )


def save(path: Path, run: RunRecord, turns: Sequence[Turn]) -> None:
    """Write a run as a baseline, whole or not at all.

    Raises:
        InputError: there is nothing to save, or the file cannot be written.
    """
    if not turns:
        raise InputError("baseline.empty", "a baseline needs turns; none was finished")
    record = BaselineRecord(
        saved_utc=utc_now(),
        machine=run.machine,
        agent=run.agent,
        scenario_hashes=run.scenario_hashes,
        starved_ms=run.starved_ms,
        line=line_of(run),
        caller_error_ms=summarise(turns).caller_error_ms,
        turns=tuple(_stored(turn) for turn in turns),
    )
    with writing(path, "baseline.unwritable"):
        write_atomically(path, encode(record, indent=2))


def _stored(turn: Turn) -> BaselineTurn:
    reading = reading_of(turn)
    return BaselineTurn(
        scenario=turn.scenario,
        turn=turn.turn,
        phase_ms=turn.phase_ms,
        repeat=turn.repeat,
        outcome=turn.outcome,
        budget_ms=turn.budget_ms,
        gap_ms=turn.gap_ms,
        stages=dict(reading.stages),
        caller_error_ms=reading.caller_error_ms,
    )


def load(path: Path) -> BaselineRecord:
    """Read a baseline.

    Raises:
        InputError: the file is missing, cut short, of another schema version, or no baseline.
    """
    if path.is_dir():
        raise InputError(
            "baseline.folder",
            f"{path} is a folder: a baseline is a file, and check plays against the agent",
            hint="turngap history diff A B compares two stored runs, played or scored",
        )
    hint = f"turngap check --save {shlex.quote(str(path))} makes one"
    return read_document(path, BaselineRecord, hint=hint, links=True)


def why_not_comparable(
    baseline: BaselineRecord,
    machine: MachineRecord,
    scenario_hashes: Mapping[str, str],
    starved_ms: float = STARVED_MS,
    line: str = "",
) -> list[str]:
    """List every reason why `baseline` cannot be compared with a run made here and now."""
    reasons: list[str] = []
    if baseline.machine.fingerprint != machine.fingerprint:
        reasons.append(
            f"it was saved on another machine ({baseline.machine.cpu}, "
            f"{baseline.machine.cores} cores; here {machine.cpu}, {machine.cores} cores)"
        )
    if baseline.metrics_version != METRICS_VERSION:
        reasons.append(
            f"its figures are of metrics version {baseline.metrics_version}, "
            f"these of {METRICS_VERSION}"
        )
    if baseline.starved_ms != starved_ms:
        # A late caller slows every figure of its run, and of that run alone.
        reasons.append(
            f"its caller might be {baseline.starved_ms:g} ms late, this one {starved_ms:g}: give "
            f"both the same starved-ms"
        )
    if baseline.line != line:
        reasons.append(
            f"it was played {over_words(baseline.line)}, this {over_words(line)}: give both the "
            "same --line"
        )
    for name, content in scenario_hashes.items():
        known = baseline.scenario_hashes.get(name)
        if known is None:
            reasons.append(f"it has no scenario {name}")
        elif known != content:
            reasons.append(f"scenario {name} or one of its recordings has changed since")
    if not baseline.turns:
        reasons.append("it holds no turns")
    return reasons


def gaps(baseline: BaselineRecord) -> dict[TurnKey, float | None]:
    """Map each turn of the baseline to its gap."""
    return {turn.key: turn.gap_ms for turn in baseline.turns}


def line_of(run: RunRecord) -> str:
    """Return the line with faults over which a run was played; empty for a plain one."""
    return str(run.settings.get("line") or "")


# What an agent that turngap starts itself is spoken to in.
_OURS = dict(zip(TOLD_BY_THE_LINE, (PIPECAT, RATE), strict=True))


def lines_differ(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> str | None:
    """Describe how the stored lines to two agents differ; None if no difference is known."""
    then, now = _line_of(reference), _line_of(candidate)
    if not any(then[name] != now[name] for name in then.keys() & now.keys()):
        return None
    return f"the reference is spoken to in {_line_words(then)}, the candidate in {_line_words(now)}"


def _line_of(agent: Mapping[str, Any]) -> dict[str, Any]:
    known = agent if "url" in agent else _OURS
    return {name: known[name] for name in TOLD_BY_THE_LINE if known.get(name) is not None}


def _line_words(line: Mapping[str, Any]) -> str:
    dialect, rate = (line.get(name) for name in TOLD_BY_THE_LINE)
    return f"{printable(str(dialect), 40)}" + (f" at {rate} Hz" if rate else "")
