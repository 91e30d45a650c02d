"""Turn-taking figures."""

from collections.abc import Sequence

import pytest
from made_records import make_turn

from turngap.core.results import Turn
from turngap.core.stored import BackchannelRecord
from turngap.core.summary import turn_taking


def backchannel(stopped: bool) -> BackchannelRecord:
    return BackchannelRecord(say="mm-hm", start_ms=2000.0, reply_stopped=stopped)


def played(turns: Sequence[Turn], times: int) -> list[Turn]:
    return [turn.model_copy(update={"repeat": n}) for n in range(times) for turn in turns]


def test_cut_ins_are_counted_over_all_turns():
    turns = [make_turn(turn=n) for n in range(1, 4)]
    turns.append(make_turn(turn=4, marks_ms={"received": -600.0, "agent_onset": -500.0}))
    turns.append(make_turn(turn=5, marks_ms=None, ended="timeout"))
    assert turn_taking(turns).cut_ins.low is None  # of one play
    figures = turn_taking(played(turns, times=3))
    assert (figures.cut_ins.hits, figures.cut_ins.n) == (3, 15)
    assert figures.cut_ins.low is not None
    assert figures.cut_ins.low < 0.2 < (figures.cut_ins.high or 0)


def test_who_cuts_in_whenever_it_hears_a_turn_has_cut_in_on_one():
    cut_in = {"received": -600.0, "agent_onset": -500.0}
    once = [make_turn(turn=n, marks_ms=cut_in) if n == 4 else make_turn(turn=n) for n in range(10)]
    of_10, of_20 = (turn_taking(played(once, times=n)).cut_ins for n in (10, 20))
    assert (of_20.hits, of_20.n, of_20.recorded) == (20, 200, 10)
    assert of_10.low is not None
    assert (of_20.low, of_20.high) == pytest.approx((of_10.low, of_10.high))


def test_false_stops_are_counted_over_all_backchannels():
    turns = [
        make_turn(turn=1, backchannels=(backchannel(True), backchannel(False))),
        make_turn(turn=2, backchannels=(backchannel(True),)),
    ]
    assert (turn_taking(turns).false_stops.hits, turn_taking(turns).false_stops.n) == (2, 3)


def test_the_yield_is_a_median_over_barge_ins_alone():
    turns = [make_turn(turn=n, yield_ms=100.0 * n) for n in range(1, 6)]
    figures = turn_taking([*turns, make_turn(turn=6)])
    assert figures.barge_ins == 5
    assert figures.yield_ms.value == 300.0


def test_missing_figures_are_none_with_a_reason():
    figures = turn_taking([])
    assert figures.cut_ins.value is None
    assert figures.false_stops.value is None
    assert figures.yield_ms.value is None
    assert figures.yield_ms.why_none


def test_turns_without_a_reply_cannot_shorten_the_median_gap():
    quick = [make_turn(turn=n) for n in range(1, 6)]
    failed = [make_turn(turn=n, marks_ms=None, ended="timeout") for n in range(6, 12)]
    assert turn_taking(quick).gap_ms.value is not None
    assert turn_taking([*quick, *failed]).gap_ms.value is None
