"""Figures of a comparison: prices of all that was spent, and where one overtakes another."""

import math
from typing import Any

import pytest

from turngap.compare.figures import (
    BOTH_ALIKE,
    NEITHER_RIGHT,
    NO_PRICE,
    NO_TOKENS,
    PART_WITHOUT_PRICE,
    Side,
    backend_figures,
    chain_of,
    crossings,
    first_answer_ms,
    pairs_of,
    price_of,
    turn_ms,
    turn_usd,
)
from turngap.core.results import Turn
from turngap.core.stored import AnswerRecord, PacingRecord
from turngap.store.comparisons import BackendRecord, ChainRecord

PRICE = (1.0, 10.0)


def turn(
    verdict: str = "right", gap_ms: float | None = 400.0, *, ms: float = 3000.0, **changes: Any
) -> Turn:
    values: dict[str, Any] = {
        "scenario": "made-up",
        "turn": 1,
        "repeat": 1,
        "say": "hello",
        "outcome": "no_reply" if gap_ms is None else ("answered" if gap_ms <= 800 else "late"),
        "ended": "timeout" if gap_ms is None else "reply_done",
        "budget_ms": 800.0,
        "gap_ns": None if gap_ms is None else round(gap_ms * 1e6),
        "gap_ms": gap_ms,
        "why_no_gap": "made up" if gap_ms is None else None,
        "stages": (),
        "transcript": "hello",
        "reply": "hi",
        "lead_ms": None,
        "yield_ms": None,
        "marks": (),
        "pacing": PacingRecord(packets=1, late_ms_p50=0.0, late_ms_max=0.0, starved=False),
        "audio": None,
        "counts": {
            "llm_prompt_tokens": 100,
            "llm_completion_tokens": 10,
            "llm_ttft_ms": 150,
            "llm_tokens_per_s": 60,
            "llm_window_tokens": 7,
        },
        "answer": AnswerRecord.model_validate(
            {"verdict": verdict, "why": "x" if verdict == "not_judged" else None}
        ),
        "events": (
            {"event": "UserSpeech", "start_ns": 1_000_000_000},
            {"event": "AgentSilence", "at_ns": 1_000_000_000 + round(ms * 1e6)},
        ),
    }
    return Turn(**(values | changes))


def figures(name: str, turns: list[Turn], price: Any = PRICE) -> BackendRecord:
    return backend_figures(name, turns, price, llm=name, run=f"run-{name}", valid=True)


def side(name: str, right: int, n: int, ms: float, usd_factor: float = 1.0) -> Side:
    turns = [turn("right" if i < right else "wrong", ms=ms, scenario=f"s{i}") for i in range(n)]
    return Side(name, turns, (PRICE[0] * usd_factor, PRICE[1] * usd_factor))


def chain(*sides: Side) -> dict[str, ChainRecord]:
    return {c.name: c for c in chain_of([figures(s.name, list(s.turns), s.price) for s in sides])}


def test_a_turn_costs_its_tokens_at_their_price():
    assert turn_usd(turn(), PRICE) == pytest.approx((100 * 1 + 10 * 10) / 1e6)
    assert turn_usd(turn(), None) == NO_PRICE
    assert turn_usd(turn(counts={}), PRICE) == NO_TOKENS


def test_what_nobody_heard_is_paid_for_too():
    counts = {
        "llm_prompt_tokens": 300.0,  # what the service told, void answers included
        "llm_completion_tokens": 20.0,
        "unreported_prompt_tokens": 90.0,
        "unreported_completion_tokens": 5.0,
        "warm_prompt_tokens": 80.0,
        "warm_requests": 1.0,
        "wasted_prompt_tokens": 190.0,  # counted in the others
    }
    assert turn_usd(turn(counts=counts), PRICE) == pytest.approx((470 * 1 + 26 * 10) / 1e6)


@pytest.mark.parametrize(
    ("counts", "price", "input_tokens"),
    [
        ({"llm_cache_read_tokens": 80.0}, PRICE, 100),
        ({"llm_cache_read_tokens": 80.0}, (*PRICE, 0.5), 20 + 40),
        ({"llm_cache_read_cheap_tokens": 80.0}, PRICE, 20 + 8),
        ({"llm_cache_written_tokens": 80.0}, PRICE, 20 + 100),
    ],
)
def test_what_is_cached_has_its_own_price(
    counts: dict[str, float], price: Any, input_tokens: float
):
    counts |= {"llm_prompt_tokens": 100.0, "llm_completion_tokens": 0.0}
    assert turn_usd(turn(counts=counts), price) == pytest.approx(input_tokens / 1e6)


