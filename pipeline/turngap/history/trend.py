"""The trend: where an agent became slower or quicker, from run to run."""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from turngap.core.errors import InputError
from turngap.core.paired import CENSORED_MS, TOLERANCE_MS, shift
from turngap.core.results import TurnKey
from turngap.core.stats import CONFIDENCE, normal_quantile
from turngap.core.wording import several
from turngap.history.kinds import Entry, due_ms
from turngap.report import words
from turngap.report.sections import Line, Lines
from turngap.store.folders import read_outcomes

Key = TypeVar("Key", bound=Hashable)
Floats = NDArray[np.float64]

# A turn counts for no more than this in its run's balance, however late it was.
LIMIT_MS = 30.0
# To have a level, a run has to share this many turns with the others.
LEAST_TURNS = 5
# A run is compared with this many before it and after it.
NEIGHBOURS = 4
# A run is uneven if its turns are this many times as far off as those of its neighbours. Chosen on
# made-up series, where 2 and 3 did as well.
UNEVEN = 2.5
# Less than this is no fault of any run, and a turn counts for no more than that.
_EVEN_MS, _FAR_MS = 5.0, 60.0
_ROUNDS = 8
# A place is a change if at most this share of shuffled series have one as good. It is not the rate
# of false reports: in 2 of 60 series without a change (3 %), one was reported (docs/history.md).
ALPHA = 0.005
# A level needs this many values: of fewer, a spell of a busy machine makes one.
LEAST_BESIDE = 4
# In a series of fewer values, a change is not found often enough to look for it.
LEAST = 12
# Neighbours are shuffled together from this many values on, because a machine that is busy during
# one run often still is during the next. Fewer pairs have too few orders to decide anything.
IN_PAIRS = 28
SHUFFLES, RESAMPLES = 999, 499
# A value counts for no more than this many typical deviations from its part's middle: a machine
# that stands still slows a run, and that says the same however long it stood.
_FAR = 2.0
# Of a normal distribution, the standard deviation by the median absolute deviation.
_DEVIATIONS = 1.4826
# The quantile that is a side's level when a change is placed. A machine slows a run and makes none
# faster: of 150 made-up series, the place was right to one run in 97 %, and by medians in 93 %.
_LEVEL = 0.25


@dataclass(frozen=True, slots=True)
class RunLevel:
    """The gap of a run's typical turn; `ms` is None where it shares too few turns with others."""

    ms: float | None
    uneven: bool = False


def run_levels(runs: Sequence[Mapping[Key, float]]) -> list[RunLevel]:
    """Return the level of each run, given its turns' gaps in ms by the key of each turn.

    Only turns that were taken in at least half of the runs count.
    """
    counts = Counter(key for run in runs for key in run)
    shared = [key for key, count in counts.items() if 2 * count >= len(runs)]
    gaps = np.array([[run.get(key, np.nan) for key in shared] for run in runs], dtype=np.float64)
    turns = np.count_nonzero(~np.isnan(gaps), axis=1) if shared else np.zeros(len(runs), int)
    enough = turns >= LEAST_TURNS
    if not enough.any():
        return [RunLevel(None)] * len(runs)
    typical, added = _fitted(gaps[enough])
    levels = (float(np.median(typical)) + added).tolist()
    known = iter(map(RunLevel, levels, _uneven(gaps[enough], added)))
    return [next(known) if has_level else RunLevel(None) for has_level in enough]


def _fitted(gaps: Floats) -> tuple[Floats, Floats]:
    """Return the time of each turn (the median over the runs), and the addition of each run."""
    gaps = gaps[:, ~np.all(np.isnan(gaps), axis=0)]
    added = np.zeros(len(gaps))
    typical = np.nanmedian(gaps, axis=0)
    for _ in range(_ROUNDS):
        typical = np.nanmedian(gaps - added[:, None], axis=0)
        over = gaps - typical
        added = np.array([shift(row[~np.isnan(row)], LIMIT_MS) for row in over])
    return typical, added


