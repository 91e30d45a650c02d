"""The trend: how slow an agent was from run to run, and at which of them that changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turngap.core.changes import LEAST, Change, changes
from turngap.core.errors import InputError
from turngap.core.paired import CENSORED_MS, TOLERANCE_MS
from turngap.core.results import TurnKey
from turngap.core.run_levels import LEAST_TURNS, run_levels
from turngap.history.commits import Commits
from turngap.history.entry import Entry
from turngap.history.figures import Outcomes, outcomes_of
from turngap.store.outcomes import read_outcomes

# Of longer series the newest runs are looked at: what moved before then is no news.
MOST_RUNS = 200

# Reads the gap in ms of each turn of a run.
ReadGaps = Callable[[Entry], Mapping[TurnKey, float]]


@dataclass(frozen=True, slots=True)
class Point:
    """A run of a series. `ms`: its level; `turns`: how many turns tell it.

    `uneven`: no change is looked for in it, since from turn to turn it is off the runs around it by
    very different amounts.
    """

    entry: Entry
    ms: float
    turns: int
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A change of level at a run. `number` counts the series' used runs from 1.

    `commits` are those that may have brought it: of the runs in which the change lies with 95 %
    confidence, of the run before them, and of all of the series that were left out in between.
    `before` and `after` are what became of the turns up to the neighbouring changes.
    """

    change: Change
    entry: Entry
    commits: Commits
    before: Outcomes
    after: Outcomes

    @property
    def number(self) -> int:
        return self.change.at + 1


@dataclass(frozen=True, slots=True)
class Trend:
    """One series: the same agent, played the same scenarios, on one machine.

    `why_none` is why no change could be looked for; `left_out` are runs of the series that could
    not be used, each with its reason.
    """

    agent: str
    played: str
    machine: str
    points: tuple[Point, ...]
    moves: tuple[Move, ...]
    left_out: tuple[tuple[Entry, str], ...] = ()
    why_none: str | None = None


def gaps_of(entry: Entry) -> Mapping[TurnKey, float]:
    """The gap of each turn that was due a reply; without one it is longer than any caller waits.

    Raises:
        InputError: its turns cannot be read.
    """
    gaps: dict[TurnKey, float] = {}
    for turn in read_outcomes(Path(entry.path)):
        if turn.left_out is None and turn.silent:
            gaps[turn.key] = CENSORED_MS
        elif turn.left_out is None and turn.replied and turn.gap_ms is not None:
            gaps[turn.key] = turn.gap_ms
    return gaps


def trends(
    entries: Sequence[Entry], read: ReadGaps = gaps_of, *, last: int | None = None
) -> list[Trend]:
    """The series among these entries, in the order in which they began.

    A series holds replays of one agent that were played the same over one sort of line, on the same
    machine, with figures of one metrics version and by one measure of a late caller. Checks,
    comparisons and load tests are none. `last`: of each series, so many of the newest.
    """
    most = min(MOST_RUNS, last or MOST_RUNS)
    return [_trend(found[-most:], read) for found in _series(entries)]


def latest_two(entries: Sequence[Entry]) -> tuple[Entry, Entry] | None:
    """The two newest valid runs of the series that was measured last; None if none has two."""
    pairs = [
        (usable[-2], usable[-1])
        for found in _series(entries)
        if len(usable := [entry for entry in found if entry.valid]) > 1
    ]
    return max(pairs, key=lambda pair: pair[1].started_utc, default=None)


