"""How often a 95 % interval holds the truth, where turns are not independent.

    python benchmarks/interval_coverage.py --trials 1000

Made-up gaps whose logarithms are normal, of a library of conversations that is played in rounds.
What a gap owes to its recording, and to the play of the conversation that it is in, is planted; so
is what the budget takes. Beside turngap's intervals stand those that take every turn for an
independent one, and a bootstrap of the recorded turns with all their rounds.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm

from turngap.core.clusters import Take
from turngap.core.stats import (
    Percentile,
    Proportion,
    percentile,
    percentile_of,
    proportion,
    proportion_of,
)

Floats = NDArray[np.float64]
QUANTILES = {"p50": 0.5, "p95": 0.95}
WAYS = ("independent", "bootstrap", "turngap")
IN_TIME = 0.9
TURNS = 3
RESAMPLES = 1000
# By how many standard deviations a slow recording is slower, in every round.
SLOWER = 3.0


@dataclass(frozen=True, slots=True)
class Library:
    """So many conversations of three turns, played so often.

    `recording` and `play` are the correlations of two gaps of one recording and of one play; `slow`
    is the share of recordings that are far slower than all others.
    """

    conversations: int
    rounds: int
    recording: float
    play: float
    slow: float = 0.0

    def takes(self) -> list[Take]:
        """Every take of every turn, as they are played."""
        return [
            (str(conversation), turn, round_)
            for conversation in range(self.conversations)
            for turn in range(TURNS)
            for round_ in range(self.rounds)
        ]

    def gaps(self, rng: np.random.Generator) -> Floats:
        """Standard normal but for those that are slow, in the order of the takes."""
        shape = (self.conversations, TURNS, self.rounds)
        of_recording = rng.normal(size=(*shape[:2], 1))
        of_play = rng.normal(size=(shape[0], 1, shape[2]))
        own = sqrt(1 - self.recording - self.play) * rng.normal(size=shape)
        gaps = sqrt(self.recording) * of_recording + sqrt(self.play) * of_play + own
        if self.slow:
            gaps += SLOWER * (rng.random((*shape[:2], 1)) < self.slow)
        return gaps.ravel()

    def truth(self, q: float) -> float:
        """The quantile that is to be held."""

        def beyond(gap: float) -> float:
            fast, slow = norm.cdf(gap), norm.cdf(gap - SLOWER)
            return float((1 - self.slow) * fast + self.slow * slow) - q

        return float(brentq(beyond, -10, 10 + SLOWER))


LIBRARIES = [
    Library(conversations, rounds, recording, play)
    for conversations in (7, 16)
    for rounds, recording, play in (
        (1, 0.0, 0.0),
        (1, 0.0, 0.3),
        (3, 0.0, 0.0),
        (3, 0.3, 0.0),
        (3, 0.6, 0.0),
        (3, 0.9, 0.0),
        (3, 0.3, 0.3),
        (8, 0.3, 0.0),
        (8, 0.6, 0.0),
        (8, 0.9, 0.0),
        (8, 0.3, 0.3),
    )
]
# What no interval can know that takes likeness for what all recordings have.
LIBRARIES += [Library(n, rounds, 0.0, 0.0, slow=1 / 12) for n, rounds in ((7, 3), (7, 8), (16, 8))]


def bounds(found: Percentile | Proportion) -> tuple[float, float]:
    """Where an end is not known, everything may lie beyond."""
    return (-inf if found.low is None else found.low), (inf if found.high is None else found.high)


def resampled(gaps: Floats, q: float, rounds: int, rng: np.random.Generator) -> tuple[float, float]:
    """The middle 95 % of the quantiles of resamples of recorded turns."""
    recordings = gaps.reshape(-1, rounds)
    drawn = rng.integers(0, len(recordings), (RESAMPLES, len(recordings)))
    quantiles = np.quantile(recordings[drawn].reshape(RESAMPLES, -1), q, axis=1)
    low, high = np.quantile(quantiles, (0.025, 0.975))
    return float(low), float(high)


def trial(
    library: Library, ways: Sequence[str], rng: np.random.Generator
) -> Iterator[tuple[str, str, bool, float]]:
    """Of each figure and way its name, whether the interval held the truth, and how wide it is."""
    gaps, takes = library.gaps(rng), library.takes()
    values = gaps.tolist()
    budget, truths = library.truth(IN_TIME), {q: library.truth(q) for q in QUANTILES.values()}
    hits = [value <= budget for value in values]
    for way in ways:
        for name, q in QUANTILES.items():
            if way == "bootstrap":
                low, high = resampled(gaps, q, library.rounds, rng)
            elif way == "turngap":
                low, high = bounds(percentile_of(values, takes, q))
            else:
                low, high = bounds(percentile(values, q))
            yield name, way, low <= truths[q] <= high, high - low
        if way != "bootstrap":
            plain = proportion(sum(hits), len(hits))
            low, high = bounds(proportion_of(hits, takes, values) if way == "turngap" else plain)
            yield "hit rate", way, low <= IN_TIME <= high, high - low


def coverage(
    library: Library, trials: int, ways: Sequence[str] = WAYS, seed: int = 1
) -> Mapping[tuple[str, str], tuple[float, float]]:
    """By figure and way: the share of intervals that held the truth, and their median width."""
    rng = np.random.default_rng(seed)
    held: defaultdict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    for _ in range(trials):
        for figure, way, holds, width in trial(library, ways, rng):
            held[figure, way].append((holds, width))
    return {
        key: (float(np.mean([h for h, _ in seen])), float(np.median([w for _, w in seen])))
        for key, seen in held.items()
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    trials = parser.parse_args().trials
    if trials < 1:
        parser.error("--trials: 1 or more")
    columns = [(f, w) for f in (*QUANTILES, "hit rate") for w in WAYS]
    columns.remove(("hit rate", "bootstrap"))
    print(f"| recorded, rounds | recording, play | {' | '.join(map(' '.join, columns))} |")
    print("| --- | --- |" + " --- |" * len(columns))
    for library in LIBRARIES:
        found = coverage(library, trials)
        cells = [f"{100 * found[c][0]:.1f} ({found[c][1]:.2f})" for c in columns]
        played = f"{TURNS * library.conversations}, {library.rounds}"
        planted = f"{library.recording}, {library.play}" + ", a twelfth slow" * (library.slow > 0)
        print(f"| {played} | {planted} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