def _uneven(gaps: Floats, added: Floats) -> list[bool]:
    """Return, for each run, whether some of its turns differ far more from other runs than usual.

    A run is uneven if its difference from neighbouring runs varies from turn to turn far more than
    is usual here. Each run is compared with the runs before it and with those after it, and the
    smaller result counts, so a new version that slows only some turns is not flagged. Turns without
    a reply are ignored.
    """
    own = np.where(gaps < CENSORED_MS, gaps, np.nan) - added[:, None]
    off = np.array(
        [
            min(
                _off(own[run], own[max(0, run - NEIGHBOURS) : run]),
                _off(own[run], own[run + 1 : run + 1 + NEIGHBOURS]),
            )
            for run in range(len(own))
        ]
    )
    off[np.isinf(off)] = 0.0
    wide = 2 * NEIGHBOURS + 1
    first = np.clip(np.arange(len(own)) - NEIGHBOURS, 0, max(0, len(own) - wide))
    usual = np.array([np.median(off[at : at + wide]) for at in first])
    return (off > np.maximum(UNEVEN * usual, _EVEN_MS)).tolist()


def _off(run: Floats, others: Floats) -> float:
    """Return the average difference in ms of a run's turns from the same turns in other runs.

    Infinite if the run and these have too few turns in common.
    """
    known = ~np.isnan(run) & ~np.all(np.isnan(others), axis=0)
    if np.count_nonzero(known) < LEAST_TURNS:
        return np.inf
    apart = run[known] - np.nanmedian(others[:, known], axis=0)
    return float(np.mean(np.minimum(np.abs(apart - np.median(apart)), _FAR_MS)))


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level.

    Attributes:
        at: the first value of the new level, counted from 0.
        first, last: the change is between these, with 95 % confidence.
        p_value: the share of shuffled series in which any place fits as well.
        before, after: the medians of the values between the neighbouring changes and this one.
        difference: by how much the values after it are higher than those before.
        low, high: its 95 % interval.
    """

    at: int
    first: int
    last: int
    p_value: float
    before: float
    after: float
    difference: float
    low: float
    high: float


def changes(values: Sequence[float], aside: Collection[int] = ()) -> list[Change]:
    """Return the changes of level in `values`, in their order; the same ones each time.

    Each change has at least `LEAST_BESIDE` values on either side before the next change. Values at
    the places `aside` are ignored; of a change among them, the middle of its possible places is
    named.
    """
    used = [place for place in range(len(values)) if place not in aside]
    series = np.array([values[place] for place in used], dtype=np.float64)
    rng = np.random.default_rng(0)
    bounds: list[int] = [0, len(series)]
    p_values: dict[int, float] = {}
    while parts := [part for part in pairwise(bounds) if part[1] - part[0] >= 2 * LEAST_BESIDE]:
        near = [_near(series[start:end]) for start, end in parts]
        scores = [float(_scores(part)) for part in near]
        best = int(np.argmax(scores))
        p_value = _p_value(scores[best], near, rng)
        if p_value > ALPHA:
            break
        at = parts[best][0] + int(_places(near[best][None])[0])
        p_values[at] = p_value
        bounds = sorted([*bounds, at])
    splits = zip(bounds, bounds[1:], bounds[2:], strict=False)
    found = [_change(series, split, p_values[split[1]], rng) for split in splits]
    return [
        replace(
            change,
            at=(used[change.at - 1] + 1 + used[change.at]) // 2,
            first=used[change.first - 1] + 1,
            last=used[change.last],
        )
        for change in found
    ]


def _near(part: Floats) -> Floats:
    """Clip the values of a part to `_FAR` deviations from its median.

    The result does not depend on their order, so shuffled values are clipped alike.
    """
    middle = float(np.median(part))
    spread = _DEVIATIONS * float(np.median(np.abs(part - middle)))
    if spread == 0:  # most are the same: what the others are is all that there is to see
        return part
    return np.clip(part, middle - _FAR * spread, middle + _FAR * spread)


def _scores(series: Floats) -> Floats:
    """Return each row's largest difference of means around a place, in standard errors."""
    n = series.shape[-1]
    at = np.arange(LEAST_BESIDE, n - LEAST_BESIDE + 1)
    over = np.cumsum(series - series.mean(axis=-1, keepdims=True), axis=-1)[..., at - 1]
    spread = series.std(axis=-1, keepdims=True)
    scores = np.abs(over) / np.sqrt(at * (n - at) / n)
    return np.max(scores / np.where(spread > 0, spread, math.inf), axis=-1)


def _p_value(score: float, parts: Sequence[Floats], rng: np.random.Generator) -> float:
    """Return the share of shuffles, each part within itself, in which a place fits as well."""
    if score == 0:  # all values are the same
        return 1.0
    shuffled = (part[_orders(len(part), rng)] for part in parts)
    highest = np.max([_scores(rows) for rows in shuffled], axis=0)
    return (1 + int(np.count_nonzero(highest >= score * (1 - 1e-9)))) / (1 + SHUFFLES)


