"""The trend: where an agent became slower or quicker, from run to run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from turngap.core.errors import InputError
from turngap.core.paired import CENSORED_MS, TOLERANCE_MS
from turngap.core.results import TurnKey
from turngap.core.sizes import several
from turngap.history.changes import LEAST, LEAST_TURNS, Change, changes, run_levels
from turngap.history.entry import Entry
from turngap.report import words
from turngap.report.sections import Line, Lines
from turngap.store.outcomes import read_outcomes

# Of longer series the newest runs are looked at: what moved before then is no news.
MOST_RUNS = 200
# A run is uneven against what is usual around it: where nearly half are, it is chance which half is
# usual. Of made-up series no more than 33 % were uneven: more was never tried.
MOST_UNEVEN = 1 / 3
_BARS = "▁▂▃▄▅▆▇█"
# Nothing below fills a row of bars: on a quiet machine it is noise.
_LEAST_MS = 20.0


@dataclass(frozen=True, slots=True)
class Point:
    """A run of a series with its level. In an `uneven` one no change is looked for."""

    entry: Entry
    ms: float
    uneven: bool = False


@dataclass(frozen=True, slots=True)
class Trend:
    """One series: the same agent, played the same scenarios, on one machine.

    `between` has for each change the runs in which it may lie and the one before them. `left_out`
    are runs that could not be used, each with its reason.
    """

    points: tuple[Point, ...]
    left_out: tuple[tuple[Entry, str], ...]
    changes: tuple[Change, ...] = ()
    between: tuple[Sequence[Entry], ...] = ()
    why_none: str | None = None


def trends(entries: Sequence[Entry]) -> list[Trend]:
    """Return the series among these entries, in the order in which they began.

    A series holds replays of one agent that were played the same over one sort of line, on the same
    machine, with figures of one metrics version and by one measure of a late caller.
    """
    return [_trend(runs[-MOST_RUNS:]) for runs in _series(entries)]


def latest_two(entries: Sequence[Entry]) -> tuple[Entry, Entry] | None:
    """Return the two newest valid runs of the series that was measured last; None without two."""
    usable = [[entry for entry in runs if entry.valid] for runs in _series(entries)]
    pairs = [(runs[-2], runs[-1]) for runs in usable if len(runs) > 1]
    return max(pairs, key=lambda pair: pair[1].started_utc, default=None)


def _series(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return the replays that can be compared with each other, in their order.

    Runs that never reached the agent do not say over which line they would have been played, and
    are in no series.
    """
    series: dict[tuple[object, ...], list[Entry]] = {}
    for e in entries:
        if e.kind == "replay" and e.played:
            key = (e.agent, e.line, e.played, e.machine, e.metrics_version, e.starved_ms)
            series.setdefault(key, []).append(e)
    return [runs for runs in series.values() if any(map(_has_reached, runs))]


def _has_reached(entry: Entry) -> bool:
    return entry.valid or entry.status != "failed" or entry.n > 0


def _gaps(entry: Entry) -> Mapping[TurnKey, float]:
    """Return the gap of each turn that was due a reply; without one it is longer than any wait."""
    gaps: dict[TurnKey, float] = {}
    for turn in read_outcomes(Path(entry.path)):
        if turn.left_out is None and turn.silent:
            gaps[turn.key] = CENSORED_MS
        elif turn.left_out is None and turn.replied and turn.gap_ms is not None:
            gaps[turn.key] = turn.gap_ms
    return gaps


def _trend(entries: Sequence[Entry]) -> Trend:
    used: list[tuple[Entry, Mapping[TurnKey, float]]] = []
    left_out: list[tuple[Entry, str]] = []
    for entry in entries:
        if not entry.valid:
            left_out.append((entry, entry.why[0] if entry.why else "it is not valid"))
            continue
        try:
            used.append((entry, _gaps(entry)))
        except InputError as e:
            left_out.append((entry, str(e)))
    points: list[Point] = []
    for (entry, _), level in zip(used, run_levels([gaps for _, gaps in used]), strict=True):
        if level.ms is None:
            why = f"fewer than {LEAST_TURNS} turns in common with half of the runs"
            left_out.append((entry, f"{why}: play more in each, as with --repeat"))
        else:
            points.append(Point(entry, level.ms, level.uneven))
    trend = Trend(tuple(points), tuple(left_out))
    aside = [place for place, point in enumerate(points) if point.uneven]
    if len(points) - len(aside) < LEAST or len(aside) > MOST_UNEVEN * len(points):
        runs = several(len(points), "usable run") + (
            f", {len(aside)} of them uneven" if aside else ""
        )
        why = f"{runs}, and it takes {LEAST} even ones, two thirds of all"
        return replace(trend, why_none=why)
    levels = [point.ms for point in points]
    moved = [c for c in changes(levels, aside) if abs(c.difference) >= TOLERANCE_MS]
    place = {entry.path: i for i, entry in enumerate(entries)}
    ends = [(points[max(1, c.first) - 1].entry.path, points[c.last].entry.path) for c in moved]
    between = tuple(entries[place[first] : place[last] + 1] for first, last in ends)
    return replace(trend, changes=tuple(moved), between=between)


