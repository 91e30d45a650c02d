"""A curve's figures, by hand and as invariants."""

from collections.abc import Sequence
from itertools import pairwise
from math import exp, inf
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_records import make_turn

from turngap.core.results import Turn
from turngap.core.stored import PauseRecord
from turngap.store.comparisons import CurveRecord
from turngap.turns.play import (
    measured_curve,
    outlasted_ms,
    point_figures,
    silence_curve,
    waiting_curve,
)

SPEECH_MS = 4000.0


def pause(start_ms: float, ms: float) -> PauseRecord:
    return PauseRecord(start_ms=start_ms, end_ms=start_ms + ms)


def answered(turn: int, gap_ms: float, *pauses: PauseRecord, repeat: int = 1) -> Turn:
    marks = {"received": gap_ms - 1, "agent_onset": gap_ms}
    about = {"speech_ms": SPEECH_MS, "pauses": pauses, "repeat": repeat, "scenario": f"s{turn}"}
    return make_turn(turn=turn, marks_ms=marks, **about)


def cut_in(
    turn: int, at_ms: float, *pauses: PauseRecord, decided_ms: float | None = None, repeat: int = 1
) -> Turn:
    """The agent was heard `at_ms` after the turn's start."""
    told = None if decided_ms is None else (decided_ms,)
    turns = answered(turn, at_ms - SPEECH_MS, *pauses, repeat=repeat)
    return turns.model_copy(update={"endpoints_ms": told})


def silent(turn: int) -> Turn:
    return make_turn(turn=turn, marks_ms=None, ended="timeout", speech_ms=SPEECH_MS, pauses=())


def points(curve: CurveRecord) -> list[tuple[float, float]]:
    return [(point.gap_ms, point.cut_ins) for point in curve.points]


# --- how long a cut-in lasts ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        # Heard 450 ms into a pause of 900: 450 ms more and the person had gone on.
        (cut_in(1, 1450, pause(1000, 900)), 450),
        # It had decided 300 ms into it: it is the decision that a pause has to outlast.
        (cut_in(1, 1450, pause(1000, 900), decided_ms=1300), 600),
        # Heard over speech, decided in the pause before.
        (cut_in(1, 2100, pause(1000, 900), decided_ms=1300), 600),
        # Heard over speech, decided nobody knows when: as early as the pause began, at worst.
        (cut_in(1, 2100, pause(1000, 900)), 900),
        # Decided when the person had gone on: any wait helps.
        (cut_in(1, 2100, pause(1000, 900), decided_ms=1920), 0),
        # A later and longer pause draws it as soon: 1600 less the 450.
        (cut_in(1, 1450, pause(1000, 900), pause(2200, 1600)), 1150),
        # An earlier one did not draw it.
        (cut_in(1, 2650, pause(100, 1600), pause(2200, 900)), 450),
        # No pause explains it: no wait helps.
        (cut_in(1, 500, pause(1000, 900)), inf),
    ],
)
def test_how_much_longer_an_agent_must_have_waited(turn: Turn, expected: float):
    assert outlasted_ms(turn) == pytest.approx(expected)


# --- what if it had waited longer -----------------------------------------------------------------


def test_waiting_adds_to_each_gap_and_takes_cut_ins_away():
    turns = [
        *(answered(n, 400) for n in range(1, 9)),
        cut_in(9, 1450, pause(1000, 900)),  # lasts 450 ms
        cut_in(10, 1200, pause(1000, 300)),  # lasts 100 ms
    ]
    curve = waiting_curve(turns)
    assert points(curve)[0] == (400, 0.2)
    assert (500, 0.1) in points(curve)
    assert (490, 0.2) in points(curve)
    assert (850, 0.0) in points(curve)
    # From 10 % at 840 ms down to none at 850 ms.
    assert curve.gap_at_share_ms.value == pytest.approx(845)
    assert curve.cut_ins_at_gap.value is None
    assert curve.cut_ins_at_gap.why_none == "its quickest is slower: 400 ms"