def _orders(n: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return `SHUFFLES` orders of `n` places, one a row; in a long series, pairs stay together."""
    size = 2 if n >= IN_PAIRS else 1
    blocks = rng.permuted(np.tile(np.arange(-(-n // size)), (SHUFFLES, 1)), axis=1)
    places = (blocks[:, :, None] * size + np.arange(size)).reshape(SHUFFLES, -1)
    order = places[places < n].reshape(SHUFFLES, n)
    return (order + rng.integers(0, size, (SHUFFLES, 1))) % n


def _places(series: Floats) -> NDArray[np.intp]:
    """Return where two levels fit each of several series best: one series a row."""
    ends = range(LEAST_BESIDE, series.shape[-1] - LEAST_BESIDE + 1)
    return LEAST_BESIDE + np.argmin(
        [_misfit(series[:, :at]) + _misfit(series[:, at:]) for at in ends], axis=0
    )


def _misfit(values: Floats) -> Floats:
    """Return the distance of each row from its lower quartile; a value above counts for a third."""
    over = values - np.quantile(values, _LEVEL, axis=-1, keepdims=True)
    return np.sum(np.where(over > 0, _LEVEL * over, (_LEVEL - 1) * over), axis=-1)


def _change(
    series: Floats, split: tuple[int, int, int], p_value: float, rng: np.random.Generator
) -> Change:
    """Return a change, and where most simulated series of the same levels and noise have it."""
    start, at, end = split
    before, after = series[start:at], series[at:end]
    near = _near(series[start:end])
    medians = np.median(near[: at - start]), np.median(near[at - start :])
    level = np.where(np.arange(start, end) < at, *medians)
    drawn = level + rng.choice(near - level, (RESAMPLES, end - start))
    tails = (1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2
    first, last = start + np.quantile(_places(drawn), tails, method="closest_observation")
    shifted = _shift(before, after)
    levels = float(np.median(before)), float(np.median(after))
    return Change(at, min(int(first), at), max(int(last), at), p_value, *levels, *shifted)


def _shift(before: Floats, after: Floats) -> tuple[float, float, float]:
    """Return by how much the values after a change are higher, with the 95 % interval.

    The median of all differences (Hodges and Lehmann), between those that Mann and Whitney's test
    does not reject, by its normal approximation.
    """
    differences = np.sort((after[:, None] - before[None, :]).ravel())
    n = len(differences)
    spread = math.sqrt(n * (len(before) + len(after) + 1) / 12)
    rank = max(1, math.floor(n / 2 + normal_quantile((1 - CONFIDENCE) / 2) * spread))
    return float(np.median(differences)), float(differences[rank - 1]), float(differences[-rank])


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
    """A run of a series with its level. Changes are not looked for in an `uneven` one."""

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

    A series holds replays of one agent that were played the same over the same kind of line, on the
    same machine, with figures of one metrics version and with the same limit for a late caller.
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
    return [
        runs
        for runs in series.values()
        if any(run.valid or run.status != "failed" or run.n > 0 for run in runs)
    ]


def _trend(entries: Sequence[Entry]) -> Trend:
    used: list[tuple[Entry, Mapping[TurnKey, float]]] = []
    left_out: list[tuple[Entry, str]] = []
    for entry in entries:
        if not entry.valid:
            left_out.append((entry, entry.why[0] if entry.why else "it is not valid"))
            continue
        try:
            dues = {turn.key: due_ms(turn) for turn in read_outcomes(Path(entry.path))}
        except InputError as e:
            left_out.append((entry, str(e)))
            continue
        # Without a reply a gap is longer than any wait.
        gaps = {k: ms if ms < math.inf else CENSORED_MS for k, ms in dues.items() if ms is not None}
        used.append((entry, gaps))
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
        why = f"{runs}; expected {LEAST} or more even ones, two thirds of all"
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
    """Describe a change: its place, its size, its certainty, and the commits that may cause it."""
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
    """Return the range for `git log` that lists all new commits; None if an end is not known."""
    first, last = (words.commit(entry.commit).rstrip("+") for entry in (between[0], between[-1]))
    return None if "–" in (first, last) or first == last else f"{first}..{last}"
