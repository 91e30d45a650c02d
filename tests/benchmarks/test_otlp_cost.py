"""What the table of the price of `--otlp` says of what was played."""

import pytest
from made_records import make_turn, scaled
from otlp_cost import HEADS, WAYS, Cost, Played, table

from turngap.core.results import Turn


def played(turn: Turn, wall_ms: float = 6000.0) -> Played:
    return Played(turn, wall_ms, caller_cpu_ms=500.0, agent_cpu_ms=900.0)


def test_a_shift_has_an_interval_around_it_once_there_are_enough_pairs() -> None:
    noise = [0.3, -0.2, 0.1, -0.4, 0.2, 0.0, -0.1, 0.4]
    cost = Cost.of([(400 + 5 + each, 400.0) for each in noise])
    assert cost.n == 8
    assert cost.shift_ms == pytest.approx(5.0, abs=0.2)
    assert cost.interval_ms is not None
    low, high = cost.interval_ms
    assert 4.5 < low < 5 < high < 5.5
    assert cost.words().startswith("+5.0 (+4.")


def test_rounds_that_lack_a_gap_are_left_out_and_too_few_have_no_interval() -> None:
    cost = Cost.of([(410.0, 400.0), (None, 400.0), (410.0, None)])
    assert (cost.n, cost.interval_ms) == (1, None)
    assert cost.words() == "+10.0 (too few for an interval)"
    assert Cost.of([(None, 400.0)]).words() == "none"


def test_each_way_is_a_row_beside_the_one_that_it_is_compared_with() -> None:
    dear = [played(make_turn(), 6850.0), played(make_turn(marks_ms=scaled(2)), 6850.0)]
    cheap = [played(make_turn()), played(make_turn(marks_ms=None, ended="timeout"))]
    made = {way.name: cheap if way.against is None else dear for way in WAYS}
    lines = table(made, {way.name: 1.5 for way in WAYS}).splitlines()
    compared = [way for way in WAYS if way.against is not None]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == [
        way.name for way in compared
    ]
    for line in lines[2:]:
        cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
        assert len(cells) == len(HEADS)
        assert cells[1] == "2 (1)"
        assert cells[4].startswith("+0.85")
        assert cells[-1] == "1.50"