def test_the_share_at_a_gap_is_read_after_the_wait_that_makes_it():
    turns = [*(answered(n, 150) for n in range(1, 10)), cut_in(10, 1200, pause(1000, 300))]
    curve = waiting_curve(turns)
    assert points(curve)[0] == (150, 0.1)
    assert curve.cut_ins_at_gap.value == 0  # at 300 ms: the cut-in lasted 100


def test_a_cut_in_that_nobody_labelled_leaves_no_curve():
    unlabelled = cut_in(2, 1450).model_copy(update={"pauses": None})
    turns = [*(answered(n, 400) for n in range(3, 9)), unlabelled]
    curve = waiting_curve(turns)
    assert curve.points == ()
    assert "turngap label" in (curve.why_none or "")
    # Without a cut-in there is nothing to explain.
    plain = [answered(n, 400).model_copy(update={"pauses": None}) for n in range(1, 6)]
    assert points(waiting_curve(plain))[0] == (400, 0.0)


def test_turns_without_a_reply_count_as_the_slowest():
    turns = [*(answered(n, 400) for n in range(1, 4)), *(silent(n) for n in range(4, 9))]
    curve = waiting_curve(turns)
    assert curve.points == ()
    assert "no reply" in (curve.why_none or "")
    assert measured_curve([turns]).points == ()


# --- silence alone --------------------------------------------------------------------------------


def test_silence_alone_cuts_in_on_each_pause_that_is_as_long():
    turns = [
        answered(1, 900, pause(500, 250)),
        answered(2, 900, pause(500, 600), pause(2000, 250)),
        answered(3, 900),
        answered(4, 900, pause(500, 1500)),
        # Another round of it tells nothing more.
        answered(4, 950, pause(500, 1500), repeat=2),
    ]
    curve = silence_curve(turns)
    assert curve.turns == 4
    assert points(curve)[0] == (100, 0.75)
    assert [p for p in points(curve) if p[0] in (250, 260, 600, 610, 1500, 1510)] == [
        *((250, 0.75), (260, 0.5), (600, 0.5), (610, 0.25), (1500, 0.25), (1510, 0.0)),
    ]
    assert curve.cut_ins_at_gap.value == 0.5
    assert 1500 < (curve.gap_at_share_ms.value or 0) <= 1510


def test_without_labels_there_is_no_baseline_and_it_says_what_to_do():
    turns = [answered(1, 400).model_copy(update={"pauses": None})]
    curve = silence_curve(turns)
    assert curve.points == ()
    assert "turngap label" in (curve.gap_at_share_ms.why_none or "")


# --- the measured curve ---------------------------------------------------------------------------


def point_of(gap_ms: float, cut_ins: int, of: int = 40) -> list[Turn]:
    long = pause(1000, 2500)
    return [
        cut_in(n, 1500, long) if n <= cut_ins else answered(n, gap_ms, long)
        for n in range(1, of + 1)
    ]


def test_between_points_the_curve_is_straight():
    played = [point_of(600, 1), point_of(200, 12), point_of(400, 4)]
    curve = measured_curve(played)
    assert points(curve) == [(200, 0.3), (400, 0.1), (600, 0.025)]
    # From 10 % at 400 ms to 2.5 % at 600 ms.
    assert curve.gap_at_share_ms.value == pytest.approx(400 + 200 * 0.05 / 0.075)
    assert curve.cut_ins_at_gap.value == pytest.approx(0.2)
    low, high = curve.cut_ins_at_gap.low, curve.cut_ins_at_gap.high
    assert low is not None
    assert high is not None
    assert 0.05 < low < 0.2 < high < 0.4


@pytest.mark.parametrize(
    ("played", "why"),
    [
        ([point_of(600, 1)], "already at its quickest, 600 ms, it cuts in on 2.5 %"),
        ([point_of(200, 12), point_of(400, 4)], "even at its most patient, 400 ms, it cuts in on"),
    ],
)
def test_a_curve_that_does_not_reach_the_share_says_so(played: list[list[Turn]], why: str):
    curve = measured_curve(played)
    assert curve.gap_at_share_ms.value is None
    assert why in (curve.gap_at_share_ms.why_none or "")


