"""Two backends over the same turns: intervals of how they differ."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.compare.side_by_side import (
    LogRatio,
    Pairs,
    difference,
    inverse,
    mean_ratio,
    paired,
    right_ratio,
    told_apart,
)
from turngap.core.clusters import Take

YES, NO = True, False


def as_takes(turns: Iterable[int]) -> tuple[Take, ...]:
    """A turn of its own conversation each; one that comes again is its next round."""
    seen: Counter[int] = Counter()
    takes: list[Take] = []
    for turn in turns:
        seen[turn] += 1
        takes.append((str(turn), 1, seen[turn]))
    return tuple(takes)


def pairs(both: int, one: int, other: int, neither: int, rounds: int = 1) -> Pairs[bool]:
    """Return this many turns by who was right in them, the same in each of the rounds."""
    cells = [(YES, YES)] * both + [(YES, NO)] * one + [(NO, YES)] * other + [(NO, NO)] * neither
    takes = [(turn, *cell) for _ in range(rounds) for turn, cell in enumerate(cells)]
    turns, mine, its = zip(*takes, strict=True)
    return Pairs(as_takes(turns), mine, its)


def test_the_difference_is_about_newcombes() -> None:
    # The worked example of Newcombe 1998 (Altman et al., Statistics with confidence, 2000, p. 52),
    # 0.2 (0.0569 to 0.3404), and a little wider.
    assert ends(36, 12, 2, 0) == pytest.approx((0.2, 0.04, 0.35), abs=0.01)


def ends(
    both: int, one: int, other: int, neither: int, rounds: int = 1
) -> tuple[float, float, float]:
    found = difference(pairs(both, one, other, neither, rounds=rounds))
    assert found is not None
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    return found.value, found.low, found.high


def test_a_further_wrong_answer_never_tells_two_apart() -> None:
    for k, rounds in ((10, 3), (12, 1), (40, 1)):
        for wrong in range(1, k):
            for more in range(k - wrong):
                before = ends(k - wrong - more, wrong, more, 0, rounds)
                # One less of those that it alone, or that both, had right.
                after = ends(k - wrong - more, wrong - 1, more, 1, rounds)
                assert after[1] <= before[1]
                if k - wrong - more:
                    after = ends(k - wrong - more - 1, wrong, more + 1, 0, rounds)
                    assert after[1] <= before[1]


def test_two_recorded_turns_tell_nothing_apart_however_often_they_were_played() -> None:
    found = difference(pairs(0, 2, 0, 0, rounds=20))
    assert found is not None
    assert (found.value, found.low, found.high) == (1.0, None, None)
    assert not told_apart(found)


def test_no_disagreement_in_a_few_turns_is_no_proof_of_none() -> None:
    for cells in ((7, 0, 0, 0), (4, 0, 0, 3)):
        found = ends(*cells)
        assert found[1] < -0.1
        assert found[2] > 0.1


def test_the_same_turns_say_more_than_other_ones() -> None:
    """Check that a backend right in the same turns and in some more is better, by these turns."""
    together, apart = ends(20, 8, 0, 20), ends(11, 17, 9, 11)
    assert together[0] == pytest.approx(apart[0])
    assert together[1] > 0 > apart[1]


cells = st.tuples(*[st.integers(0, 12)] * 4).filter(lambda cells: sum(cells) >= 3)


@given(cells, st.integers(1, 5))
def test_rounds_that_repeat_themselves_tell_nothing_more(
    cells: tuple[int, int, int, int], rounds: int
) -> None:
    assert ends(*cells, rounds) == pytest.approx(ends(*cells))


@given(cells)
def test_intervals_hold_their_value_and_turn_round_with_the_sides(
    cells: tuple[int, int, int, int],
) -> None:
    both, one, other, neither = cells
    for about in (ends, _logs):
        found, turned = about(*cells), about(both, other, one, neither)
        assert found[1] <= found[0] + 1e-12
        assert found[0] <= found[2] + 1e-12
        assert turned == pytest.approx((-found[0], -found[2], -found[1]))


def _logs(both: int, one: int, other: int, neither: int) -> tuple[float, float, float]:
    found = right_ratio(pairs(both, one, other, neither))
    assert found is not None
    return found.value, found.low, found.high


def test_who_was_never_right_is_infinitely_less_often_so() -> None:
    found = right_ratio(pairs(0, 5, 0, 5))
    assert found is not None
    assert (found.value, found.high) == (math.inf, math.inf)
    assert math.isfinite(found.low)
    nobody = right_ratio(pairs(0, 0, 0, 9))
    assert nobody == LogRatio(0.0, -math.inf, math.inf)


def times(rows: Sequence[tuple[int, float, float]]) -> Pairs[float]:
    turns, mine, its = zip(*rows, strict=True)
    return Pairs(as_takes(turns), mine, its)


def test_a_ratio_of_means_is_known_as_well_as_it_is_alike_in_all_turns() -> None:
    alike = mean_ratio(times([(n, 2.0 * n, 1.0 * n) for n in range(1, 9)]))
    assert alike is not None
    assert alike.value == pytest.approx(math.log(2))
    assert alike.high - alike.low < 1e-9
    single = mean_ratio(times([(1, 3.0, 2.0)]))
    assert single == LogRatio(math.log(1.5), -math.inf, math.inf)
    assert mean_ratio(times([(1, 0.0, 0.0)])) == LogRatio(0.0, 0.0, 0.0)
    assert mean_ratio(times([(1, 2.0, 0.0)])) == LogRatio(math.inf, math.inf, math.inf)


def test_takes_of_a_single_recorded_turn_bound_no_ratio() -> None:
    found = mean_ratio(times([(1, 2.0 + 0.1 * n, 1.0) for n in range(8)]))
    assert found is not None
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert found.value == pytest.approx(math.log(2.35))


def test_nothing_is_said_without_a_pair() -> None:
    assert difference(paired({}, {})) is None
    assert right_ratio(paired({}, {})) is None
    assert mean_ratio(paired({("a", 1, 1): 1.0}, {("a", 1, 2): 2.0})) is None


def test_the_takes_that_both_have_are_paired() -> None:
    one, other = {("a", 1, 1): 1.0, ("a", 2, 1): 2.0}, {("a", 2, 1): 5.0, ("b", 1, 1): 6.0}
    assert paired(one, other) == Pairs((("a", 2, 1),), (2.0,), (5.0,))


def coverage(draw: Callable[[np.random.Generator], tuple[float, LogRatio | None]]) -> float:
    rng, held, trials = np.random.default_rng(3), 0, 600
    for _ in range(trials):
        truth, found = draw(rng)
        assert found is not None
        held += found.low <= truth <= found.high
    return held / trials


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    def rights(rng: np.random.Generator) -> tuple[float, LogRatio | None]:
        hard = rng.random(40)  # what is hard for the one is hard for the other
        mine, its = hard < 0.85, (hard + rng.normal(0, 0.2, 40)) < 0.5
        found = right_ratio(Pairs(as_takes(range(40)), tuple(mine.tolist()), tuple(its.tolist())))
        return math.log(0.85 / 0.5), found

    def means(rng: np.random.Generator) -> tuple[float, LogRatio | None]:
        lengths = rng.lognormal(8, 0.4, 15)
        rows = [
            (n, float(ms * rng.normal(1.2, 0.1)), float(ms * rng.normal(1, 0.1)))
            for n, ms in enumerate(lengths)
        ]
        return math.log(1.2), mean_ratio(times(rows))

    # 95 % less three standard errors of 600 trials.
    assert coverage(rights) > 0.92
    assert coverage(means) > 0.92


def test_the_inverse_of_a_ratio() -> None:
    assert inverse(LogRatio(1, 0.5, 2)) == LogRatio(-1, -2, -0.5)
