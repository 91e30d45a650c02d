"""A verdict beside a starved caller holds whatever its lateness did to the turns it was late in."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from made_pairs import QUIET, SHARED, Injected, simulated_pairs
from scipy.stats import binom

from turngap.check.verdict import Judgement, judge
from turngap.core.paired import MAX_STARVED_PAIRS, Pair, Reading


def noisy(n: int, ms: float = 0.0, seed: int = 1) -> list[Pair]:
    return simulated_pairs(n, QUIET, Injected(ms=ms), np.random.default_rng(seed))


def late(reading: Reading, by_ms: float) -> Reading:
    """The same turn as a caller that was so late may have read it."""
    return replace(reading, caller_error_ms=by_ms, starved=by_ms > 0)


# --- one turn ---------------------------------------------------------------------------------


def test_at_its_quickest_a_turn_is_without_what_the_caller_may_have_added() -> None:
    read = Reading("late", 815.0, {}, 800.0, 44.0)
    assert (read.at_best.gap_ms, read.at_best.outcome) == (771.0, "answered")
    far = replace(read, gap_ms=900.0)
    assert (far.at_best.gap_ms, far.at_best.outcome) == (856.0, "late")
    soon = Reading("answered", 20.0, {}, 800.0, 44.0)
    assert (soon.at_best.gap_ms, soon.at_best.outcome) == (0.0, "answered")
    in_time = Reading("late", 400.0, {}, 800.0)  # as it was judged, by whatever budget
    assert in_time.at_best is in_time
    unknown_budget = Reading("late", 815.0, {}, None, 44.0)
    assert unknown_budget.at_best.outcome == "late"


@pytest.mark.parametrize("outcome", ["no_reply", "error", "abandoned", "cut_in"])
def test_lateness_excuses_no_turn_that_failed(outcome: str) -> None:
    failed = Reading(outcome, -40.0 if outcome == "cut_in" else None, {}, 800.0, 500.0)  # type: ignore[arg-type]
    assert failed.at_best == failed


# --- many -------------------------------------------------------------------------------------

STALLS = st.lists(
    st.tuples(
        st.integers(0, 79),
        st.sampled_from(["reference", "candidate"]),
        st.floats(0.1, 400.0),
        st.floats(0.0, 1.0),
    ),
    max_size=12,
)


@settings(max_examples=10)
@example(25, 0.0, [(0, "candidate", 17.0, 1.0)])  # it seemed to part the slow turns of a call
@given(st.integers(0, 40), st.sampled_from([0.0, 12.0, 20.0, 45.0]), STALLS)
def test_a_verdict_is_that_of_every_truth_that_the_callers_lateness_leaves_open(
    seed: int, ms: float, stalls: list[tuple[int, str, float, float]]
) -> None:
    truth = noisy(80, ms, seed)
    read = list(truth)
    for i, side, by_ms, part in stalls:
        turn: Reading = getattr(truth[i], side)
        if turn.gap_ms is None or turn.budget_ms is None:
            continue
        gap_ms = turn.gap_ms + part * by_ms
        outcome = "answered" if gap_ms <= turn.budget_ms else "late"
        spoiled = late(replace(turn, gap_ms=gap_ms, outcome=outcome), by_ms)
        read[i] = replace(read[i], **{side: spoiled})
    true, shown = judge(truth), judge(read)
    for t, s in zip(true.metrics, shown.metrics, strict=True):
        if t.p_value is None or s.p_value is None:
            continue
        assert s.p_value >= t.p_value - 1e-12
        if None not in (t.low, s.low, t.high, s.high):
            # Each bound is found by halving up to 900 ms 26 times: to within 1e-5.
            assert (s.low or 0) <= (t.low or 0) + 2e-5
            assert (s.high or 0) >= (t.high or 0) - 2e-5
        assert s.verdict != "pass" or (t.high is not None and t.high < t.limit)
    assert shown.verdict != "regressed" or true.verdict == "regressed"


def test_stages_are_compared_where_the_caller_was_in_time() -> None:
    pairs = noisy(100, 40.0)
    spoiled = [
        replace(p, candidate=late(p.candidate, 30.0)) if i < 10 else p for i, p in enumerate(pairs)
    ]
    judgement = judge(spoiled)
    assert {s.n for s in judgement.stages} == {90}
    assert judgement.moved_stage == "llm_first_token"
    assert (judgement.n, judgement.left_out) == (100, 0)
    assert judgement.metrics[0].n == 100


def test_a_shared_machine_that_stalls_in_few_turns_decides_as_a_quiet_one() -> None:
    trials = 8
    for injected, verdict in ((Injected(), "pass"), (Injected(ms=30.0), "regressed")):
        found = [
            judge(simulated_pairs(126, SHARED, injected, np.random.default_rng((11, i))))
            for i in range(trials)
        ]
        assert sum(j.starvation.pairs > 0 for j in found) == trials
        assert all(j.starvation.why_not_judged is None for j in found)
        # A quiet machine's are 87 % and 100 %.
        assert sum(j.verdict == verdict for j in found) >= int(binom.ppf(0.001, trials, 0.85))


# --- which side, and how many -----------------------------------------------------------------


def starved_in(n: int, reference: set[int], candidate: set[int]) -> Judgement:
    pairs = [
        Pair(
            ("s", 1, 0.0, i),
            late(Reading("answered", 400.0, {}), 20.0 if i in reference else 0.0),
            late(Reading("answered", 400.0, {}), 20.0 if i in candidate else 0.0),
        )
        for i in range(n)
    ]
    return judge(pairs)


def test_nobody_starved_is_no_obstacle() -> None:
    starvation = starved_in(90, set(), set()).starvation
    assert (starvation.pairs, starvation.p_value, starvation.error_ms) == (0, 1.0, 0.0)
    assert starvation.why_not_judged is None
    assert judge([]).starvation.why_not_judged is None


@pytest.mark.parametrize(("turns", "chance"), [(7, True), (8, False)])
@pytest.mark.parametrize("side", ["candidate", "reference"])
def test_eight_on_one_side_and_none_on_the_other_is_no_chance(
    side: str, turns: int, chance: bool
) -> None:
    which = set(range(turns))
    on = (set(), which) if side == "candidate" else (which, set())
    # 12 conversations: every exchange of them is listed, and the test is the sign test exactly.
    starvation = starved_in(12, *on).starvation
    assert starvation.p_value == 2 * 0.5**turns
    # Whatever their share of the turns, and of the typical one.
    few_enough = replace(starvation, of=90, reference_ms=0.0, candidate_ms=0.0)
    assert (few_enough.why_not_judged is None) is chance
    if not chance:
        assert f"the {side} takes the processor" in str(few_enough.why_not_judged)
        assert f"in {turns} turns of the {side} and in 0 of" in str(few_enough.why_not_judged)


def test_turns_of_one_conversation_are_one_stall() -> None:
    pairs = [
        Pair(
            ("s", turn, 0.0, i),
            Reading("answered", 400.0, {}),
            late(Reading("answered", 400.0, {}), 20.0 if i == 0 else 0.0),
        )
        for i in range(10)
        for turn in range(9)
    ]
    assert judge(pairs).starvation.p_value == 1.0


def test_a_quarter_of_the_pairs_is_the_most() -> None:
    most = int(MAX_STARVED_PAIRS * 80)
    half = most // 2
    both = set(range(half)), set(range(half, most))
    assert starved_in(80, *both).starvation.why_not_judged is None
    over = starved_in(80, both[0], both[1] | {most}).starvation
    assert over.why_not_judged == f"the caller was starved in {most + 1} of 80 pairs of turns"
    # In a pair where it was on both sides it was one pair.
    assert starved_in(80, both[0], both[0]).starvation.pairs == half
