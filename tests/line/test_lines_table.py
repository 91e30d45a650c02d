"""benchmarks/lines.py: the figures of an agent over a line, and two agents turn by turn."""

import lines
import pytest
from made_records import make_turn

from turngap.core.results import Turn
from turngap.core.stages import Stage
from turngap.core.stored import DryRecord, LineTurn, StallRecord


def taken(turn: int, repeat: int, gap_ms: float | None, line_ms: float = 100.0) -> Turn:
    if gap_ms is None:
        return make_turn(turn=turn, repeat=repeat, marks_ms=None, ended="timeout")
    parts = {"line_up": line_ms / 2, "endpoint": gap_ms - line_ms, "line_down": line_ms / 2}
    crossed = LineTurn(
        buffer_ms=30.0,
        dry=(DryRecord(at_ms=100.0, ms=40.0, in_word=turn == 1),),
        stalls=(StallRecord(way="down", at_ms=500.0, ms=240.0, recovered_ms=60.0 * turn),),
    )
    return make_turn(
        turn=turn,
        repeat=repeat,
        marks_ms={"agent_onset": gap_ms},
        stages=tuple(Stage(name, round(ms * 1e6), ms) for name, ms in parts.items()),
        line=crossed,
    )


def test_a_row_splits_the_gap_and_counts_every_turn() -> None:
    turns = [taken(n, 1, 600.0 + n) for n in range(1, 6)] + [taken(6, 1, None)]
    row = lines.row_of("embedded", "lte", turns)
    assert (row.n, row.hits, row.line_p50, row.agent_p50) == (6, 5, 100.0, 503.0)
    assert (row.holes, row.holes_ms, row.in_word) == (5, 200.0, 1)
    assert row.whole_p50 == 633.0
    assert (row.recovery_p50, row.recovery_n) == (180.0, 5)


def test_agents_are_compared_over_the_turns_that_both_took() -> None:
    ours = [taken(turn, repeat, 500.0) for turn in range(1, 3) for repeat in range(1, 9)]
    theirs = [taken(turn, repeat, 900.0) for turn in range(1, 3) for repeat in range(1, 7)]
    found = lines.difference_of("lte", ours, theirs)
    assert (found.n, found.of) == (12, 12)
    assert found.gap_ms == pytest.approx((-400.0, -400.0, -400.0))
    assert found.hit_rate == pytest.approx((1.0, 1.0, 1.0))
    assert found.worse == "nothing"
    back = lines.difference_of("lte", theirs, ours)
    assert back.worse == "gap, gap without holes, hit rate"
    assert lines.difference_of("lte", ours[:5], theirs).gap_ms is None


def test_what_is_compared_is_played_together_and_every_piece_once() -> None:
    pieces = lines.pieces_of(lines.AGENTS, ("lte", "3g"), 2, ("a", "b"), virtual=False)
    assert len(set(pieces)) == len(pieces) == 2 * 3 * 2 * 2
    assert all(a.profile == b.profile for a, b in zip(pieces[::2], pieces[1::2], strict=True))
    assert {piece.line for piece in pieces if piece.round == 2} == {"", "lte,seed=2", "3g,seed=2"}
