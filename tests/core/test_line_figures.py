"""What a line cost over a run: pairs, holes, the buffer that hides them, lag that grows."""

from made_records import USER_END_NS, make_turn

from turngap.core.line_figures import line_figures
from turngap.core.results import Turn
from turngap.core.stored import DryRecord, LineTurn, MarkRecord
from turngap.core.summary import summarise

MINUTE_NS = 60_000_000_000


def crossing(number: int, line: LineTurn, repeat: int = 1) -> Turn:
    ended_ns = USER_END_NS + number * MINUTE_NS // 2
    return make_turn(
        turn=number,
        repeat=repeat,
        marks_ms={"agent_onset": 600.0 + number},
        marks=(MarkRecord(name="user_end", at_ns=ended_ns, vantage="caller"),),
        line=line,
    )


def test_a_run_without_a_line_has_no_such_figures() -> None:
    assert line_figures([make_turn()]) is None
    assert summarise([make_turn()]).as_json()["line"] is None


def test_only_pairs_are_compared_and_the_gap_is_split() -> None:
    turns = [
        crossing(n, LineTurn(plain_gap_ms=500.0, up_ms=60.0, down_ms=40.0), repeat)
        for n in range(1, 8)
        for repeat in range(1, 4)
    ]
    found = line_figures([*turns, crossing(9, LineTurn())])
    assert found is not None
    assert (found.pairs, found.parts, found.replies) == (21, 21, 0)
    assert (found.plain_ms.value, found.with_ms.value) == (500.0, 604.0)
    assert (found.difference_ms.value, found.part_ms.value) == (104.0, 100.0)
    assert found.agent_ms.value == 504.0
    assert found.yield_ms.value is None


def test_holes_are_counted_with_the_buffer_that_hides_them() -> None:
    hole = DryRecord(at_ms=100.0, ms=40.0, in_word=True)
    turns = [crossing(n, LineTurn(buffer_ms=20.0)) for n in range(1, 40)]
    found = line_figures([*turns, crossing(40, LineTurn(dry=(hole, hole), buffer_ms=300.0))])
    assert found is not None
    assert (found.dry_replies, found.dry, found.dry_ms, found.dry_in_word) == (1, 2, 80.0, 2)
    assert found.buffer_ms.value == 20.0
    assert found.buffer_gap_ms.value == 640.5


def test_lag_grows_by_the_typical_slope_of_a_call() -> None:
    grows = [crossing(n, LineTurn(lag_ms=100.0 * n)) for n in range(1, 5)]
    steady = [crossing(n, LineTurn(lag_ms=7.0), 2) for n in range(1, 5)]
    too_short = [crossing(n, LineTurn(lag_ms=1e6 * n), 3) for n in range(1, 3)]
    found = line_figures([*grows, *steady, *too_short])
    assert found is not None
    assert (found.lag_ms_per_minute, found.lag_calls) == (None, 2)
    also = [crossing(n, LineTurn(lag_ms=200.0 * n), 4) for n in range(1, 5)]
    found = line_figures([*grows, *steady, *also])
    assert found is not None
    assert (found.lag_ms_per_minute, found.lag_calls) == (200.0, 3)


def test_a_turn_that_the_line_left_unanswered_is_later_than_any() -> None:
    lined = LineTurn(plain_gap_ms=500.0)
    answered = [crossing(n, lined, r) for n in range(1, 8) for r in (1, 2)]
    silent = [
        crossing(n, lined, 3).model_copy(
            update={"outcome": "no_reply", "gap_ms": None, "gap_ns": None, "stages": ()}
        )
        for n in range(1, 8)
    ]
    found = line_figures([*answered, *silent])
    assert found is not None
    assert (found.pairs, found.difference_ms.value) == (21, 106.0)
    found = line_figures([*answered[:5], *silent])
    assert found is not None
    assert found.difference_ms.value is None
