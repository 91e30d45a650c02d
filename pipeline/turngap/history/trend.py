"""The trend: how slow an agent was from run to run and how often late, and where that changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from turngap.core.changes import ALPHA, LEAST, SHARES, Change, changes
from turngap.core.errors import InputError
from turngap.core.paired import CENSORED_MS, TOLERANCE_MS
from turngap.core.results import TurnKey
from turngap.core.run_levels import LEAST_TURNS, MOST_UNEVEN, run_levels
from turngap.history.commits import Commits
from turngap.history.entry import Entry
from turngap.history.figures import Outcomes, outcomes_of
from turngap.store.outcomes import read_outcomes

# Of longer series the newest runs are looked at: what moved before then is no news.
MOST_RUNS = 200
# A series is tested for a change of its gap and for one of its hit rate. Each has half of what may
# be false, so that a series without a change has either in no more cases than `ALPHA` (Bonferroni).
ALPHA_EACH = ALPHA / 2

# Reads the gap in ms of each turn of a run.
ReadGaps = Callable[[Entry], Mapping[TurnKey, float]]


@dataclass(frozen=True, slots=True)
class Point:
    """A run of a series. `ms`: its level; `turns`: how many turns it shares with the others.

    `ms` is None where these are too few; such a run only counts for the hit rate. `uneven`: no
    change is looked for in it, since from turn to turn it is off the runs around it by very
    different amounts.
    """

    entry: Entry
    ms: float | None
    turns: int
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """A change of the level or of the hit rate at a run. `number` counts the used runs from 1.

    The figures of `change` are in ms, or shares of the turns that were in time.
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

    `moves` are changes of the level, and `hit_moves` of the hit rate. `why_none` is why neither
    could be looked for; `why_no_level` and `why_no_hits` are why one of them could not. `left_out`
    are runs of the series that could not be used, each with its reason.
    """

    agent: str
    played: str
    machine: str
    points: tuple[Point, ...]
    moves: tuple[Move, ...] = ()
    hit_moves: tuple[Move, ...] = ()
    left_out: tuple[tuple[Entry, str], ...] = ()
    why_none: str | None = None
    why_no_level: str | None = None
    why_no_hits: str | None = None

    @property
    def uneven(self) -> tuple[int, ...]:
        """The numbers of the runs that are set aside."""
        return tuple(number for number, point in enumerate(self.points, start=1) if point.uneven)

    @property
    def without_level(self) -> tuple[int, ...]:
        """The numbers of the runs that only count for the hit rate."""
        return tuple(n for n, point in enumerate(self.points, start=1) if point.ms is None)


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
    """The replays among these that can be compared with each other, in their order.

    Runs that never reached the agent do not say in which line they would have been played: they are
    none of any series.
    """
    series: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        if entry.kind == "replay" and entry.played:
            key = (
                *(entry.agent, entry.line, entry.played, entry.machine),
                *(entry.metrics_version, entry.starved_ms),
            )
            series.setdefault(key, []).append(entry)
    return [found for found in series.values() if any(map(_reached, found))]


def _reached(entry: Entry) -> bool:
    """Whether the agent was reached in a run, as far as it tells."""
    return entry.valid or entry.status != "failed" or entry.n > 0


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
        if level.ms is None and entry.hit_rate is None:
            left_out.append((entry, _too_few(level.turns)))
        else:
            points.append(Point(entry, level.ms, level.turns, level.uneven))
    first = entries[0]
    found = Trend(first.agent, first.played, first.machine, tuple(points), left_out=tuple(left_out))
    why_no_level, why_no_hits = _why_no_level(found), _why_no_hits(found)
    why_none = _why_none(found) or (why_no_level if why_no_hits else None)
    if why_none is not None:
        return replace(found, why_none=why_none)
    return replace(
        found,
        moves=() if why_no_level else tuple(_moves(found, entries)),
        hit_moves=() if why_no_hits else tuple(_hit_moves(found, entries)),
        why_no_level=why_no_level,
        why_no_hits=why_no_hits,
    )


def _why_none(trend: Trend) -> str | None:
    """Why no change can be looked for in the runs of a series."""
    n, aside = len(trend.points), len(trend.uneven)
    if n - aside < LEAST:
        runs = "1 usable run" if n == 1 else f"{n} usable runs"
        runs += f", {n - aside} of them even" if aside else ""
        return f"{runs}, and it takes {LEAST} to tell a change from chance"
    levels = n - len(trend.without_level)
    if aside > MOST_UNEVEN * levels:
        return (
            f"{aside} of {levels} runs are uneven, and where more than a third are, the rest "
            "cannot tell of a change"
        )
    return None


def _why_no_level(trend: Trend) -> str | None:
    """Why no change of the level can be looked for."""
    even = len(trend.points) - len(trend.without_level) - len(trend.uneven)
    if even >= LEAST:
        return None
    return f"only {even} of {len(trend.points)} runs tell a level, and it takes {LEAST}"


def _why_no_hits(trend: Trend) -> str | None:
    """Why no change of the hit rate can be looked for."""
    used = [point.entry for point in trend.points]
    if len({entry.budget_ms for entry in used}) > 1:
        return "the runs had several budgets"
    if any(entry.hit_rate is None for entry in used):
        return "not every run has one"
    return None


def _too_few(shared: int) -> str:
    turns = {0: "no turn", 1: "1 turn"}.get(shared, f"{shared} turns")
    more = f" with --repeat {ceil(LEAST_TURNS / shared)}" if shared else " of the same ones"
    return (
        f"{turns} in common with half of the runs, where a run needs {LEAST_TURNS}: play more in "
        f"each run{more}"
    )


def _moves(trend: Trend, entries: Sequence[Entry]) -> list[Move]:
    """The changes of the level, which runs without one do not tell."""
    aside = [number - 1 for number in (*trend.uneven, *trend.without_level)]
    found = changes([point.ms or 0.0 for point in trend.points], aside=aside, alpha=ALPHA_EACH)
    moves = _named(trend, found, entries)
    return [move for move in moves if abs(move.change.difference) >= TOLERANCE_MS]


def _hit_moves(trend: Trend, entries: Sequence[Entry]) -> list[Move]:
    """The changes of the hit rate, which all runs tell: cut-ins leave some without a level.

    They are looked for in the shares of turns that were not in time, so that a bad run is, as a
    slow one is, one with a high value. Each run is one value, as its turns share what befell it.
    """
    rates = [point.entry.hit_rate or 0.0 for point in trend.points]
    aside = [number - 1 for number in trend.uneven]
    missed = changes([1 - rate for rate in rates], SHARES, aside=aside, alpha=ALPHA_EACH)
    return _named(trend, [_of_hits(change) for change in missed], entries)


def _of_hits(missed: Change) -> Change:
    """A change of the share that was missed as one of the share that was hit."""
    return replace(
        missed,
        before=1 - missed.before,
        after=1 - missed.after,
        difference=-missed.difference,
        low=None if missed.high is None else -missed.high,
        high=None if missed.low is None else -missed.low,
    )


def _named(trend: Trend, found: Sequence[Change], entries: Sequence[Entry]) -> list[Move]:
    """The changes with the commits in question, and with what became of the turns."""
    used = [point.entry for point in trend.points]
    bounds = [0, *(change.at for change in found), len(used)]
    place = {entry.path: i for i, entry in enumerate(entries)}
    moves: list[Move] = []
    for change, start, end in zip(found, bounds, bounds[2:], strict=False):
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
