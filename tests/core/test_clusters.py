"""Intervals of turns that are not independent."""

import math
from random import Random
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.clusters import Clusters, Take
from turngap.core.stats import (
    Proportion,
    percentile,
    percentile_of,
    proportion,
    proportion_of,
)

GAPS = st.floats(0, 5_000)
QS = st.sampled_from([0.5, 0.9, 0.95])
TAKES = st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(1, 4))
NEVER = st.just(math.inf)


def alone(n: int) -> list[Take]:
    """Conversations of one turn, played once."""
    return [(str(i), 1, 1) for i in range(n)]


def ends(p: Proportion) -> tuple[float, float]:
    assert p.low is not None
    assert p.high is not None
    return p.low, p.high


@given(st.lists(GAPS | NEVER, min_size=5, max_size=120), QS)
def test_turns_that_nothing_links_have_the_interval_of_independent_ones(
    values: list[float], q: float
) -> None:
    finite = [v for v in values if v < math.inf]
    expected = percentile(finite, q, censored=len(values) - len(finite))
    assert percentile_of(values, alone(len(values)), q) == expected


@given(st.lists(st.booleans(), min_size=3, max_size=60))
def test_so_has_their_share(hits: list[bool]) -> None:
    expected = proportion(sum(hits), len(hits))
    found = proportion_of(hits, alone(len(hits)))
    assert (found.hits, found.n, found.value) == (expected.hits, expected.n, expected.value)
    assert ends(found) == pytest.approx(ends(expected))
    assert found.recorded == len(hits)


@given(st.lists(GAPS, min_size=20, max_size=60), st.integers(2, 5), QS)
def test_rounds_that_repeat_every_gap_tell_no_more_than_one(
    gaps: list[float], rounds: int, q: float
) -> None:
    takes = [(scenario, 1, r + 1) for r in range(rounds) for scenario, *_ in alone(len(gaps))]
    once, again = percentile_of(gaps, alone(len(gaps)), q), percentile_of(gaps * rounds, takes, q)
    assert (again.low, again.high) == (once.low, once.high)
    hits = [gap <= 800 for gap in gaps]
    found = proportion_of(hits * rounds, takes)
    assert (found.n, found.recorded) == (rounds * len(gaps), len(gaps))
    assert ends(found) == pytest.approx(ends(proportion(sum(hits), len(hits))))


@given(st.dictionaries(TAKES, GAPS, min_size=20, max_size=48))
def test_no_link_makes_an_interval_narrower(gaps: dict[Take, float]) -> None:
    takes, values = list(gaps), list(gaps.values())
    for q in (0.5, 0.9, 0.95):
        found, tightest = percentile_of(values, takes, q), percentile(values, q)
        assert found.value == tightest.value
        lows, highs = (found.low, tightest.low), (found.high, tightest.high)
        assert _at(lows[0], -math.inf) <= _at(lows[1], -math.inf) <= _at(tightest.value, 0)
        assert _at(highs[0], math.inf) >= _at(highs[1], math.inf) >= _at(tightest.value, 0)
    hits = [v <= 800 for v in values]
    found, (least, most) = proportion_of(hits, takes), ends(proportion(sum(hits), len(hits)))
    assert _at(found.low, 0) <= least + 1e-12
    assert _at(found.high, 1) >= most - 1e-12


def _at(end: float | None, unknown: float) -> float:
    return unknown if end is None else end


PLAYED = st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5))


@given(PLAYED, st.randoms(use_true_random=False))
def test_a_miss_never_improves_a_bound_and_no_interval_is_of_two_recordings_or_plays(
    played: tuple[int, int, int], random: Random
) -> None:
    conversations, turns, rounds = played
    takes = [
        (str(c), t, r) for c in range(conversations) for t in range(turns) for r in range(rounds)
    ]
    hits, before = [True] * len(takes), proportion_of([True] * len(takes), takes)
    shown = min(conversations * turns, conversations * rounds) >= 3
    for miss in random.sample(range(len(takes)), len(takes)):
        hits[miss] = False
        after = proportion_of(hits, takes)
        assert ((after.low, after.high) != (None, None)) == shown
        if shown:
            assert ends(after)[0] <= ends(before)[0]
            assert ends(after)[1] <= ends(before)[1]
        before = after


@pytest.mark.parametrize(("conversations", "rounds"), [(7, 3), (1, 21), (21, 1)])
def test_of_a_share_the_recordings_or_the_plays_count(conversations: int, rounds: int) -> None:
    takes = [(str(c), t, r) for c in range(conversations) for t in (1, 2, 3) for r in range(rounds)]
    found = proportion_of([True] * len(takes), takes)
    fewest = min(3 * conversations, rounds * conversations)
    assert ends(found) == pytest.approx(ends(proportion(fewest, fewest)))


