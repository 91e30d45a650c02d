"""The figures of a step, by hand."""

import os
import resource
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_turn

from turngap.caller.conversation import Patience
from turngap.caller.endpoint import Endpoint
from turngap.core.secrets import text_without_secrets
from turngap.core.stats import percentile
from turngap.load.calls import CallMark, Share, play_share
from turngap.load.figures import (
    at_once,
    cut_short,
    evidence_of,
    evidence_so_far,
    figures_of,
    why_void,
)
from turngap.load.schedule import Shape, Step, Window, held
from turngap.store.loads import LoadTurn, StepFigures

WINDOW = Window(10.0, 60.0, 5.0)
SHAPE = Shape("made", (2.0, 8.0), 12.0)
STEP = Step(1, 4, WINDOW, held([SHAPE], 4, WINDOW, seed=1))


def turn_of(number: int, gap_ms: float | None, **changes: Any) -> LoadTurn:
    """A turn of its own call, answered after so long; None: there was no reply."""
    marks = None if gap_ms is None else {"received": gap_ms, "agent_onset": gap_ms}
    played = make_turn(marks_ms=marks, ended="timeout" if gap_ms is None else "reply_done")
    values: dict[str, Any] = {
        "step": 1,
        "call": number,
        "line": 0,
        "scenario": "made",
        "turn": 1,
        "due_s": 5.0 * number,
        "counted": True,
        "waited_ms": 0.0,
        "played": played,
        "hole_ms": 0.0,
    }
    return LoadTurn(**(values | changes))


def missed(number: int, how: str) -> LoadTurn:
    return turn_of(number, None, played=None, missed=how, why="a reason", hole_ms=None)


def figures(turns: list[LoadTurn]) -> StepFigures:
    return figures_of(STEP, turns, budget_ms=800.0, target=0.95, at_once=(4.0, 4))


def test_a_step_that_was_ended_early_lasted_until_its_last_turn() -> None:
    turns = [turn_of(number, 300.0 + 100 * number) for number in range(3, 9)]
    cut = cut_short(STEP, turns)
    assert cut.window.measured_s == 30.0
    found = figures_of(cut, turns, budget_ms=800.0, target=0.95, at_once=(4.0, 4))
    assert found.not_played == STEP.turns - 6
    so_far = evidence_so_far(STEP, [*turns, turn_of(2, 1.0, counted=False)], 800.0)
    assert (so_far.turns, so_far.hits, so_far.seconds) == (6, 3, 30.0)
    assert evidence_so_far(STEP, [], 800.0).turns == 0


def test_every_turn_that_counts_is_in_the_denominator() -> None:
    kinds = ["refused", "refused", "late_start", "dropped", "not_reached", "worker_lost"]
    turns = [turn_of(i, 300.0 + i) for i in range(20)]
    turns += [missed(20 + i, how) for i, how in enumerate(kinds)]
    turns += [turn_of(30, 900.0), turn_of(31, None), turn_of(32, -200.0)]
    found = figures(turns)
    assert (found.turns, found.hit_rate.hits, found.hit_rate.n) == (29, 20, 29)
    assert found.outcomes == {
        **{"answered": 20, "late": 1, "no_reply": 1, "cut_in": 1},
        **{"refused": 2, "late_start": 1, "dropped": 1, "not_reached": 1, "worker_lost": 1},
    }
    assert (found.refused, found.late_started, found.dropped) == (2, 1, 1)
    assert evidence_of(found).hits == 20
    assert evidence_of(found).effective_n == found.effective_n


def test_who_waited_for_the_line_and_why_calls_were_refused_is_counted() -> None:
    turns = [turn_of(1, 300.0), turn_of(2, 300.0, waited_ms=600.0), turn_of(3, 900.0)]
    turns += [missed(4, "refused"), missed(4, "refused"), missed(5, "dropped")]
    turns += [missed(6, "refused").model_copy(update={"why": "full"}), missed(7, "late_start")]
    found = figures(turns)
    assert (found.hit_rate.hits, found.waited) == (1, 1)
    assert found.outcomes["answered"] == found.hit_rate.hits + found.waited
    assert found.reasons == {"a reason": 2, "full": 1}


def test_missed_turns_and_cut_ins_are_slower_than_any_that_was_answered() -> None:
    gaps = [300.0 + i for i in range(30)]
    turns = [turn_of(i, gap) for i, gap in enumerate(gaps)]
    turns += [missed(30, "refused"), turn_of(31, -400.0), turn_of(32, None)]
    found = figures(turns).gap_ms
    expected = {name: percentile(gaps, q, censored=3) for name, q in (("p50", 0.5), ("p95", 0.95))}
    assert {name: p.value for name, p in found.items()} == {n: p.value for n, p in expected.items()}
    assert found["p95"].why_none == "3 of 33 turns have no reply"


