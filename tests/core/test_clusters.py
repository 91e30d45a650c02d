"""Intervals of turns that are not independent."""

import math

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


@given(st.lists(GAPS | NEVER, max_size=120), QS)
def test_turns_that_nothing_links_have_the_interval_of_independent_ones(
    values: list[float], q: float
) -> None:
    finite = [v for v in values if v < math.inf]
    expected = percentile(finite, q, censored=len(values) - len(finite))
    assert percentile_of(values, alone(len(values)), q) == expected


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_so_has_their_share(hits: list[bool]) -> None:
    expected = proportion(sum(hits), len(hits))
    found = proportion_of(hits, alone(len(hits)), [float(not hit) for hit in hits])
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
    found = proportion_of(hits * rounds, takes, gaps * rounds)
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
    low, high = ends(proportion_of(hits, takes, values))
    least, most = ends(proportion(sum(hits), len(hits)))
    assert low <= least + 1e-12
    assert high >= most - 1e-12


def _at(end: float | None, unknown: float) -> float:
    return unknown if end is None else end


def test_without_a_miss_the_recorded_turns_count() -> None:
    takes = [(scenario, turn, r) for scenario in "abcdefg" for turn in (1, 2, 3) for r in (1, 2, 3)]
    found = proportion_of([True] * 63, takes, [400.0 + i for i in range(63)])
    assert (found.hits, found.n, found.recorded) == (63, 63, 21)
    assert ends(found) == ends(proportion(21, 21))
    none = proportion_of([False] * 63, takes)
    assert ends(none) == ends(proportion(0, 21))


def test_too_few_in_the_tail_to_show_whose_they_are_have_at_least_the_medians_effect() -> None:
    # Recordings differ, and hardly from round to round; but three takes alone, each of another
    # recording and play, are far slower than all others and miss the budget.
    takes = [(str(n), 1, r) for n in range(21) for r in range(3)]
    slow = {("4", 1, 0), ("9", 1, 1), ("15", 1, 2)}
    gaps = [100.0 + 10 * int(n) + r + 5000 * ((n, t, r) in slow) for n, t, r in takes]
    tail, as_turns = percentile_of(gaps, takes, 0.95), percentile(gaps, 0.95)
    assert tail.low is not None
    assert as_turns.low is not None
    assert tail.low < as_turns.low
    in_time = [gap < 800 for gap in gaps]
    by_misses, by_gaps = proportion_of(in_time, takes), proportion_of(in_time, takes, gaps)
    assert ends(by_misses) == pytest.approx(ends(proportion(60, 63)))
    assert ends(by_gaps)[0] < ends(by_misses)[0] - 0.03


def test_of_one_recording_alone_its_takes_count() -> None:
    gaps, takes = [400.0 + i for i in range(20)], [("a", 1, r) for r in range(20)]
    assert percentile_of(gaps, takes, 0.5) == percentile(gaps, 0.5)


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


def test_a_few_conversations_played_once_keep_their_interval() -> None:
    rng = np.random.default_rng(5)
    takes = [(str(c), turn, 1) for c in range(4) for turn in range(3)]
    for _ in range(50):
        assert percentile_of(rng.normal(400, 50, 12).tolist(), takes, 0.5).high is not None


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
