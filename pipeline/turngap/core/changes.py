"""Where a series of figures changed its level: E-divisive, with how sure that is.

E-divisive (Matteson and James, 2014, doi 10.1080/01621459.2013.849605) asks of each place in a
series how differently the values before and after it are distributed, takes the place where that is
most, and asks how often a shuffled series has a place as good. Then it goes on within the parts.
It assumes no distribution, and no number of changes. MongoDB and Apache Otava find changes of
benchmarks with it. (Otava itself brings the clients of four databases, and pins numpy.)

What is shuffled in a long series are pairs of neighbours: a machine that is busy during one run
often still is during the next, which makes spells that single values would seldom make by chance.

Where E-divisive finds a change, its place is taken from a fit of two levels (`_places`). What a
level is depends on what the values are of: `GAPS`, or `SHARES` of the turns of a run.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from turngap.core.shifts import Floats, Shift, shift_between, shift_of_means
from turngap.core.stats import CONFIDENCE

# At most this share of series without a change is said to have one. It is more where the machine
# has spells that last longer than what is shuffled: a pair of runs from `IN_PAIRS` on, or else one.
ALPHA = 0.01
# A level needs at least so many values: of fewer, a spell of a busy machine makes one.
LEAST_BESIDE = 4
SHUFFLES = 999
RESAMPLES = 499
# Values are shuffled in pairs where there are so many; of fewer pairs, too few orders differ for a
# change of any size to be beyond chance.
IN_PAIRS = 28
# In a series of fewer values, a change is not found often enough to look for it.
LEAST = 12
# A value counts for no more than so many typical deviations below and above its part's middle. A
# machine that stands still slows a run, and that says the same however long it stood.
_BELOW, _ABOVE = 3.0, 1.0
# Of a normal distribution, the standard deviation by the median absolute deviation.
_DEVIATIONS = 1.4826
# The level that a side has for the fit of gaps: its lower quartile, since a machine errs to one
# side: it slows a run, and makes none faster. In 150 made-up series (30 values, one change by six
# deviations, slow outliers in 7 %) the place was right to one value in 97 %; by medians in 93 %,
# and by E-divisive's own score in 93 %.
_LEVEL = 0.25
# Shuffled distances held in memory at once.
_AT_ONCE = 2_000_000


@dataclass(frozen=True, slots=True)
class Change:
    """A change of level.

    Attributes:
        at: the first value of the new level, counted from 0.
        first, last: it is between these, with 95 % confidence.
        p_value: of a place as good in a shuffled series, which the whole search went through.
        before, after: the levels of the values between the neighbouring changes and this one.
        difference: by how much the new level is higher (`turngap.core.shifts`).
        low, high: its 95 % interval; None where `why_no_interval` says why there is none.
    """

    at: int
    first: int
    last: int
    p_value: float
    before: float
    after: float
    difference: float
    low: float | None
    high: float | None
    why_no_interval: str | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """What a level is of some sort of values.

    Attributes:
        level: of the values between two changes.
        off: how far each row of values is off one level; a change is placed where that is least.
        shift: by how much the values after a change are higher than those before.
        between: where the change is in so many of the made series is where it lies (`_between`).
    """

    level: Callable[[Floats], float]
    off: Callable[[Floats], Floats]
    shift: Callable[[Floats, Floats], Shift]
    between: float


def _over_a_quartile(values: Floats) -> Floats:
    """A value above the level counts for a third of one that is as far below it."""
    over = values - np.quantile(values, _LEVEL, axis=-1, keepdims=True)
    return np.sum(np.where(over > 0, _LEVEL * over, (_LEVEL - 1) * over), axis=-1)


def _around_the_mean(values: Floats) -> Floats:
    return np.sum((values - values.mean(axis=-1, keepdims=True)) ** 2, axis=-1)


# Levels of runs in ms; and shares of the few turns of a run, most of which may be 0. Of 106 changes
# of shares (made series, seeds 2200 to 2249), the planted one lay where 95 % of the made series had
# it in 93, and where 99 % had it in 102: a change that is just found looks larger than it is.
GAPS = Kind(lambda values: float(np.median(values)), _over_a_quartile, shift_between, CONFIDENCE)
SHARES = Kind(lambda values: float(np.mean(values)), _around_the_mean, shift_of_means, 0.99)


def changes(
    values: Sequence[float],
    kind: Kind = GAPS,
    *,
    aside: Collection[int] = (),
    alpha: float = ALPHA,
    least: int = LEAST_BESIDE,
    seed: int = 0,
) -> list[Change]:
    """The changes of level in `values`, in their order; deterministic for a seed.

    Each has at least `least` values on either side before the next one. Values have to be finite.
    Those at the places `aside` tell no level. Where a change lies among them, the middle of the
    places that it may have is named.
    """
    series = np.asarray(values, dtype=np.float64)
    if not np.all(np.isfinite(series)):
        raise ValueError("the values have to be finite")
    used = [place for place in range(len(series)) if place not in aside]
    found = _changes(series[used], kind, alpha, least, seed)
    return [
        replace(
            change,
            at=(used[change.at - 1] + 1 + used[change.at]) // 2,
            first=used[change.first - 1] + 1,
            last=used[change.last],
        )
        for change in found
    ]


def _changes(series: Floats, kind: Kind, alpha: float, least: int, seed: int) -> list[Change]:
    rng = np.random.default_rng(seed)
    bounds: list[int] = [0, len(series)]
    found: dict[int, float] = {}
    while (best := _best(series, kind, bounds, least)) is not None:
        score, at = best
        p_value = _p_value(score, series, bounds, least, rng)
        if p_value > alpha:
            break
        found[at] = p_value
        bounds = sorted([*bounds, at])
    parts = list(zip(bounds, bounds[1:], bounds[2:], strict=False))
    return [
        _change(series, kind, part, found[part[1]], _between(series, kind, part, least, rng))
        for part in parts
    ]


def _near(series: Floats) -> Floats:
    """The values of a part, none of them farther off than `_BELOW` and `_ABOVE`.

    Of a part and not of the whole series, in which a second and larger change would be cut off. It
    does not depend on their order, so that shuffled values are as far off.
    """
    middle = float(np.median(series))
    spread = _DEVIATIONS * float(np.median(np.abs(series - middle)))
    if spread == 0:  # most are the same: what the others are is all that there is to see
        return series
    return np.clip(series, middle - _BELOW * spread, middle + _ABOVE * spread)


def _distances(values: Floats) -> Floats:
    return np.abs(values[:, None] - values[None, :])


def _scores(distances: Floats, least: int) -> Floats:
    """How differently the values before and from each place on are distributed, per series.

    `distances` holds one square of them per series; the first score is of place `least`.
    """
    n = int(distances.shape[-1])
    upper = np.triu(distances)
    before = np.cumsum(upper.sum(axis=-2), axis=-1)  # within the values up to each
    after = np.cumsum(upper.sum(axis=-1)[..., ::-1], axis=-1)[..., ::-1]  # within those from each
    at = np.arange(least, n - least + 1, dtype=np.intp)
    left, right = before[..., at - 1], after[..., at]
    across = before[..., -1:] - left - right
    m = np.asarray(at, dtype=np.float64)
    k = n - m
    within = left / (m * (m - 1) / 2) + right / (k * (k - 1) / 2)
    return m * k / n * (2 * across / (m * k) - within)


def _best(
    series: Floats, kind: Kind, bounds: Sequence[int], least: int
) -> tuple[float, int] | None:
    """The best score of any place, and where the level changed in that part.

    None where no part can be split.
    """
    best: tuple[float, int] | None = None
    for start, end in pairwise(bounds):
        if end - start >= 2 * least:
            near = _near(series[start:end])
            score = float(_scores(_distances(near), least).max())
            if best is None or score > best[0]:
                best = score, start + int(_places(near[None], kind, least)[0])
    return best


def _places(series: Floats, kind: Kind, least: int) -> NDArray[np.intp]:
    """Where two levels fit each of several series best: one series a row."""
    n = series.shape[-1]
    off = [
        kind.off(series[:, :at]) + kind.off(series[:, at:]) for at in range(least, n - least + 1)
    ]
    return least + np.argmin(off, axis=0)


def _p_value(
    score: float, series: Floats, bounds: Sequence[int], least: int, rng: np.random.Generator
) -> float:
    """How many shuffles, each part within itself, have a place that is at least as good."""
    highest = np.full(SHUFFLES, -math.inf)
    for start, end in pairwise(bounds):
        n = end - start
        if n < 2 * least:
            continue
        distances = _distances(_near(series[start:end]))
        room = max(1, _AT_ONCE // (n * n))
        for begin in range(0, SHUFFLES, room):
            count = min(room, SHUFFLES - begin)
            order = _orders(n, count, rng)
            shuffled = distances[order[:, :, None], order[:, None, :]]
            scores = _scores(shuffled, least).max(axis=-1)
            highest[begin : begin + count] = np.maximum(highest[begin : begin + count], scores)
    slack = 1e-9 * max(1.0, abs(score))
    return (1 + int(np.count_nonzero(highest >= score - slack))) / (1 + SHUFFLES)


def _orders(n: int, count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """So many orders of `n` places, one a row; in a long series, pairs stay together."""
    size = 2 if n >= IN_PAIRS else 1
    blocks = rng.permuted(np.tile(np.arange(-(-n // size)), (count, 1)), axis=1)
    places = (blocks[:, :, None] * size + np.arange(size)).reshape(count, -1)
    order = places[places < n].reshape(count, n)
    return (order + rng.integers(0, size, (count, 1))) % n


def _change(
    series: Floats,
    kind: Kind,
    part: tuple[int, int, int],
    p_value: float,
    between: tuple[int, int],
) -> Change:
    start, at, end = part
    before, after = series[start:at], series[at:end]
    shift = kind.shift(before, after)
    return Change(
        at=at,
        first=between[0],
        last=between[1],
        p_value=p_value,
        before=kind.level(before),
        after=kind.level(after),
        difference=shift.middle,
        low=shift.low,
        high=shift.high,
        why_no_interval=shift.why_none,
    )


def _between(
    series: Floats, kind: Kind, part: tuple[int, int, int], least: int, rng: np.random.Generator
) -> tuple[int, int]:
    """Where the change is found in most series with these two levels and this noise."""
    start, at, end = part
    near = _near(series[start:end])
    levels = kind.level(near[: at - start]), kind.level(near[at - start :])
    level = np.where(np.arange(start, end) < at, *levels)
    drawn = level + rng.choice(near - level, (RESAMPLES, end - start))
    places = start + _places(drawn, kind, least)
    tail = (1 - kind.between) / 2
    first, last = np.quantile(places, (tail, 1 - tail), method="closest_observation")
    return min(int(first), at), max(int(last), at)
