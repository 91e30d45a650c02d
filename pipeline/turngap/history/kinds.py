"""Read the record in each kind of stored folder, as an `Entry`."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Literal

from turngap.core.errors import InputError
from turngap.core.run_record import TOLD_BY_THE_LINE, RunRecord
from turngap.core.stats import Percentile, percentile
from turngap.core.untrusted import printable
from turngap.core.wording import several
from turngap.store.checks import CHECK_FILE, CheckRecord
from turngap.store.comparisons import COMPARISON_FILE, ComparisonRecord, TurnsRecord
from turngap.store.comparisons import TURNS_FILE as CURVE_FILE
from turngap.store.documents import read_document
from turngap.store.folders import (
    INTERRUPTED,
    RUN_FILE,
    TurnOutcome,
    beside,
    read_outcomes,
    read_record,
    status_of,
)
from turngap.store.loads import (
    LOAD_FILE,
    SIMULATION_FILE,
    LoadFigures,
    LoadRecord,
    SimulationRecord,
    StepFigures,
)
from turngap.store.runs import agent_called

# What made the folder: the command's name, but for a conversation on the live page.
Kind = Literal["replay", "talk", "score", "check", "compare", "load", "turns", "simulate"]
# A folder that cannot be read has its reason in `why`, and no figures.
Status = Literal["finished", "unfinished", "failed", "unreadable"]


def no_gap() -> dict[str, float | None]:
    """Return the percentiles of an entry that has none."""
    return {"p50": None, "p95": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A stored run, check, comparison, curve, simulation or load test.

    A figure is None if the kind has none, or if there were too few turns for it.

    Attributes:
        path: its folder, in the form that `turngap report` takes.
        label: the user's name for it (`--label`); empty without one.
        agent: its name for people: the stack's name, or the URL without its secrets and without a
            port that may change. For a comparison, the agent whose LLM was replaced.
        commit: commit of the user's checkout; ends in `-dirty` if files differed.
        line: the dialect and the rate in Hz of the line to an agent at a URL, and its faults; empty
            for a stack on a plain line.
        started_utc: ISO 8601.
        valid: whether its figures can be used; `why` has the reasons if not, the failure first.
        verdict: in a word or two: `pass`, `regressed`, `8 sessions`; empty if there is none.
        machine: the machine's fingerprint.
        played: digest of what was played: the same one means the same scenarios and recordings.
        starved_ms: how late the caller might be before a turn counted as starved.
        n: turns that count.
        gap_ms: `p50` and `p95`.
        hits, cut_ins: of the `n` turns, those answered within the budget, and those cut into.
    """

    path: str
    kind: Kind
    status: Status
    label: str = ""
    agent: str = ""
    commit: str | None = None
    line: str = ""
    started_utc: str = ""
    valid: bool = False
    why: tuple[str, ...] = ()
    verdict: str = ""
    machine: str = ""
    played: str = ""
    budget_ms: float | None = None
    metrics_version: int | None = None
    starved_ms: float | None = None
    n: int = 0
    gap_ms: dict[str, float | None] = field(default_factory=no_gap)
    hits: int | None = None
    cut_ins: int | None = None

    @property
    def hit_rate(self) -> float | None:
        """Return the share of the turns that were answered within the budget."""
        return None if self.hits is None or not self.n else self.hits / self.n


def due_ms(turn: TurnOutcome) -> float | None:
    """Return a turn's gap: infinite if a due reply never came, None if it does not count."""
    if turn.left_out is not None:
        return None
    return inf if turn.silent else turn.gap_ms if turn.replied else None


def figures_of(turns: Iterable[TurnOutcome]) -> tuple[int, dict[str, Any]]:
    """Return the number of turns, and the figures of those that count, as fields of `Entry`.

    Raises:
        InputError: as `read_outcomes`, if the turns come from it.
    """
    every = n = hits = cut_ins = 0
    gaps: list[float] = []
    for turn in turns:
        every += 1
        if turn.left_out is not None:
            continue
        n += 1
        hits += turn.outcome == "answered"
        cut_ins += turn.outcome == "cut_in"
        if (due := due_ms(turn)) is not None:
            gaps.append(due)
    finite = [gap for gap in gaps if gap < inf]
    gap_ms = {
        name: percentile(finite, q, censored=len(gaps) - len(finite)).value
        for name, q in (("p50", 0.5), ("p95", 0.95))
    }
    return every, {"n": n, "gap_ms": gap_ms, "hits": hits, "cut_ins": cut_ins}


# A reason or a name in a list: the whole is in the folder.
_MOST_WORDS = 1000
# The last line of a traceback.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Interrupt)\b")
_HINT = "delete the folder, or measure again"