def test_what_was_waited_for_the_line_is_part_of_the_gap() -> None:
    turns = [turn_of(i, 400.0) for i in range(9)] + [turn_of(9, 400.0, waited_ms=500.0)]
    found = figures(turns)
    assert (found.hit_rate.hits, found.late_started) == (9, 1)
    assert found.gap_ms["p50"].value == 400.0


def test_a_hole_of_a_packet_is_one_and_only_replies_can_have_any() -> None:
    turns = [turn_of(1, 400.0, hole_ms=25.0), turn_of(2, 400.0, hole_ms=19.0), missed(3, "refused")]
    assert figures(turns).holes == 0.5
    assert figures([missed(1, "refused")]).holes is None


def test_all_turns_in_time_still_tell_no_more_than_their_gaps_are_apart() -> None:
    apart = [turn_of(i, 300.0 + (i * 37) % 100) for i in range(60)]
    slow_calls = [
        turn_of(i // 5, 300.0 + 200 * (i // 5 % 2) + i, due_s=float((i * 7) % 60))
        for i in range(60)
    ]
    assert figures(apart).effective_n > 45
    assert figures(slow_calls).effective_n < 25
    low, lower = figures(apart).hit_rate.low, figures(slow_calls).hit_rate.low
    assert low is not None
    assert lower is not None
    assert lower < low


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 60)), max_size=20))
def test_calls_at_once_are_counted_whenever_they_began(calls: list[tuple[float, float]]) -> None:
    marks = [
        CallMark(number, at_s, running)
        for number, (begins_s, lasts_s) in enumerate(calls)
        for at_s, running in ((begins_s, True), (begins_s + lasts_s, False))
    ]
    mean, most = at_once(marks, WINDOW)
    instants = sorted({WINDOW.warm_up_s, WINDOW.end_s, *(m.at_s for m in marks)})
    inside = [i for i in instants if WINDOW.warm_up_s <= i <= WINDOW.end_s]
    pieces = [
        (b - a, sum(begins <= a and b <= begins + lasts for begins, lasts in calls))
        for a, b in pairwise(inside)
    ]
    assert most == max(running for _, running in pieces)
    assert mean == pytest.approx(sum(s * n for s, n in pieces) / WINDOW.measured_s, abs=1e-6)


def ran(*calls: tuple[float, float]) -> list[CallMark]:
    marks = [CallMark(n, begin, running=True) for n, (begin, _) in enumerate(calls)]
    return marks + [CallMark(n, end, running=False) for n, (_, end) in enumerate(calls)]


@pytest.mark.parametrize(
    ("calls", "mean", "most"),
    [
        ([], 0.0, 0),
        ([(0, 40)], 1.0, 1),
        ([(0, 5), (31, 40)], 0.0, 0),
        ([(0, 20), (20, 40)], 1.0, 1),
        ([(0, 20), (15, 40)], 1.25, 2),
        ([(12, 14), (12, 14), (12, 14)], 0.3, 3),
        ([(0, 20)], 0.5, 1),
    ],
)
def test_calls_at_once_are_those_of_the_measured_window(
    calls: list[tuple[float, float]], mean: float, most: int
) -> None:
    assert at_once(ran(*calls), Window(10.0, 20.0, 5.0)) == (pytest.approx(mean), most)


def test_a_step_is_void_where_the_caller_was_late_in_one_packet_of_a_hundred() -> None:
    assert why_void([turn_of(1, 300.0)], 10.0, 10.0) is None
    assert "late by 10.1 ms (p99), over 10 ms" in (why_void([turn_of(1, 300.0)], 10.0, 10.1) or "")


def test_a_lost_caller_comes_before_a_late_one() -> None:
    turns = [missed(1, "worker_lost"), turn_of(2, 300.0)]
    assert why_void(turns, 10.0, 90.0) == "a caller was lost: a reason"
    assert why_void([], 10.0, None) is None


def test_a_caller_gets_the_variables_of_the_endpoint_and_as_many_files_as_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENT_TOKEN", "hush-4f9a77c1d2")
    monkeypatch.delenv("UNSET_TOKEN", raising=False)
    headers = ("Authorization: Bearer ${AGENT_TOKEN}", "X-Other: ${UNSET_TOKEN}")
    endpoint = Endpoint("ws://agent.example/${AGENT_TOKEN}", headers=headers)
    variables = endpoint.variables()
    assert variables == {"AGENT_TOKEN": "hush-4f9a77c1d2"}
    share = Share(1, (), endpoint, (), 800.0, 10.0, Patience(), 0.0, 0.0, variables=variables)
    assert "hush" not in repr(share)
    monkeypatch.delenv("AGENT_TOKEN")  # another machine
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        play_share(share, lambda _: None)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert os.environ["AGENT_TOKEN"] == "hush-4f9a77c1d2"
        assert "hush" not in text_without_secrets("the token hush-4f9a77c1d2 is refused")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
