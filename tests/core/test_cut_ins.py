"""Turns that an agent took to be over too early, by the pauses that drew it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import make_turn

from turngap.core.cut_ins import by_pause_length, early_turns, false_endpoints, heard_cut_in
from turngap.core.results import Turn
from turngap.core.stored import PauseRecord
from turngap.report.turn_words import early_words

# Two pauses in a turn of 4 s: 300 ms long and 900 ms long.
SHORT, LONG = PauseRecord(start_ms=1000, end_ms=1300), PauseRecord(start_ms=2000, end_ms=2900)


def turn_with(
    *,
    onset_ms: float | None = None,
    endpoints_ms: Sequence[float] | None = (4200,),
    pauses: tuple[PauseRecord, ...] | None = (SHORT, LONG),
    **changes: Any,
) -> Turn:
    """A turn of 4 s; `onset_ms` from its start is where the agent cut in."""
    fields: dict[str, Any] = {
        "speech_ms": 4000.0,
        "pauses": pauses,
        "endpoints_ms": None if endpoints_ms is None else tuple(endpoints_ms),
    }
    if onset_ms is not None:
        fields["marks_ms"] = {"received": onset_ms - 4010, "agent_onset": onset_ms - 4000}
    return make_turn(**(fields | changes))


def test_a_cut_in_says_which_pause_it_fell_into_and_how_long_that_was_by_then():
    found = heard_cut_in(turn_with(onset_ms=2450, endpoints_ms=(2300,)))
    assert found is not None
    assert (found.at_ms, found.pause, found.over_speech) == (2450, LONG, False)


@pytest.mark.parametrize(("endpoints", "pause"), [((1250,), SHORT), (None, LONG), ((2040,), LONG)])
def test_a_cut_in_belongs_to_the_pause_that_the_agent_decided_in(
    endpoints: tuple[float, ...] | None, pause: PauseRecord
):
    found = heard_cut_in(turn_with(onset_ms=2050, endpoints_ms=endpoints))
    assert found is not None
    assert found.pause == pause
    assert found.over_speech == (pause is SHORT)


def test_a_cut_in_before_any_pause_is_over_speech():
    found = heard_cut_in(turn_with(onset_ms=400, endpoints_ms=None))
    assert found is not None
    assert (found.pause, found.over_speech) == (None, True)


def test_a_decision_long_after_a_pause_was_not_drawn_by_it():
    found = heard_cut_in(turn_with(onset_ms=1900, endpoints_ms=(1700,)))
    assert found is not None
    assert (found.pause, found.over_speech) == (None, True)


def test_answered_turns_have_no_cut_in_and_may_have_false_endpoints():
    turn = turn_with(endpoints_ms=(1250, 2400, 4250))
    assert heard_cut_in(turn) is None
    assert [(e.at_ms, e.pause) for e in false_endpoints(turn) or ()] == [
        (1250, SHORT),
        (2400, LONG),
    ]


def test_false_endpoints_are_not_known_of_an_agent_that_does_not_say():
    assert false_endpoints(turn_with(endpoints_ms=None)) is None
    counted = early_turns([turn_with(endpoints_ms=None)])
    assert counted.decided is None
    assert counted.why_none == "the agent does not say when it takes a turn to be over"


def test_turns_are_counted_as_heard_and_as_decided():
    turns = [
        turn_with(turn=1),
        turn_with(turn=2, endpoints_ms=(1250, 2400, 4250)),
        turn_with(turn=3, onset_ms=2600, endpoints_ms=(2400,)),
        turn_with(turn=4, endpoints_ms=None),
    ]
    counted = early_turns(turns)
    assert (counted.heard.hits, counted.heard.n, counted.heard.recorded) == (1, 4, 4)
    assert counted.decided is not None
    assert (counted.decided.hits, counted.decided.n) == (2, 3)


def test_pauses_are_counted_by_their_length():
    turns = [
        turn_with(turn=1, endpoints_ms=(2400, 4250)),  # unheard, in the long one
        turn_with(turn=2, onset_ms=1400, endpoints_ms=(1250, 4200)),  # heard: the long one is late
        turn_with(turn=3, pauses=None),  # nobody looked
        turn_with(turn=4, endpoints_ms=None),
    ]
    rows = {row.from_ms: row for row in by_pause_length(turns)}
    counts = {ms: (row.heard.hits, row.heard.n) for ms, row in rows.items()}
    assert counts == {0: (0, 0), 200: (1, 3), 400: (0, 0), 800: (0, 2), 1600: (0, 0)}
    decided = {ms: row.decided for ms, row in rows.items()}
    assert {ms: (d.hits, d.n) for ms, d in decided.items() if d is not None and d.n} == {
        200: (1, 2),
        800: (1, 2),
    }


def test_rounds_of_one_recording_do_not_narrow_what_its_pauses_show():
    once = [turn_with(scenario=f"s{n}", onset_ms=2500 if n == 1 else None) for n in range(1, 9)]
    rounds = [turn.model_copy(update={"repeat": r}) for r in range(1, 6) for turn in once]
    (of_one,), (of_five,) = (
        [row.heard for row in by_pause_length(turns) if row.from_ms == 800]
        for turns in (once, rounds)
    )
    assert (of_five.hits, of_five.n) == (5, 40)
    assert (of_five.low, of_five.high) == pytest.approx((of_one.low, of_one.high))


def test_words_say_where_the_agent_cut_in():
    assert early_words(turn_with(onset_ms=2450, endpoints_ms=(2300,))) == [
        "the agent cut in 450 ms into a pause of 900 ms"
    ]
    assert early_words(turn_with(onset_ms=1500, endpoints_ms=(1250,))) == [
        "the agent cut in over speech, 200 ms after a pause of 300 ms"
    ]
    assert early_words(turn_with(endpoints_ms=(1250, 4250))) == [
        "the agent took the turn to be over too early, but was not heard: "
        "250 ms into a pause of 300 ms"
    ]
    assert early_words(turn_with()) == []
    assert early_words(turn_with(onset_ms=2450, pauses=None)) == []


instants = st.lists(st.floats(0, 5000), max_size=5).map(sorted)


@given(endpoints=instants, onset=st.none() | st.floats(1, 3990))
def test_no_pause_draws_more_than_it_could(endpoints: list[float], onset: float | None):
    turn = turn_with(onset_ms=onset, endpoints_ms=tuple(endpoints))
    for row in by_pause_length([turn]):
        assert row.heard.hits <= row.heard.n <= 1
        assert row.decided is not None
        assert row.decided.hits <= row.decided.n <= 1
    early = false_endpoints(turn)
    assert early is not None
    assert all(one.at_ms < 4000 for one in early)