@pytest.mark.parametrize("recorded", [1, 2])
def test_takes_of_one_or_two_recordings_have_no_interval(recorded: int) -> None:
    takes = [("a", turn, r) for r in range(20) for turn in range(recorded)]
    gaps = [400.0 + i for i in range(len(takes))]
    for q in (0.5, 0.95):
        found = percentile_of(gaps, takes, q)
        assert found.value is not None
        assert (found.low, found.high) == (None, None)
    rate = proportion_of([True] * len(takes), takes)
    assert (rate.value, rate.low, rate.high) == (1.0, None, None)
    assert "no interval: it takes 3 different turns" in str(rate)


def held(
    played: tuple[int, int, int], alike: float, lost: float = 0.0, trials: int = 300
) -> dict[str, float]:
    """The shares of intervals that hold the truth, of gaps that owe so much to their recording."""
    rng, seen = np.random.default_rng(8), {"p50": 0, "hit rate": 0}
    conversations, turns, rounds = played
    takes = [
        (str(c), t, r) for c in range(conversations) for t in range(turns) for r in range(rounds)
    ]
    for _ in range(trials):
        gaps = math.sqrt(alike) * rng.normal(size=(conversations, turns, 1))
        gaps = gaps + math.sqrt(1 - alike) * rng.normal(size=(conversations, turns, rounds))
        gone = rng.random((conversations, 1, rounds)) < lost
        values = np.where(gone, math.inf, gaps).ravel().tolist()
        median = percentile_of(values, takes, 0.5)
        truth = NormalDist().inv_cdf(0.5 / (1 - lost))
        seen["p50"] += _at(median.low, -math.inf) <= truth <= _at(median.high, math.inf)
        low, high = ends(proportion_of([v <= 1.2815515655 for v in values], takes))
        seen["hit rate"] += low <= 0.9 * (1 - lost) <= high
    return {name: n / trials for name, n in seen.items()}


@pytest.mark.parametrize(
    ("played", "alike", "lost"),
    [
        ((1, 3, 7), 0.47, 0.0), ((3, 1, 7), 0.9, 0.0), ((5, 1, 4), 0.9, 0.0), ((1, 5, 4), 0.6, 0.0),
        ((10, 10, 1), 0.0, 0.1), ((24, 3, 1), 0.0, 0.1), ((3, 10, 1), 0.0, 0.15),
    ],
)  # fmt: skip
def test_intervals_hold_of_few_recordings_and_where_calls_are_lost_whole(
    played: tuple[int, int, int], alike: float, lost: float
) -> None:
    # 95 % less three standard errors of 300 trials.
    assert min(held(played, alike, lost).values()) >= 0.91


def test_a_machine_that_is_slow_for_a_whole_conversation_has_shown_one_slow_conversation() -> None:
    rng = np.random.default_rng(4)
    takes = [(str(c), turn, 1) for c in range(16) for turn in range(4)]
    shared = np.repeat(rng.normal(400, 100, 16), 4)
    found = percentile_of(shared.tolist(), takes, 0.5)
    conversations = percentile(shared[::4].tolist(), 0.5)
    as_turns = percentile(shared.tolist(), 0.5)
    widths = [_at(p.high, math.inf) - _at(p.low, -math.inf) for p in (as_turns, found)]
    assert widths[1] > 1.5 * widths[0]
    assert _at(conversations.low, 0) <= _at(found.low, 0) <= _at(found.high, 0)


def test_of_nothing_there_is_no_interval() -> None:
    assert percentile_of([], [], 0.5).why_none == "n=0, needs 5"
    empty = proportion_of([], [])
    assert (empty.value, empty.low, empty.high, empty.recorded) == (None, None, None, 0)
    lost = percentile_of([math.inf] * 7, alone(7), 0.5)
    assert lost.why_none == "7 of 7 turns have no reply"


def test_a_slow_spell_that_hits_all_calls_has_shown_one_slow_spell() -> None:
    rng = np.random.default_rng(6)
    calls = [(line, turn // 4) for turn in range(12) for line in range(10)]
    at_s = [5.0 * turn + line / 10 for turn in range(12) for line in range(10)]
    spells = np.repeat(rng.normal(400, 100, 12), 10) + rng.normal(0, 10, 120)
    linked = Clusters.of_calls(calls, at_s)
    found = percentile_of(spells.tolist(), linked, 0.5)
    as_turns = percentile(spells.tolist(), 0.5)
    widths = [_at(p.high, math.inf) - _at(p.low, -math.inf) for p in (as_turns, found)]
    assert widths[1] > 2 * widths[0]
    # Without a miss only the gaps show it.
    hits = [True] * 120
    by_gaps, by_hits = proportion_of(hits, linked, spells.tolist()), proportion_of(hits, linked)
    assert ends(by_hits) == pytest.approx(ends(proportion(120, 120)))
    assert ends(by_gaps)[0] < ends(proportion(30, 30))[0]
    assert by_gaps.recorded is None