def test_a_combined_backend_costs_what_all_its_parts_did():
    counts = {"combined_requests": 2.0, "combined_usd": 0.5, "llm_prompt_tokens": 200.0}
    assert turn_usd(turn(counts=counts), None) == 0.5
    partly = {**counts, "combined_unpriced_tokens": 3.0}
    assert turn_usd(turn(counts=partly), PRICE) == PART_WITHOUT_PRICE


def test_a_right_answer_costs_the_wrong_ones_too():
    turns = [turn("right"), turn("wrong"), turn("wrong"), turn("right")]
    price = price_of(turns, PRICE)
    assert price.usd_per_turn == pytest.approx(200e-6)
    assert price.usd_per_right == pytest.approx(2 * 200e-6)
    none = price_of([turn("wrong")], PRICE)
    assert (none.usd_per_turn, none.usd_per_right) == (pytest.approx(200e-6), None)
    assert none.why_none == "no answer was right"


def test_a_price_that_some_turns_lack_is_none_and_says_in_how_many():
    price = price_of([turn(), turn(counts={"llm_window_tokens": 1})], PRICE)
    assert (price.usd_per_turn, price.usd_per_right) == (None, None)
    assert price.why_none == f"{NO_TOKENS} (1 of 2 turns)"
    # The agent that was never asked has used nothing; it is in the mean all the same.
    slept = price_of([turn(), turn("wrong", None, counts={})], PRICE)
    assert slept.usd_per_turn == pytest.approx(100e-6)


def test_backend_figures_are_of_all_turns_that_count():
    turns = [turn("right"), turn("wrong", 900.0), turn("not_judged"), turn("wrong", None)]
    turns.append(turn("right", left_out="typed"))
    found = figures("a", turns)
    assert (found.turns, found.hit_rate.hits, found.hit_rate.n) == (5, 2, 4)
    assert (found.correct.hits, found.correct.n, found.not_judged) == (1, 3, {"x": 1})
    assert (found.llm_n, found.ttft_ms, found.tokens_per_s, found.window_tokens) == (4, 150, 60, 7)
    assert found.gap_ms["p95"].why_none == "n=4, needs 20"
    assert found.turn_ms == pytest.approx(3000)


def test_a_turn_lasts_from_the_first_word_to_the_agents_last():
    assert turn_ms(turn(ms=2500.0)) == pytest.approx(2500)
    assert turn_ms(turn(gap_ms=None)) is None
    assert turn_ms(turn(events=())) is None


def test_what_is_said_before_the_answer_is_no_answer():
    plain, opened = turn(gap_ms=400.0), turn(gap_ms=300.0, counts={"opener_ms": 700.0})
    found = [first_answer_ms(t) for t in (plain, opened, turn(gap_ms=None))]
    assert found == [400.0, 1000.0, math.inf]
    assert first_answer_ms(turn(gap_ms=-50.0, outcome="cut_in")) is None


def test_who_never_answers_has_no_early_first_answer():
    turns = [turn(gap_ms=100.0 * n) for n in range(1, 7)] + [turn("wrong", None)]
    assert figures("a", turns).first_answer_ms.value == 400
    assert figures("a", turns[:6]).first_answer_ms.value == 350


def test_the_better_of_two_overtakes_the_quicker_in_a_long_task():
    quick, good = side("quick", 16, 20, 1000), side("good", 18, 20, 2000, usd_factor=3)
    found = {c.what: c for c in crossings([good, quick])}
    # (0.9 / 0.8) to the n over 2, over 3: 5.9 and 9.3 turns.
    assert (found["time"].leader, found["time"].follower) == ("quick", "good")
    assert (found["time"].turns, found["price"].turns, found["time"].n) == (6, 10, 20)
    assert found["time"].latest is None  # by their intervals they may be equally good
    of = chain(quick, good)
    assert round(100 * of["quick"].success[10], 1) == 10.7
    assert round(100 * of["good"].success[10], 1) == 34.9
    assert of["quick"].success_low[10] == pytest.approx(0.563**10, rel=0.01)
    assert of["quick"].success_high[10] == pytest.approx(0.943**10, rel=0.01)


def test_with_turns_enough_the_crossing_is_sure():
    quick, good = side("quick", 320, 400, 1000), side("good", 380, 400, 1500)
    in_time = crossings([quick, good])[0]
    # 0.95 / 0.8 to the n over 1.5: 2.4.
    assert (in_time.turns, in_time.earliest, in_time.latest) == (3, 2, 4)