def trends_json(trends: Sequence[Trend]) -> dict[str, Any]:
    """Return what `--json` prints. Scripts rely on its keys."""
    return {
        "series": [
            {
                "runs": [
                    {"number": n, "path": p.entry.path, "level_ms": p.ms, "uneven": p.uneven}
                    for n, p in enumerate(trend.points, start=1)
                ],
                "changes": [
                    {
                        "number": change.at + 1,
                        "commit": trend.points[change.at].entry.commit,
                        "commit_range": _commit_range(between),
                        "first_number": change.first + 1,
                        "last_number": change.last + 1,
                        "p_value": change.p_value,
                        "difference_ms": change.difference,
                        "low_ms": change.low,
                        "high_ms": change.high,
                    }
                    for change, between in zip(trend.changes, trend.between, strict=True)
                ],
                "left_out": [{"path": entry.path, "why": why} for entry, why in trend.left_out],
                "why_none": trend.why_none,
            }
            for trend in trends
        ]
    }


def trend_lines(trend: Trend) -> Lines:
    """Return a series for a terminal: its levels as a row of bars, and what changed."""
    n = len(trend.points)
    first = trend.points[0].entry if trend.points else trend.left_out[0][0]
    series = f"{first.agent or 'agent'}, {several(n, 'run')}, played {first.played[:7]}"
    shown = [Line("series", series, "strong"), Line("levels", _bars(trend))]
    if trend.why_none is not None:
        shown.append(Line("changed", f"not known: {trend.why_none}", "unsure"))
    elif not trend.changes:
        shown.append(Line("changed", f"no change of level in {n} runs"))
    for change, between in zip(trend.changes, trend.between, strict=True):
        shown.append(Line("changed", _sentence(change, between, trend), "strong"))
    if uneven := [str(i) for i, point in enumerate(trend.points, start=1) if point.uneven]:
        why = "their turns are off the runs around by very different amounts, as on a busy machine"
        shown.append(
            Line("set aside", f"{several(len(uneven), 'run')} ({', '.join(uneven)}): {why}")
        )
    if trend.left_out:
        why = "; ".join(dict.fromkeys(why for _, why in trend.left_out))
        shown.append(Line("left out", f"{several(len(trend.left_out), 'run')}: {why}"))
    return Lines(shown)


def _bars(trend: Trend) -> str:
    """Draw a bar for each run, the oldest to the left; a dot for one that is set aside."""
    levels = [point.ms for point in trend.points if not point.uneven]
    if not levels:
        return ""
    low, room = min(levels), max(max(levels) - min(levels), _LEAST_MS)
    bars = (_BARS[min(int(8 * max(p.ms - low, 0) / room), 7)] for p in trend.points)
    drawn = "".join("·" if p.uneven else bar for p, bar in zip(trend.points, bars, strict=True))
    return f"{drawn}  {words.ms(low)} to {words.ms(max(levels))} ms"


def _sentence(change: Change, between: Sequence[Entry], trend: Trend) -> str:
    """Return where a change is, by how much, how sure that is, and which commits it may be of."""
    slower = "slower" if change.difference > 0 else "quicker"
    commits = {entry.commit for entry in between}
    clean = not any(commit is None or commit.endswith("-dirty") for commit in commits)
    among = f"`git log {_commit_range(between) or 'not known'}`"
    if len(commits) == 1 and clean:
        among = "all of one commit, so look at the machine, the network and the backends"
    elif not clean:
        among += "; some of these runs do not name a commit without changes"
    return (
        f"{words.ms(abs(change.difference))} ms {slower} from run {change.at + 1} on (commit "
        f"{words.commit(trend.points[change.at].entry.commit)}); 95 % interval "
        f"{words.ms(change.low)} to {words.ms(change.high)} ms, p = {change.p_value:.3f}. It is at "
        f"runs {change.first + 1} to {change.last + 1} with 95 % confidence: {among}"
    )


def _commit_range(between: Sequence[Entry]) -> str | None:
    """Return what `git log` takes to list all that came in; None if an end is not known."""
    first, last = (words.commit(entry.commit).rstrip("+") for entry in (between[0], between[-1]))
    return None if "–" in (first, last) or first == last else f"{first}..{last}"