def read_entry(folder: Path, kind: Kind) -> Entry:
    """Read the record of a folder of that kind; its texts become printable.

    Raises:
        InputError: it cannot be read, is damaged, or of another version.
    """
    return _READERS[kind](folder)


def _run(folder: Path) -> Entry:
    record = read_record(folder)
    played, figures = figures_of(read_outcomes(folder))
    status = status_of(record, played)
    of = f" of {record.planned_turns}" if record.planned_turns else ""
    why = [] if record.valid else list(record.why_invalid) or ["no reason was stored"]
    if status == "unfinished":
        why = [record.failure or "it was ended, or is being played"]
        why = [f"unfinished: {played}{of} turns: {why[0]}"]
        if record.failure is None and record.finished_utc is not None:
            why = [f"unfinished: only {played}{of} turns were played"]
    elif record.failure is not None:
        why.insert(0, record.failure)
    # The dialect and the rate of an agent at a URL, as far as they are known.
    line = [record.agent.get(name) for name in TOLD_BY_THE_LINE] if "url" in record.agent else []
    line.append(record.settings.get("line"))  # the faults, as all kinds have them
    return _entry(
        folder,
        "score" if record.scored else "talk" if record.settings.get("live") is True else "replay",
        record,
        status=status,
        agent=agent_called(record.name, record.agent),
        commit=record.measured_commit,
        line=_word(" ".join(str(value) for value in line if value is not None)),
        starved_ms=record.starved_ms,
        played=_played_digest(record.scenario_hashes),
        valid=record.valid and status == "finished",
        why=why,
        **figures,
    )


def _check(folder: Path) -> Entry:
    """Read a check, with the figures of its candidate."""
    record = read_document(folder / CHECK_FILE, CheckRecord, hint=_HINT)
    side = record.candidate
    if side.run is None:
        raise InputError("document.damaged", f"{CHECK_FILE}: names no run of the candidate")
    played = beside(folder / CHECK_FILE, side.run)
    run, record_of_run = _run(played), read_record(played)
    status: Status = "finished"
    if record_of_run.failure is not None or record_of_run.finished_utc is None:
        status = run.status
    why: list[str] = []
    if record.verdict == "cannot_compare":
        why += record.why
    if not run.valid:
        why += run.why
    if run.n and side.turns != (held := figures_of(read_outcomes(played))[0]):
        why.append(f"the candidate's run holds {held} of the {side.turns} turns that were judged")
    return replace(
        run,
        path=str(folder),
        kind="check",
        status=status,
        label=_word(record.label),
        started_utc=_word(record.started_utc),
        machine=_word(record.machine.fingerprint),
        valid=not why and status == "finished",
        why=_texts(why),
        verdict=record.verdict.replace("_", " "),
        metrics_version=record.metrics_version,
    )


def _comparison(folder: Path) -> Entry:
    record = read_document(folder / COMPARISON_FILE, ComparisonRecord, hint=_HINT)
    backends = record.backends
    figures: dict[str, Any] = {"n": sum(backend.turns for backend in backends)}
    if len(backends) == 1:
        only = backends[0]
        figures = {
            "n": only.hit_rate.n,
            "gap_ms": _values(only.gap_ms),
            "hits": only.hit_rate.hits,
            "cut_ins": None if only.cut_ins is None else only.cut_ins.hits,
        }
    why = [record.failure or ""]
    why += [f"{b.name}: {b.why_invalid}" for b in backends if not b.valid]
    verdict = several(len(backends), "backend")
    return _entry(
        folder,
        "compare",
        record,
        status=_ended(record.failure),
        agent=record.agent,
        valid=record.valid,
        why=why,
        verdict=f"{verdict}, inconclusive" if record.inconclusive else verdict,
        played=_played_beside(folder / COMPARISON_FILE, (backend.run for backend in backends)),
        **figures,
    )


def _curve(folder: Path) -> Entry:
    record = read_document(folder / CURVE_FILE, TurnsRecord, hint=_HINT)
    points = record.points
    figures: dict[str, Any] = {"n": sum(point.turns for point in points)}
    if len(points) == 1:
        _, figures = figures_of(read_outcomes(beside(folder / CURVE_FILE, points[0].run)))
    why = [record.failure or ""]
    for point in points:
        name = f"{record.setting}={point.value}: " if point.value is not None else ""
        why += [name + reason for reason in point.why_invalid]
    return _entry(
        folder,
        "turns",
        record,
        status=_ended(record.failure),
        agent=record.agent,
        valid=record.valid,
        why=why,
        verdict=several(len(points), "value") if record.setting else "",
        played=_played_beside(folder / CURVE_FILE, (point.run for point in points)),
        **figures,
    )


