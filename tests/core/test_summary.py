from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.budget import OUTCOMES, Outcome, TurnEnd
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.core.results import Turn
from turngap.core.stages import Stage
from turngap.core.stored import NO_TEXT, AnswerRecord, AudioRecord, PacingRecord
from turngap.core.summary import summarise
from turngap.report import words

ENDED: dict[Outcome, TurnEnd] = {
    "answered": "reply_done",
    "late": "reply_done",
    "no_reply": "timeout",
    "cut_in": "reply_done",
    "abandoned": "interrupted",
    "error": "line_lost",
}
GAPS_MS: dict[Outcome, float | None] = {
    "answered": 400.0,
    "late": 1200.0,
    "no_reply": None,
    "cut_in": -300.0,
    "abandoned": None,
    "error": None,
}


def turn(
    outcome: Outcome = "answered",
    gap_ms: float | None = None,
    stages: Sequence[tuple[str, float]] = (),
    *,
    starved: bool = False,
    left_out: str | None = None,
    take: tuple[int, int] = (1, 1),
) -> Turn:
    if gap_ms is None:
        gap_ms = GAPS_MS[outcome]
    return Turn(
        scenario="made-up",
        turn=take[0],
        repeat=take[1],
        say="hello",
        outcome=outcome,
        ended=ENDED[outcome],
        budget_ms=800.0,
        gap_ns=None if gap_ms is None else ms_to_ns(gap_ms),
        gap_ms=gap_ms,
        why_no_gap="made up" if gap_ms is None else None,
        stages=tuple(Stage(name=n, ns=ms_to_ns(ms), ms=ms) for n, ms in stages),
        transcript="hello",
        reply="hi",
        lead_ms=None,
        yield_ms=None,
        marks=(),
        pacing=PacingRecord(packets=1, late_ms_p50=0.0, late_ms_max=0.0, starved=starved),
        audio=None,
        left_out=left_out,
    )


OUTCOME_LISTS = st.lists(st.sampled_from(OUTCOMES), max_size=80)


@given(OUTCOME_LISTS)
def test_every_turn_is_in_the_hit_rate_and_in_one_outcome(outcomes: list[Outcome]) -> None:
    summary = summarise([turn(o) for o in outcomes])
    assert summary.turns == len(outcomes)
    assert sum(summary.outcomes.values()) == len(outcomes)
    assert summary.hit_rate.n == len(outcomes)
    assert summary.hit_rate.hits == outcomes.count("answered")


@given(OUTCOME_LISTS)
def test_every_turn_is_behind_the_percentiles_or_counted_as_left_out(
    outcomes: list[Outcome],
) -> None:
    summary = summarise([turn(o) for o in outcomes])
    assert summary.gap_n + sum(summary.left_out.values()) == len(outcomes)
    assert set(summary.left_out) <= {"cut_in", "abandoned"}


@given(st.lists(st.floats(0, 5_000), min_size=20, max_size=60), st.integers(0, 20))
def test_a_cut_in_makes_no_percentile_look_quicker(gaps: list[float], cut_ins: int) -> None:
    answered = [turn("answered" if g <= 800 else "late", g) for g in gaps]
    summary = summarise([*answered, *[turn("cut_in")] * cut_ins])
    assert summary.gap_n == len(gaps)
    for name, q in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95)):
        assert summary.gap_ms[name].value == pytest.approx(float(np.quantile(gaps, q)), abs=1e-6)


@pytest.mark.parametrize("failed", ["no_reply", "error", "abandoned"])
def test_a_turn_without_its_reply_is_slower_than_any_with_one(failed: Outcome) -> None:
    turns = [turn("answered", float(ms)) for ms in range(100, 108)]
    before, after = summarise(turns), summarise([*turns, turn(failed), turn(failed)])
    assert before.gap_ms["p50"].value == 103.5
    assert after.gap_ms["p50"].value == 104.5
    assert after.gap_n == 10
    assert after.gap_ms["p90"].value is None
    assert after.gap_ms["p90"].why_none == "2 of 10 turns have no reply"


def test_a_percentile_among_abandoned_turns_is_over_the_shortest_wait() -> None:
    waited = [turn("abandoned").model_copy(update={"waited_ms": ms}) for ms in (900.0, 1500.0)]
    turns = [turn("answered", float(ms)) for ms in range(100, 108)]
    p90 = summarise([*turns, *waited]).gap_ms["p90"]
    assert (p90.value, p90.why_none) == (None, "2 of 10 turns have no reply: it is over 900 ms")
    # Of one it is not known how long the person waited.
    p90 = summarise([*turns, waited[0], turn("abandoned")]).gap_ms["p90"]
    assert p90.why_none == "2 of 10 turns have no reply"