def test_rounds_of_the_same_answers_make_no_crossing_surer():
    def rounds(given: Side, n: int) -> Side:
        takes = [t.model_copy(update={"repeat": r}) for r in range(1, n + 1) for t in given.turns]
        return Side(given.name, takes, given.price)

    quick, good = side("quick", 10, 20, 1000), side("good", 18, 20, 2000)
    once, often = (crossings([rounds(quick, n), rounds(good, n)])[0] for n in (1, 9))
    assert (once.n, often.n) == (20, 180)
    assert often.model_copy(update={"n": 20}) == once


def test_only_turns_that_both_have_are_compared():
    quick, good = side("quick", 5, 10, 1000), side("good", 10, 10, 2000)
    longer = [*good.turns, *(turn("wrong", ms=90_000, scenario=f"s{n}") for n in range(11, 30))]
    found = crossings([quick, Side("good", longer, good.price)])
    assert found == crossings([quick, good])
    assert found[0].n == 10


def test_two_backends_beside_each_other():
    one = [turn("right", 300.0 + 10 * n, scenario=f"s{n}") for n in range(1, 9)]
    other = [
        turn("right" if n > 2 else "wrong", 400.0 + 10 * n, scenario=f"s{n}") for n in range(1, 9)
    ]
    other[7] = turn("wrong", None, scenario="s8")
    (found,) = pairs_of([Side("one", one, None), Side("other", other, None)])
    assert (found.one, found.other, found.right_n, found.gap_n) == ("one", "other", 8, 8)
    assert (found.only_one, found.only_other, found.right.value) == (3, 0, 0.375)
    # Who did not answer was slower than whoever did.
    assert (found.gap_ms.value, found.gap_ms.low, found.gap_ms.high) == (-100, None, -100)
    (none,) = pairs_of([Side("one", [], None), Side("other", other, None)])
    assert none.right.why_none == "no turn was judged with both"
    assert none.gap_ms.why_none == "n=0, needs 5"


def test_two_that_never_answer_are_neither_of_them_slower():
    dead = [turn("wrong", None, turn=n) for n in range(1, 8)]
    (found,) = pairs_of([Side("one", dead, None), Side("other", dead, None)])
    assert (found.gap_ms.value, found.right.value) == (0, 0)
    assert crossings([Side("one", dead, None), Side("other", dead, None)]) == []


def test_who_is_not_judged_or_has_no_price_is_in_no_chain_of_it():
    unjudged = Side("unjudged", [turn("not_judged")], PRICE)
    free, good = Side("free", [turn("right", scenario="s0")], None), side("good", 18, 20, 2000)
    assert list(chain(unjudged, free, good)) == ["free", "good"]
    assert [c.what for c in crossings([unjudged, free, good])] == ["time"]
    assert chain(free)["free"].usd[10] is None


def test_a_backend_that_is_never_right_never_finishes():
    never, good = side("never", 0, 20, 1000), side("good", 18, 20, 2000)
    assert chain(never)["never"].ms[1] is None
    (in_time, in_price) = crossings([never, good])
    assert (in_time.follower, in_time.turns) == ("good", 1)
    assert (in_price.leader, in_price.turns) == ("good", None)  # as dear, and right


def test_what_is_free_and_never_right_is_no_bargain():
    never, good = side("never", 0, 20, 1000, usd_factor=0), side("good", 18, 20, 2000)
    assert chain(never)["never"].usd[1] is None
    in_price = crossings([never, good])[1]
    assert (in_price.leader, in_price.follower, in_price.turns) == ("never", "good", 1)
    assert in_price.latest is None  # it may be right now and then, and then it is cheaper


def test_where_nobody_is_ahead_nobody_is_said_to_be():
    hopeless = crossings([side("one", 0, 20, 1000), side("other", 0, 20, 2000)])
    assert {c.why_none for c in hopeless} == {NEITHER_RIGHT}
    same = crossings([side("one", 9, 20, 1000), side("other", 9, 20, 1000)])
    assert [(c.turns, c.why_none) for c in same] == [(None, BOTH_ALIKE)] * 2
    # As dear, but more often right: ahead, whichever was named first.
    for sides in ((9, 12), (12, 9)):
        better = crossings([side(f"of {right}", right, 20, 1000) for right in sides])[1]
        assert (better.leader, better.turns) == ("of 12", None)