def _load(folder: Path) -> Entry:
    """Read a load test, with the figures of its longest step at the certified or held level.

    A certificate pools several steps: `turngap report` has that.
    """
    record = read_document(folder / LOAD_FILE, LoadRecord, hint=_HINT)
    step = _decisive(record)
    figures: dict[str, Any] = {}
    if step is not None:
        figures = {
            "n": step.hit_rate.n,
            "gap_ms": _values(step.gap_ms),
            "hits": step.hit_rate.hits,
            "cut_ins": step.outcomes.get("cut_in", 0),
        }
    status = _ended(record.failure)
    if status == "finished" and record.finished_utc is None:
        status = "unfinished"
    why = [record.failure or "", "" if record.failure else record.void or ""]
    if status == "unfinished" and record.failure is None:
        why = ["unfinished: it was ended, or is being played"]
    return _entry(
        folder,
        "load",
        record,
        status=status,
        agent=agent_called(record.name, record.agent),
        valid=record.valid,
        why=why,
        verdict=_held(record, step),
        played=_played_digest(record.scenario_hashes),
        **figures,
    )


def _decisive(record: LoadRecord) -> StepFigures | None:
    """Find the step with the most turns at the certified level, or else at the held one."""
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
    """Read a simulation, with the figures of the most calls that are held."""
    record = read_document(folder / SIMULATION_FILE, SimulationRecord, hint=_HINT)
    figures: dict[str, Any] = {}
    verdict = ""
    held = None if record.capacity is None else record.capacity.held
    if record.capacity is not None:
        verdict = "holds none" if held is None else f"{held:,.0f} calls"
    load: LoadFigures | None = next((each for each in record.loads if each.calls == held), None)
    if load is None and len(record.loads) == 1:
        load = record.loads[0]
    if load is not None:
        figures = {"n": load.turns, "gap_ms": _values(load.gap_ms), "hits": load.hit_rate.hits}
    return _entry(
        folder,
        "simulate",
        record,
        status="finished",
        agent=record.name,
        valid=True,
        verdict=verdict,
        **figures,
    )


def _entry(
    folder: Path,
    kind: Kind,
    record: RunRecord | ComparisonRecord | TurnsRecord | LoadRecord | SimulationRecord,
    *,
    agent: str,
    commit: str | None = None,
    why: Iterable[str] = (),
    **fields: Any,
) -> Entry:
    """Build an entry from the fields that all kinds of records share by name."""
    fields.setdefault("line", _word(str(record.settings.get("line") or "")))
    return Entry(
        path=str(folder),
        kind=kind,
        label=_word(getattr(record, "label", "")),
        agent=_word(agent),
        commit=_commit_of(commit or record.commit),
        started_utc=_word(record.started_utc),
        machine=_word(record.machine.fingerprint),
        budget_ms=getattr(record, "budget_ms", None),
        metrics_version=getattr(record, "metrics_version", None),
        why=_texts(why),
        **fields,
    )


def _played_beside(document: Path, names: Iterable[str]) -> str:
    """Return the digest of what the runs next to a document played; empty if none can be read."""
    for name in names:
        try:
            return _played_digest(read_record(beside(document, name)).scenario_hashes)
        except InputError:
            continue
    return ""


def _played_digest(scenario_hashes: Mapping[str, str]) -> str:
    """Return a digest of what was played, the same for the same scenarios and recordings."""
    if not scenario_hashes:
        return ""
    return hashlib.sha256(repr(sorted(scenario_hashes.items())).encode()).hexdigest()[:12]


def _ended(failure: str | None) -> Status:
    """Return the status, depending on the stored failure."""
    if failure is None:
        return "finished"
    return "unfinished" if failure == INTERRUPTED else "failed"


def _commit_of(commit: object) -> str | None:
    """Return a commit; None for other texts."""
    text = _word(str(commit or ""))
    return text if re.fullmatch(r"[0-9a-fA-F]{4,64}(-dirty)?", text) else None


def _values(percentiles: Mapping[str, Percentile]) -> dict[str, float | None]:
    return {name: percentiles[name].value for name in ("p50", "p95")}


def _word(text: str) -> str:
    """Return a text as one line that can be shown anywhere."""
    return printable(text, _MOST_WORDS)


def _texts(given: Iterable[str]) -> tuple[str, ...]:
    """Return several reasons, each in one line and once, without empty ones."""
    return tuple(dict.fromkeys(filter(None, (_word(_without_its_log(text)) for text in given))))


def _without_its_log(reason: str) -> str:
    """Return why a command ended, without the quoted end of its log."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if len(lines) < 2:
        return reason
    raised = [line for line in lines[1:] if _RAISED.match(line)]
    return raised[-1] if raised else f"{lines[0]} {lines[-1]}"


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