def test_a_reply_that_began_before_the_line_was_lost_counts_as_none() -> None:
    turns = [turn("answered", float(ms)) for ms in range(100, 108)]
    assert summarise([*turns, turn("error", 50.0)]).gap_ms["p50"].value == 104.0


def test_with_no_turns_every_figure_is_none() -> None:
    summary = summarise([])
    assert summary.hit_rate.value is None
    assert [p.value for p in summary.gap_ms.values()] == [None, None, None]
    assert (summary.stages, summary.slowest_stage, summary.outcomes) == ((), None, {})
    assert summary.as_json()["hit_rate"] is None


# --- stages -----------------------------------------------------------------------------------

STAGED = st.lists(
    st.tuples(st.sampled_from(["endpoint", "transcript", "unattributed"]), st.integers(0, 10**9)),
    min_size=1,
    max_size=4,
)


@given(st.lists(STAGED, min_size=1, max_size=20))
def test_shares_make_up_the_whole_silence(turns: list[list[tuple[str, int]]]) -> None:
    records = [turn(stages=[(name, ns_to_ms(ns)) for name, ns in stages]) for stages in turns]
    summary = summarise(records)
    if any(ns for stages in turns for _, ns in stages):
        assert sum(s.share or 0.0 for s in summary.stages) == pytest.approx(1.0)
    for stage in summary.stages:
        assert stage.n == sum(any(name == stage.name for name, _ in t) for t in turns)
        assert stage.p50_ms <= stage.max_ms


def test_the_unexplained_pieces_of_one_turn_are_one_figure() -> None:
    pieces = [("unattributed", 30.0), ("endpoint", 100.0), ("unattributed", 50.0)]
    stages = {s.name: s for s in summarise([turn(stages=pieces)]).stages}
    assert (stages["unattributed"].n, stages["unattributed"].p50_ms) == (1, 80.0)


def test_stages_come_in_causal_order_the_unexplained_last() -> None:
    turns = [
        turn(stages=[("unattributed", 1.0), ("sent", 1.0)]),
        turn(stages=[("endpoint", 1.0), ("agent_onset", 1.0)]),
    ]
    names = [s.name for s in summarise(turns).stages]
    assert names == ["endpoint", "sent", "agent_onset", "unattributed"]


def test_the_slowest_stage_is_the_one_that_spent_most_of_the_silence() -> None:
    usual = [turn(stages=[("endpoint", 200.0), ("transcript", 10.0)]) for _ in range(9)]
    once = turn(stages=[("endpoint", 200.0), ("transcript", 10.0), ("unattributed", 500.0)])
    assert summarise([*usual, once]).slowest_stage == "endpoint"


@pytest.mark.parametrize("outcome", ["cut_in", "error"])
def test_stages_are_those_of_answered_turns(outcome: Outcome) -> None:
    other = turn(outcome, 1.0, stages=[("endpoint", 999.0)])
    assert summarise([other]).stages == ()


# --- JSON -------------------------------------------------------------------------------------


def test_json_has_the_keys_that_scripts_rely_on() -> None:
    turns = [turn("answered", float(ms), [("endpoint", 50.0)]) for ms in range(100, 132)]
    document = summarise([*turns, turn("late"), turn("cut_in", starved=True)]).as_json()
    assert document["turns"] == 34
    assert document["outcomes"] == {"answered": 32, "late": 1, "cut_in": 1}
    assert document["hit_rate"] == pytest.approx(32 / 34)
    assert document["gap_ms"]["n"] == 33
    assert document["gap_ms"]["p50"] == 116.0
    assert set(document["gap_ms"]) >= {"n", "p50", "p90", "p95", "ci95", "why_none"}
    assert document["left_out"] == {"cut_in": 1}
    assert document["stage_p50_ms"] == {"endpoint": 50.0}
    assert document["starved_turns"] == 1
    assert document["caller_error_ms"] == 0.0
    assert document["label_error_ms"] is None


