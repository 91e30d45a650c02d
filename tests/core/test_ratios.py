"""Ratios of gaps over the same turns."""

import numpy as np
import pytest

from turngap.core.budget import Outcome
from turngap.core.paired import Pair, Reading, gap_ratio


def reading(gap_ms: float | None, outcome: Outcome = "answered") -> Reading:
    return Reading(outcome, gap_ms, {})


def pairs(ours: list[float], theirs: list[float], turns: int = 3) -> list[Pair]:
    """Conversations of so many turns."""
    keys = [("s", i % turns + 1, i // turns) for i in range(len(ours))]
    both = zip(keys, ours, theirs, strict=True)
    return [Pair(key, reading(b), reading(a)) for key, a, b in both]


def test_half_of_everything_is_a_half() -> None:
    theirs = [400.0 + 10 * i for i in range(60)]
    found = gap_ratio(pairs([t / 2 for t in theirs], theirs), 0.5)
    assert found.n == 60
    assert found.value == found.low == found.high == 0.5


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_the_interval_holds_the_truth_and_shrinks_with_n(q: float) -> None:
    rng = np.random.default_rng(3)
    widths: list[float] = []
    for n in (60, 600):
        theirs, ours = rng.lognormal(6, 0.2, n), 0.4 * rng.lognormal(6, 0.2, n)
        found = gap_ratio(pairs(list(ours), list(theirs)), q)
        assert found.value is not None and found.low is not None and found.high is not None
        assert found.low <= found.value <= found.high
        assert found.low <= 0.4 <= found.high
        widths.append(found.high - found.low)
    assert widths[1] < widths[0]


def test_turns_without_a_reply_are_the_slowest_there_are() -> None:
    made = pairs([100.0] * 20, [200.0] * 20)
    silent = [Pair(p.key, p.reference, reading(None, "no_reply")) for p in made[:12]]
    assert gap_ratio([*silent, *made[12:]], 0.5).value is None
    assert gap_ratio([*silent[:5], *made[5:]], 0.5).value == 0.5


def test_a_cut_in_on_either_side_is_no_pair() -> None:
    made = pairs([100.0] * 20, [200.0] * 20)
    cut = [
        Pair(made[0].key, reading(-5, "cut_in"), made[0].candidate),
        Pair(made[1].key, made[1].reference, reading(-5, "cut_in")),
    ]
    assert gap_ratio([*cut, *made[2:]], 0.5).n == 18


def test_too_few_turns_have_no_percentile() -> None:
    found = gap_ratio(pairs([100.0] * 10, [200.0] * 10), 0.95)
    assert found.value is None
    assert found.why_none == "n=10, needs 20"


def test_the_same_pairs_give_the_same_interval() -> None:
    rng = np.random.default_rng(5)
    made = pairs(list(rng.lognormal(5, 0.3, 60)), list(rng.lognormal(6, 0.3, 60)))
    assert gap_ratio(made, 0.5) == gap_ratio(made, 0.5)
