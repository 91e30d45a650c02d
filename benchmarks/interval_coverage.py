"""Measure how often a 95 % interval holds the truth, where turns are not independent.

    nice python benchmarks/interval_coverage.py --trials 1000

Made-up gaps whose logarithms are normal, of a library of conversations that is played in rounds.
What a gap owes to its recording, and to the play of the conversation that it is in, is planted; so
is what the budget takes, and how many calls are lost whole. Beside turngap's intervals stand those
that take every turn for an independent one. Then come the differences that `compare` states, the
gap at 5 % cut-ins that `turns` states, and what `check` passes.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import exp, inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from turngap.check.verdict import judge
from turngap.compare.side_by_side import Pairs, difference
from turngap.core.clusters import Take
from turngap.core.paired import Pair, Reading
from turngap.core.stats import (
    Percentile,
    Proportion,
    percentile,
    percentile_of,
    proportion,
    proportion_of,
)
from turngap.store.comparisons import Reading as CurveReading
from turngap.turns.play import silence_curve

Floats = NDArray[np.float64]
QUANTILES = {"p50": 0.5, "p95": 0.95}
# Shares of turns: in time, and cut into.
SHARES = {"hit rate": 0.9, "cut-ins": 0.03}
# By how many standard deviations a slow recording is slower, in every round.
SLOWER = 3.0


@dataclass(frozen=True, slots=True)
class Library:
    """A library: conversations, turns in each, and how often it is played.

    `recording` and `play` are the correlations of two gaps of one recording and of one play; `slow`
    is the share of recordings that are far slower than all others, `lost` that of calls that end
    before their first answer.
    """

    conversations: int
    turns: int
    rounds: int
    recording: float
    play: float = 0.0
    slow: float = 0.0
    lost: float = 0.0

    def takes(self) -> list[Take]:
        """Every take of every turn, as they are played."""
        return [
            (str(conversation), turn, round_)
            for conversation in range(self.conversations)
            for turn in range(self.turns)
            for round_ in range(self.rounds)
        ]

    def gaps(self, rng: np.random.Generator) -> Floats:
        """Draw from a standard normal but for slow ones, in the order of the takes."""
        shape = (self.conversations, self.turns, self.rounds)
        calls = (shape[0], 1, shape[2])
        of_recording = rng.normal(size=(*shape[:2], 1))
        of_play = rng.normal(size=calls)
        own = sqrt(1 - self.recording - self.play) * rng.normal(size=shape)
        gaps = sqrt(self.recording) * of_recording + sqrt(self.play) * of_play + own
        if self.slow:
            gaps += SLOWER * (rng.random((*shape[:2], 1)) < self.slow)
        return np.where(rng.random(calls) < self.lost, inf, gaps).ravel()

    @cache  # noqa: B019
    def truth(self, q: float) -> float:
        """Return the quantile to be held; infinite where lost calls reach down to it."""
        if q >= 1 - self.lost:
            return inf

        def beyond(gap: float) -> float:
            fast, slow = norm.cdf(gap), norm.cdf(gap - SLOWER)
            return float((1 - self.slow) * fast + self.slow * slow) - q / (1 - self.lost)

        return float(brentq(beyond, -10, 10 + SLOWER))

    def __str__(self) -> str:
        planted = [f"{self.recording}, {self.play}"]
        planted += ["a twelfth slow"] * (self.slow > 0)
        planted += [f"{100 * self.lost:.0f} % of calls lost"] * (self.lost > 0)
        played = f"{self.conversations * self.turns} in {self.conversations}, {self.rounds}"
        return f"| {played} | {'; '.join(planted)} |"


# Played once or more, with few recordings or many.
LIBRARIES = [
    Library(conversations, turns, rounds, recording)
    for conversations, turns, rounds in (
        (1, 1, 20), (1, 2, 10), (1, 3, 7), (3, 1, 7), (4, 1, 5), (1, 5, 4), (5, 1, 4), (3, 3, 3),
    )
    for recording in (0.0, 0.47, 0.9)
]  # fmt: skip
LIBRARIES += [
    Library(conversations, 3, rounds, recording, play)
    for conversations in (7, 16)
    for rounds, recording, play in (
        (1, 0.0, 0.0), (1, 0.0, 0.3), (3, 0.0, 0.0), (3, 0.47, 0.0), (3, 0.9, 0.0), (3, 0.3, 0.3),
        (8, 0.47, 0.0), (8, 0.9, 0.0), (8, 0.3, 0.3),
    )
]  # fmt: skip
LIBRARIES += [Library(n, 10, 1, 0.0, 0.3) for n in (5, 10, 24)]
# What no interval can know that takes likeness for what all recordings have.
LIBRARIES += [Library(n, 3, rounds, 0.0, slow=1 / 12) for n, rounds in ((7, 3), (7, 8), (16, 8))]
LIBRARIES += [
    Library(conversations, turns, 1, 0.0, lost=0.1)
    for conversations, turns in ((3, 10), (10, 10), (12, 8), (24, 3), (72, 1))
]
WAYS = ("independent", "turngap")
COLUMNS = [(figure, way) for figure in (*QUANTILES, *SHARES) for way in WAYS]

# Both ends; None where no interval is shown.
Bounds = tuple[float, float] | None


def bounds(found: Percentile | Proportion | CurveReading) -> Bounds:
    """Count an unknown end as infinite."""
    if found.low is None and found.high is None:
        return None
    return (-inf if found.low is None else found.low), (inf if found.high is None else found.high)


def of_library(
    library: Library, rng: np.random.Generator
) -> Iterator[tuple[tuple[str, str], float, Bounds]]:
    """Return the truth and the interval, for each figure and way."""
    values, takes = library.gaps(rng).tolist(), library.takes()
    finite = [value for value in values if value < inf]
    for name, q in QUANTILES.items():
        alone = percentile(finite, q, censored=len(values) - len(finite))
        for way, found in zip(WAYS, (alone, percentile_of(values, takes, q)), strict=True):
            yield (name, way), library.truth(q), bounds(found)
    for name, share in SHARES.items():
        # A lost call has no cut-ins, and no answers.
        upto = share if name == "cut-ins" else share * (1 - library.lost)
        hits = [value <= library.truth(upto) for value in values]
        found = proportion(sum(hits), len(hits)), proportion_of(hits, takes)
        for way, one in zip(WAYS, found, strict=True):
            yield (name, way), upto, bounds(one)


def coverage(
    trials: int, draw: Callable[[np.random.Generator], Iterator[tuple[Any, float, Bounds]]]
) -> dict[Any, str]:
    """By figure: the per cent of the intervals shown that held the truth, and the median width."""
    rng = np.random.default_rng(1)
    seen: defaultdict[Any, list[tuple[bool, float]]] = defaultdict(list)
    for _ in range(trials):
        for figure, truth, ends in draw(rng):
            shown = seen[figure]
            if ends is not None:
                shown.append((ends[0] <= truth <= ends[1], ends[1] - ends[0]))
    return {figure: _cell(shown, trials) for figure, shown in seen.items()}


def _cell(shown: Sequence[tuple[bool, float]], trials: int) -> str:
    if not shown:
        return "none"
    held, width = (float(np.mean([h for h, _ in shown])), float(np.median([w for _, w in shown])))
    often = "" if len(shown) == trials else f", in {100 * len(shown) / trials:.0f}"
    return f"{100 * held:.1f} ({'∞' if width == inf else f'{width:.2f}'}{often})"


def show_libraries(trials: int) -> None:
    """Percentiles and shares of a run."""
    print(f"| recorded in conversations, rounds | planted | {' | '.join(map(' '.join, COLUMNS))} |")
    print("| --- | --- |" + " --- |" * len(COLUMNS))
    for library in LIBRARIES:
        cells = coverage(trials, partial(of_library, library))
        print(f"{library} {' | '.join(cells[column] for column in COLUMNS)} |", flush=True)


def show_pairs(trials: int) -> None:
    """Return the difference of two shares of right answers."""
    print("| recorded, rounds | one alone, other alone | difference |")
    print("| --- | --- | --- |")
    for k, rounds in ((2, 10), (3, 7), (10, 3), (21, 3), (48, 1)):
        for only in ((0.0, 0.0), (0.05, 0.02), (0.2, 0.1), (0.3, 0.3), (0.4, 0.4)):
            cells = coverage(trials, partial(_difference, k, rounds, only))
            print(f"| {k}, {rounds} | {only[0]}, {only[1]} | {cells['difference']} |", flush=True)


def _difference(
    k: int, rounds: int, only: tuple[float, float], rng: np.random.Generator
) -> Iterator[tuple[str, float, Bounds]]:
    # Turns come out alike in every round, or each by itself.
    of = rng.random(k).repeat(rounds) if rng.random() < 0.5 else rng.random(k * rounds)
    one, other = of >= only[1], (of < only[1]) | (of >= sum(only))
    takes = tuple((str(n), 1, r) for n in range(k) for r in range(rounds))
    found = difference(Pairs(takes, tuple(one.tolist()), tuple(other.tolist())))
    yield "difference", only[0] - only[1], None if found is None else bounds(found)


def show_curve(trials: int) -> None:
    """Return the gap at 5 % cut-ins of an agent that waits for silence, of made-up libraries."""
    print(f"| recorded | gap at 5 % cut-ins ({AT_5_MS:.0f} ms) |\n| --- | --- |")
    for n in (2, 10, 20, 25, 50, 72, 100, 250):
        cells = coverage(max(1, trials // 4), partial(_gap_at_5, n))
        print(f"| {n} | {cells['gap']} |", flush=True)


# Of turns of which six in ten hold a pause.
AT_5_MS = 500 * exp(0.6 * norm.ppf(1 - 0.05 / 0.6))


def _gap_at_5(n: int, rng: np.random.Generator) -> Iterator[tuple[str, float, Bounds]]:
    longest = np.where(rng.random(n) < 0.6, 500 * np.exp(0.6 * rng.normal(size=n)), 0.0)
    turns: Any = [
        SimpleNamespace(take=(str(i), 1, 1), left_out=None, pauses=(SimpleNamespace(ms=ms),))
        for i, ms in enumerate(longest.tolist())
    ]
    found = bounds(silence_curve(turns).gap_at_share_ms)
    # The curve has steps of 10 ms.
    yield "gap", AT_5_MS, found and (found[0] - 10, found[1] + 10)


def show_gate(trials: int) -> None:
    """Count what `check` passes: candidates as bad as a limit, and one that is as good."""
    print("| calls x turns | the candidate | `pass` | the metric's `pass` |")
    print("| --- | --- | --- | --- |")
    cases = [
        (calls, turns, "hit rate", (lost, 0.0, 0.0), f"loses {100 * lost:.0f} % of its calls")
        for calls, turns in ((10, 10), (12, 8), (24, 3), (40, 3), (80, 3))
        for lost in (0.0, 0.1, 0.15)
    ]
    cases += [
        (calls, 3, "gap p95", (0.0, slow, ms), f"is {ms:.0f} ms slower in {100 * slow:.0f} %")
        for calls in (24, 40, 80)
        for slow, ms in ((0.06, 300.0), (0.08, 250.0))
    ]
    for calls, turns, name, bad, words in cases:
        rng, seen = np.random.default_rng(1), list[tuple[bool, bool]]()
        for seed in range(max(1, trials // 2)):
            judged = judge(list(_gate_pairs(rng, (calls, turns), bad)), seed=seed)
            verdict = next(m.verdict for m in judged.metrics if m.name == name)
            seen.append((judged.verdict == "pass", verdict == "pass"))
        whole, metric = (f"{100 * share:.1f} %" for share in np.mean(seen, axis=0))
        print(f"| {calls} x {turns} | {words} | {whole} | {name}: {metric} |", flush=True)


def _gate_pairs(
    rng: np.random.Generator, played: tuple[int, int], bad: tuple[float, float, float]
) -> Iterator[Pair]:
    (calls, turns), (lost, slow, slow_ms) = played, bad
    for call in range(calls):
        outcome = "no_reply" if rng.random() < lost else "answered"
        for turn in range(turns):
            mine, its = 420 + 15 * ((turn * 37) % 5) + 15 * rng.normal(size=2)
            mine += slow_ms * (rng.random() < slow)
            candidate = Reading(outcome, None if outcome == "no_reply" else mine, {}, 2000.0)
            reference = Reading("answered", its, {}, 2000.0)
            yield Pair(("s", turn + 1, 0.0, call + 1), reference, candidate)


PARTS = {
    "libraries": show_libraries,
    "pairs": show_pairs,
    "curve": show_curve,
    "gate": show_gate,
}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--only", choices=PARTS)
    asked = parser.parse_args()
    if asked.trials < 1:
        parser.error("--trials: 1 or more")
    for name, show in PARTS.items():
        if asked.only in (None, name):
            show(asked.trials)
            print()


if __name__ == "__main__":
    main()