def _series(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The replays among these that can be compared with each other, in their order."""
    series: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        if entry.kind == "replay" and entry.played:
            key = (
                *(entry.agent, entry.line, entry.played, entry.machine),
                *(entry.metrics_version, entry.starved_ms),
            )
            series.setdefault(key, []).append(entry)
    return list(series.values())


def _trend(entries: Sequence[Entry], read: ReadGaps) -> Trend:
    used: list[tuple[Entry, Mapping[TurnKey, float]]] = []
    left_out: list[tuple[Entry, str]] = []
    for entry in entries:
        if not entry.valid:
            left_out.append((entry, entry.why[0] if entry.why else "it is not valid"))
            continue
        try:
            used.append((entry, read(entry)))
        except InputError as e:
            left_out.append((entry, str(e)))
    points: list[Point] = []
    for (entry, _), level in zip(used, run_levels([gaps for _, gaps in used]), strict=True):
        if level.ms is None:
            left_out.append((entry, _too_few(level.turns)))
        else:
            points.append(Point(entry, level.ms, level.turns, level.uneven))
    why_none = None
    even = sum(not point.uneven for point in points)
    if even < LEAST:
        one = "1 usable run" if len(points) == 1 else f"{len(points)} usable runs"
        one += f", {even} of them even" if even < len(points) else ""
        why_none = f"{one}, and it takes {LEAST} to tell a change from chance"
    first = entries[0]
    return Trend(
        agent=first.agent,
        played=first.played,
        machine=first.machine,
        points=tuple(points),
        moves=tuple(_moves(points, entries)),
        left_out=tuple(left_out),
        why_none=why_none,
    )


def _too_few(shared: int) -> str:
    turns = "1 turn" if shared == 1 else f"{shared} turns"
    return f"it has {turns} in common with half of the runs, and it takes {LEAST_TURNS}"


def _moves(points: Sequence[Point], entries: Sequence[Entry]) -> list[Move]:
    uneven = [place for place, point in enumerate(points) if point.uneven]
    found = changes([point.ms for point in points], aside=uneven)
    bounds = [0, *(change.at for change in found), len(points)]
    used = [point.entry for point in points]
    place = {entry.path: i for i, entry in enumerate(entries)}
    moves: list[Move] = []
    for change, start, end in zip(found, bounds, bounds[2:], strict=False):
        if abs(change.difference) < TOLERANCE_MS:
            continue
        first, last = used[max(1, change.first) - 1], used[change.last]
        moves.append(
            Move(
                change,
                used[change.at],
                Commits.of(entries[place[first.path] : place[last.path] + 1]),
                outcomes_of(used[start : change.at]),
                outcomes_of(used[change.at : end]),
            )
        )
    return moves


def trends_json(found: Sequence[Trend]) -> dict[str, Any]:
    """What `--json` prints. Scripts rely on its keys: more may come, none goes."""
    return {"series": [_document(trend) for trend in found]}


def _document(trend: Trend) -> dict[str, Any]:
    return {
        "agent": trend.agent,
        "played": trend.played,
        "machine": trend.machine,
        "runs": [
            {
                "number": number,
                "path": point.entry.path,
                "label": point.entry.label,
                "commit": point.entry.commit,
                "started_utc": point.entry.started_utc,
                "level_ms": point.ms,
                "turns": point.turns,
                "uneven": point.uneven,
                "p50_ms": point.entry.gap_ms["p50"],
                "n": point.entry.n,
                "hits": point.entry.hits,
                "cut_ins": point.entry.cut_ins,
            }
            for number, point in enumerate(trend.points, start=1)
        ],
        "changes": [
            {
                "number": move.number,
                "path": move.entry.path,
                "commit": move.entry.commit,
                "commits": list(move.commits.came),
                "commit_range": move.commits.range,
                "same_commit": move.commits.same,
                "unknown_commit": move.commits.unknown,
                "dirty_commit": move.commits.dirty,
                "first_number": move.change.first + 1,
                "last_number": move.change.last + 1,
                "p_value": move.change.p_value,
                "before_ms": move.change.before,
                "after_ms": move.change.after,
                "difference_ms": move.change.difference,
                "low_ms": move.change.low,
                "high_ms": move.change.high,
                "before": asdict(move.before),
                "after": asdict(move.after),
            }
            for move in trend.moves
        ],
        "left_out": [{"path": entry.path, "why": why} for entry, why in trend.left_out],
        "why_none": trend.why_none,
    }
