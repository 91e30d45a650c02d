"""The figures that the page shows, made of what is stored."""

from typing import Any

import pytest
from made_records import make_turn

from turngap.core.clusters import NO_INTERVAL
from turngap.core.results import Turn
from turngap.live.keeping import figures_of

ALL = ("answered", "late", "no_reply", "cut_in", "abandoned", "error")


def turn(outcome: str, gap_ms: float | None, **more: Any) -> Turn:
    return make_turn(
        marks_ms=None,
        outcome=outcome,
        gap_ns=None if gap_ms is None else round(gap_ms * 1e6),
        gap_ms=gap_ms,
        why_no_gap="made up" if gap_ms is None else None,
        **more,
    )


def test_before_the_first_turn_there_is_nothing() -> None:
    figures = figures_of([])
    assert figures["llms"] == {}
    assert (figures["all"]["n"], figures["all"]["words"]) == (0, "")
    assert figures["all"]["percent"] == figures["all"]["cut_ins"]["percent"] == "–"
    assert figures["all"]["p50_ms"] is None


def test_each_llm_has_its_own_in_the_order_of_their_first_answers() -> None:
    turns = [turn("answered", gap, llm="old") for gap in (300, 400, 500, 600, 700)]
    turns += [turn("late", 900, llm="new"), turn("answered", 500, llm=None)]
    figures = figures_of(turns)
    assert list(figures["llms"]) == ["old", "new", "agent"]
    assert (figures["llms"]["old"]["hits"], figures["llms"]["old"]["n"]) == (5, 5)
    assert figures["llms"]["old"]["p50_ms"] == 500
    assert figures["llms"]["new"]["why_no_p50"] == "n=1, needs 5"
    assert (figures["all"]["hits"], figures["all"]["n"]) == (6, 7)


def test_a_turn_without_a_reply_is_slower_than_any_and_one_left_out_is_counted_as_that() -> None:
    turns = [turn("answered", gap) for gap in (300, 400, 500, 600)]
    turns += [turn("no_reply", None), turn("error", None), turn("abandoned", None)]
    turns += [turn("answered", 100, left_out="device stall"), turn("cut_in", -5)]
    figures = figures_of(turns)["all"]
    assert (figures["hits"], figures["n"]) == (4, 8)
    assert figures["p50_ms"] == 600
    assert figures["others"] == {
        "no_reply": 1,
        "cut_in": 1,
        "abandoned": 1,
        "error": 1,
        "left out: device stall": 1,
    }
    assert figures["ci95"] == [None, None]  # all are takes of one turn
    assert figures["words"].startswith(f"4 of 8 within 800 ms ({NO_INTERVAL}) · 1 ")
    assert "cut_in" not in figures["words"]
    assert figures["cut_ins"]["words"].startswith("cut in on 1 of 8 turns (1 different; ")
    halves = f"p50 600 ms · {figures['cut_ins']['words']} · {figures['words']}"
    assert (figures["percent"], figures["caption"]) == ("50 %", halves)
    assert (figures["cut_ins"]["hits"], figures["cut_ins"]["n"]) == (1, 8)
    assert figures["cut_ins"]["percent"] == "12 %"
    assert figures["words"].endswith("1 left out: device stall")


@pytest.mark.parametrize("outcome", [o for o in ALL if o not in ("answered", "late")])
def test_what_most_turns_became_has_no_median(outcome: str) -> None:
    turns = [turn(outcome, None) for _ in range(5)]
    figures = figures_of(turns)["all"]
    assert figures["p50_ms"] is None
    assert figures["why_no_p50"]
