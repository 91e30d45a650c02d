"""Verdicts on given pairs: failing turns count, small samples decide nothing."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_pairs import QUIET, Injected, simulated_pairs
from scipy.stats import binom, wilcoxon

from turngap.check.verdict import Judgement, judge
from turngap.core.budget import Outcome
from turngap.core.paired import (
    Limits,
    Pair,
    Reading,
    detectable,
    exchanges,
    shift,
    shift_interval,
    tail,
    typical,
)
from turngap.store.checks import MetricVerdict


def answered(gap_ms: float, **stages: float) -> Reading:
    return Reading("answered" if gap_ms <= 800 else "late", gap_ms, stages)


def failed(outcome: Outcome) -> Reading:
    return Reading(outcome, None, {})


def pairs_of(reference: list[Reading], candidate: list[Reading]) -> list[Pair]:
    """One turn a conversation."""
    both = enumerate(zip(reference, candidate, strict=True))
    return [Pair(("s", 1, 0.0, i), a, b) for i, (a, b) in both]


def noisy(n: int, ms: float = 0.0, seed: int = 1) -> list[Pair]:
    return simulated_pairs(n, QUIET, Injected(ms=ms), np.random.default_rng(seed))


def metric(judgement: Judgement, name: str) -> MetricVerdict:
    return next(m for m in judgement.metrics if m.name == name)


# --- verdicts ---------------------------------------------------------------------------------


def test_the_same_twice_passes_when_there_is_enough_of_it() -> None:
    same = [replace(p, candidate=p.reference) for p in noisy(100)]
    judgement = judge(same)
    assert judgement.verdict == "pass"
    assert judgement.moved_stage is None
    assert all(m.difference == pytest.approx(0, abs=1e-6) for m in judgement.metrics)


def test_a_verdict_is_the_same_each_time() -> None:
    assert judge(noisy(60, 12.0)) == judge(noisy(60, 12.0))


def test_a_slower_stage_is_named_and_a_faster_agent_passes() -> None:
    slower = judge(noisy(100, 40.0))
    assert slower.verdict == "regressed"
    assert slower.moved_stage == "llm_first_token"
    assert metric(slower, "gap p50").difference == pytest.approx(40, abs=10)
    faster = [replace(p, reference=p.candidate, candidate=p.reference) for p in noisy(300, 40.0)]
    assert judge(faster).verdict == "pass"


def test_nothing_is_decided_without_pairs() -> None:
    judgement = judge([])
    assert judgement.verdict == "undecided"
    assert [m.verdict for m in judgement.metrics] == ["undecided"] * 4
    assert all(m.why for m in judgement.metrics)


@pytest.mark.parametrize("n", [1, 4, 5, 8, 19])
def test_few_turns_never_pass_and_say_how_many_are_missing(n: int) -> None:
    judgement = judge(noisy(n))
    assert judgement.verdict == "undecided"
    p95 = metric(judgement, "gap p95")
    assert p95.why == f"n={n}, needs 20"
    assert p95.turns_needed == 72 - n  # what a pass takes


def test_p95_passes_only_where_its_slowest_twentieth_must_have_shown() -> None:
    def tail_of(n: int, share: float) -> MetricVerdict:
        flat = [answered(400.0)] * n
        return metric(judge(pairs_of(flat, flat), share=share), "gap p95")

    for n, share in ((72, 1.0), (86, 0.5)):  # the second at the first look of several
        before, after = tail_of(n - 1, share), tail_of(n, share)
        assert (before.verdict, before.high, before.turns_needed) == ("undecided", None, 1)
        assert (after.verdict, after.high) == ("pass", 0.0)
        flat = [answered(400.0)] * n
        assert judge(pairs_of(flat, flat), share=share).verdict == "pass"


def test_one_conversation_is_one_piece_of_evidence() -> None:
    turns = [Pair(("s", turn, 0.0, 1), answered(400.0), answered(500.0)) for turn in range(1, 101)]
    p50 = metric(judge(turns), "gap p50")
    assert (p50.verdict, p50.why) == ("undecided", "in 1 of the 9 conversations that it takes")


def test_looking_several_times_asks_for_more_each_time() -> None:
    # All of nine conversations slower: 1 in 512; of eight, 1 in 256.
    def slower(n: int, share: float) -> str:
        return judge(pairs_of([answered(400.0)] * n, [answered(500.0)] * n), share=share).verdict

    assert [slower(n, 1.0) for n in (8, 9)] == ["undecided", "regressed"]
    assert [slower(n, 0.5) for n in (9, 10)] == ["undecided", "regressed"]
    assert slower(10, 0.25) == "undecided"


# --- turns that fail --------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["no_reply", "error", "abandoned"])
def test_turns_that_fail_are_the_slowest_and_are_lost(outcome: Outcome) -> None:
    reference = [answered(400.0 + i % 7) for i in range(60)]
    candidate = [failed(outcome) if i % 3 == 0 else r for i, r in enumerate(reference)]
    judgement = judge(pairs_of(reference, candidate))
    assert judgement.left_out == 0
    assert metric(judgement, "gap p95").verdict == "regressed"
    assert metric(judgement, "gap p95").why == "p95 lies among turns without a reply"
    assert metric(judgement, "hit rate").verdict == "regressed"
    assert metric(judgement, "hit rate").difference == pytest.approx(1 / 3)


def test_cut_ins_have_no_gap_but_are_lost() -> None:
    reference = [answered(400.0)] * 60
    candidate = [Reading("cut_in", -200.0, {})] * 20 + reference[20:]
    judgement = judge(pairs_of(reference, candidate))
    assert judgement.left_out == 20
    assert metric(judgement, "gap p50").n == 40
    assert metric(judgement, "hit rate").verdict == "regressed"
    assert metric(judgement, "cut-ins").verdict == "regressed"
    assert metric(judgement, "cut-ins").difference == pytest.approx(1 / 3)


def test_an_agent_that_got_faster_by_cutting_in_does_not_pass() -> None:
    # No gap is longer and no more turns are missed: those that were late are cut into now.
    reference = [answered(900.0)] * 20 + [answered(700.0)] * 80
    candidate = [Reading("cut_in", -200.0, {})] * 20 + [answered(300.0)] * 80
    judgement = judge(pairs_of(reference, candidate))
    assert judgement.verdict == "regressed"
    others = [m.verdict for m in judgement.metrics if m.name != "cut-ins"]
    assert others == ["pass"] * 3
    assert metric(judgement, "cut-ins").difference == 0.2


def test_as_many_cut_ins_on_both_sides_pass() -> None:
    cut_in, fine = Reading("cut_in", -200.0, {}), answered(400.0)
    same = [cut_in] * 10 + [fine] * 90
    assert metric(judge(pairs_of(same, same)), "cut-ins").verdict == "pass"
    fewer = judge(pairs_of(same, [fine] * 100))
    assert metric(fewer, "cut-ins").verdict == "pass"
    assert metric(fewer, "cut-ins").difference == -0.1


@pytest.mark.parametrize(("cut_into", "verdict"), [(8, "undecided"), (9, "regressed")])
def test_cut_ins_in_nine_conversations_are_no_chance(cut_into: int, verdict: str) -> None:
    reference = [answered(400.0)] * 40
    candidate = [Reading("cut_in", -50.0, {})] * cut_into + reference[cut_into:]
    cut_ins = metric(judge(pairs_of(reference, candidate)), "cut-ins")
    assert cut_ins.p_value == pytest.approx(0.5**cut_into, rel=0.5)
    assert cut_ins.verdict == verdict


def test_late_turns_are_lost() -> None:
    reference = [answered(795.0)] * 60
    candidate = [answered(805.0)] * 20 + reference[20:]
    assert metric(judge(pairs_of(reference, candidate)), "hit rate").verdict == "regressed"


def in_conversations(lost: list[int], of: int = 4) -> list[Pair]:
    """Conversations of `of` turns, the first so many of them late for the candidate alone."""
    return [
        Pair(("s", turn, 0.0, i), answered(790.0), answered(810.0 if turn < late else 790.0))
        for i, late in enumerate(lost)
        for turn in range(of)
    ]


def test_a_conversation_that_is_lost_from_end_to_end_is_one_piece_of_evidence() -> None:
    stalled = metric(judge(in_conversations([12] + [0] * 9, of=12)), "hit rate")
    assert (stalled.verdict, stalled.p_value) == ("undecided", 0.5)
    assert stalled.difference == pytest.approx(0.1)


@pytest.mark.parametrize(("losing", "verdict"), [(8, "undecided"), (9, "regressed")])
def test_turns_lost_in_nine_conversations_are_no_chance(losing: int, verdict: str) -> None:
    lost = metric(judge(in_conversations([1] * losing + [0] * (12 - losing))), "hit rate")
    assert lost.p_value == 0.5**losing
    assert lost.verdict == verdict


@pytest.mark.parametrize(("calls", "turns"), [(10, 10), (12, 8), (24, 3)])
@pytest.mark.parametrize("lost", [0.1, 0.15])
@pytest.mark.parametrize("how", ["no_reply", "cut_in"])
def test_who_loses_whole_calls_as_often_as_the_limit_does_not_pass(
    calls: int, turns: int, lost: float, how: Outcome
) -> None:
    rng, passed = np.random.default_rng(11), 0
    name = "cut-ins" if how == "cut_in" else "hit rate"
    for _ in range(20):
        bad = (rng.random(calls) < lost).repeat(turns)
        candidate = [Reading(how, None, {}) if b else answered(400.0) for b in bad]
        pairs = [
            Pair(("s", n % turns, 0.0, n // turns), answered(400.0), mine)
            for n, mine in enumerate(candidate)
        ]
        passed += metric(judge(pairs), name).verdict == "pass"
    assert passed <= 2  # of 20 at 2.5 %: more in one of 700 such tests


def test_a_pass_takes_as_many_calls_as_exclude_the_limit_whatever_turns_they_have() -> None:
    before, after = (metric(judge(in_conversations([0] * n)), "hit rate") for n in (35, 36))
    assert (before.verdict, before.turns_needed) == ("undecided", 4)
    assert after.verdict == "pass"
    # What is lost counts by calls, however many of their turns.
    together = metric(judge(in_conversations([4] + [0] * 35)), "hit rate")
    apart = metric(judge(in_conversations([1] * 4 + [0] * 32)), "hit rate")
    assert together.high == apart.high


def test_a_loss_that_it_says_it_would_have_caught_it_catches() -> None:
    rng = np.random.default_rng(5)
    claimed = metric(judge(in_conversations([0] * 24, of=3)), "hit rate").detectable
    assert claimed is not None
    caught = [
        metric(judge(in_conversations(lost.tolist(), of=3)), "hit rate").verdict
        for lost in rng.binomial(3, claimed, (60, 24))
    ]
    assert caught.count("regressed") >= int(binom.ppf(0.001, 60, 0.95))


def test_turns_that_neither_could_finish_are_left_out() -> None:
    both = [failed("abandoned")] * 5 + [answered(400.0)] * 5
    assert judge(pairs_of(both, both)).left_out == 5


RANK = {"regressed": 2, "undecided": 1, "pass": 0}
SPOILED = st.tuples(
    st.integers(0, 79),
    st.one_of(
        st.sampled_from(["no_reply", "error", "abandoned"]), st.floats(0.1, 3000, allow_nan=False)
    ),
)


@settings(max_examples=15)
@given(st.integers(0, 40), st.sampled_from([0.0, 8.0, 12.0, 20.0]), st.lists(SPOILED, max_size=8))
def test_failing_or_slower_turns_never_help(
    seed: int, ms: float, spoiled: list[tuple[int, str | float]]
) -> None:
    before = noisy(80, ms, seed)
    after = list(before)
    for i, how in spoiled:
        old = after[i].candidate
        if isinstance(how, float):
            slower = (old.gap_ms or 0.0) + how
            new = answered(slower, **old.stages) if old.gap_ms is not None else old
        else:
            new = Reading(how, None, {})  # pyright: ignore[reportArgumentType]
        after[i] = replace(after[i], candidate=new)
    then, now = judge(before), judge(after)
    assert RANK[now.verdict] >= RANK[then.verdict]
    for a, b in zip(then.metrics, now.metrics, strict=True):
        assert RANK[b.verdict] >= RANK[a.verdict] or a.name == "hit rate" or b.why, (a, b)
        if a.p_value is not None and b.p_value is not None:
            assert b.p_value <= a.p_value + 1e-12


# --- the statistics under it ------------------------------------------------------------------


def test_the_p_value_is_that_of_all_exchanges() -> None:
    d = np.array([3.0, 1.0, 2.0, -0.5])
    swaps = exchanges(list("abcd"), np.random.default_rng(1))
    # Of 16 exchanges two give at least 5.5: none, and that of the last alone.
    assert swaps.p_value(d) == 2 / 16


def test_without_noise_a_shift_is_caught_from_where_it_scores() -> None:
    swaps = exchanges(range(20), np.random.default_rng(1))
    for score, at in ((typical(30, 3), 3.0), (tail(100), 50.0)):
        assert detectable(np.full(20, 73.0), score, swaps, 0.01, 0.95) == pytest.approx(at, abs=0.1)


def test_ranks_as_scores_give_wilcoxons_test() -> None:
    rng = np.random.default_rng(2)
    d = rng.normal(0.5, 1, 12)
    ranks = np.array(np.sign(d) * (np.argsort(np.argsort(np.abs(d))) + 1), dtype=np.float64)
    swaps = exchanges(range(12), rng)
    expected = wilcoxon(d, alternative="greater", method="exact").pvalue
    assert swaps.p_value(ranks) == pytest.approx(expected)


def test_scores_are_odd_and_never_fall() -> None:
    d = np.linspace(-500, 500, 2001)
    for score in (typical(30), tail(100)):
        values = score(d)
        assert np.all(np.diff(values) >= 0)
        assert values == pytest.approx(-score(-d))
    assert tail(100)(np.array([0.0, 50.0, 100.0, 200.0, 900.0])).tolist() == [0, 0, 50, 150, 150]


@given(st.floats(-300, 300), st.floats(1, 50), st.integers(0, 99))
def test_a_shift_is_found_where_it_is(at: float, sd: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    d = rng.normal(0, sd, 40)
    swaps = exchanges(range(40), rng)
    here, moved = shift(d, 30), shift(d + at, 30)
    assert moved - here == pytest.approx(at, abs=1e-3)
    interval = shift_interval(d, d, 30, swaps, 0.025)
    assert interval is not None
    assert interval[0] <= here <= interval[1]


def test_limits_are_the_users() -> None:
    pairs = noisy(300)
    strict = Limits(p50_ms=1.0, p95_ms=1.0, hit_rate=0.001)
    assert judge(pairs).verdict == "pass"
    assert judge(pairs, strict).verdict == "undecided"