def test_few_recorded_turns_bound_little_however_often_they_were_played():
    once, often = (
        measured_curve(
            [
                [
                    t.model_copy(update={"repeat": r})
                    for r in range(rounds)
                    for t in point_of(g, c, 10)
                ]
                for g, c in ((200, 5), (400, 0))
            ]
        ).cut_ins_at_gap
        for rounds in (1, 9)
    )
    assert once == often
    assert often.value == pytest.approx(0.25)
    two = [point_of(200, 1, 2) * 9, point_of(400, 0, 2) * 9]
    assert measured_curve(two).cut_ins_at_gap.low is None


@pytest.mark.parametrize("n", [20, 25, 72])
def test_the_gap_at_5_percent_is_held(n: int):
    # Six in ten turns hold a pause, whose longest is log-normal.
    truth = 500 * exp(0.6 * NormalDist().inv_cdf(1 - 0.05 / 0.6))
    rng, held, trials = np.random.default_rng(n), 0, 40
    for _ in range(trials):
        longest = np.where(rng.random(n) < 0.6, 500 * np.exp(0.6 * rng.normal(size=n)), 0.0)
        turns = [answered(i, 300, pause(500, float(ms))) for i, ms in enumerate(longest)]
        found = silence_curve(turns).gap_at_share_ms
        assert n >= 72 or found.high is None
        # The curve has steps of 10 ms.
        low, high = found.low or 0, inf if found.high is None else found.high
        held += low - 10 <= truth <= high + 10
    assert held >= 35  # of 40 at 95 %: fewer once in a hundred


def test_a_point_counts_gaps_without_the_turns_that_were_cut_in_on():
    point = point_figures(point_of(400, 4), value="x", run="r", valid=True)
    assert (point.turns, point.gap_n, point.gap_ms.value) == (40, 36, 400)
    assert (point.heard.hits, point.heard.n) == (4, 40)
    assert point.decided is None
    assert point.why_not_decided


def test_nothing_played_is_no_figure():
    for curve in (measured_curve([[]]), waiting_curve([]), silence_curve([])):
        assert curve.points == ()
        assert curve.why_none
    assert point_figures([], value=None, run="r", valid=False).gap_ms.value is None


# --- invariants -----------------------------------------------------------------------------------

pauses = st.lists(st.floats(100, 900), max_size=3).map(
    lambda lengths: tuple(pause(1000.0 * (i + 1), ms) for i, ms in enumerate(lengths))
)


@st.composite
def some_turns(draw: st.DrawFn) -> list[Turn]:
    turns: list[Turn] = []
    for n in range(1, draw(st.integers(1, 16)) + 1):
        held = draw(pauses)
        if draw(st.booleans()):
            turns.append(answered(n, draw(st.floats(0, 2000)), *held))
        else:
            at_ms = draw(st.floats(1, SPEECH_MS - 1))
            decided = draw(st.none() | st.floats(0, at_ms))
            turns.append(cut_in(n, at_ms, *held, decided_ms=decided))
    return turns


def falls(shares: Sequence[float]) -> bool:
    return all(b <= a for a, b in pairwise(shares))


@given(some_turns())
@settings(max_examples=20)
def test_more_waiting_never_cuts_in_more(turns: list[Turn]):
    for curve in (waiting_curve(turns), silence_curve(turns)):
        gaps = [point.gap_ms for point in curve.points]
        assert gaps == sorted(gaps)
        assert falls([point.cut_ins for point in curve.points])
        reading = curve.gap_at_share_ms
        assert (reading.value is None) == (reading.why_none is not None)
        for point in curve.points:
            assert (point.low is None) == (point.high is None) == (len(turns) < 3)
            if point.low is not None and point.high is not None:
                assert 0 <= point.low <= point.cut_ins <= point.high <= 1


@given(some_turns())
@settings(max_examples=20)
def test_without_waiting_the_curve_is_what_was_measured(turns: list[Turn]):
    waiting, measured = waiting_curve(turns), measured_curve([turns])
    assert points(waiting)[:1] == points(measured)
    assert (waiting.why_none is None) == (sum(turn.replied for turn in turns) >= 5)