def test_the_labels_error_is_the_median_over_those_that_say() -> None:
    def labelled(error_ms: float | None) -> Turn:
        audio = AudioRecord(
            file="", user_start_ms=0, user_end_ms=1, onset_ms=None, label_error_ms=error_ms
        )
        return turn("answered", 300.0).model_copy(update={"audio": audio})

    turns = [labelled(40), labelled(None), labelled(60), labelled(110), turn("answered", 200.0)]
    assert summarise(turns).label_error_ms == 60
    assert summarise(turns[1:2]).label_error_ms is None


def test_rounds_are_counted_as_turns_and_said_to_be_of_recorded_ones() -> None:
    once = [turn("answered", 100.0 + 10 * n, take=(n, 1)) for n in range(1, 22)]
    rounds = [turn("answered", 100.0 + 10 * n, take=(n, r)) for n in range(1, 22) for r in (1, 2)]
    rounds.append(turn("abandoned", take=(22, 1)))
    one, both = summarise(once).as_json(), summarise(rounds).as_json()
    assert (one["recorded_turns"], one["gap_ms"]["n"], one["gap_ms"]["recorded"]) == (21, 21, 21)
    assert (both["turns"], both["recorded_turns"]) == (43, 22)
    assert (both["gap_ms"]["n"], both["gap_ms"]["recorded"]) == (43, 22)
    # The second round was as the first, to the last digit.
    assert both["gap_ms"]["ci95"]["p50"] == one["gap_ms"]["ci95"]["p50"]


def judged(verdict: str, why: str | None = None, **changes: object) -> Turn:
    answer = AnswerRecord.model_validate({"verdict": verdict, "why": why})
    return turn().model_copy(update={"answer": answer, **changes})


def test_right_answers_are_of_those_judged_and_the_others_are_counted_by_reason() -> None:
    turns = [judged("right")] * 3 + [judged("wrong")] + [judged("not_judged", "x")] * 2
    summary = summarise([*turns, judged("wrong", left_out="typed")])
    assert (summary.right.hits, summary.right.n, summary.right.value) == (3, 4, 0.75)
    assert summary.not_judged == {"x": 2}
    correct = summary.as_json()["correct"]
    assert (correct["right"], correct["n"], correct["value"]) == (3, 4, 0.75)
    assert correct["ci95"] == [None, None]  # takes of one recorded turn
    assert summarise([judged("not_judged", "x")]).right.value is None


def test_silence_alone_is_no_share_of_right_answers() -> None:
    silent = turn("no_reply").model_copy(update={"answer": judged("wrong").answer})
    summary = summarise([silent, *[judged("not_judged", NO_TEXT)] * 8])
    assert (summary.right.n, summary.not_judged) == (0, {NO_TEXT: 9})
    assert summarise([silent, judged("right"), judged("not_judged", NO_TEXT)]).right.n == 2
    assert summarise([silent]).right.n == 1


def test_a_turn_with_a_reason_to_be_left_out_is_counted_and_is_in_no_figure() -> None:
    counted = [turn("answered", 400.0, [("endpoint", 400.0)]), turn("late", 900.0)]
    spoilt = [
        turn("answered", 5.0, [("endpoint", 5.0)], left_out="device stall"),
        turn("no_reply", left_out="typed"),
        turn("answered", left_out="typed"),
    ]
    summary = summarise([*counted, *spoilt])
    figures, alone = summary.as_json(), summarise(counted).as_json()
    assert summary.turns == 5
    assert summary.outcomes == {"answered": 3, "late": 1, "no_reply": 1}
    assert summary.left_out == {"device stall": 1, "typed": 2}
    for same in ("hit_rate", "hit_rate_ci95", "gap_ms", "stage_p50_ms"):
        assert figures[same] == alone[same]
    assert summary.hit_rate.n == 2


def test_first_words_are_counted_with_what_came_before_them_and_how_sure_they_are() -> None:
    figures = [(None, None), (400.0, 0.0), (310.0, 12.0), (290.0, 30.0)]
    turns = [
        turn().model_copy(update={"first_sound_ms": sound_ms, "onset_spread_ms": spread_ms})
        for sound_ms, spread_ms in figures
    ]
    heard = summarise(turns).heard
    assert (heard.sound_before_word, heard.onsets, heard.unsure_onsets) == (1, 3, 1)
    assert heard.onset_spread_ms_p50 == 12.0
    assert words.onset_words(summarise(turns)) == (
        "the agent's first word or answer is placed to within p50 12 ms (over 20 ms in 1 of 3 "
        "turns)"
    )
