"""What a line did to a turn, from instants made by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from turngap.caller.ear import Heard
from turngap.caller.line.figures import (
    Chunk,
    TurnOnLine,
    buffer_of,
    figures_of,
    line_marks,
    played_from,
)
from turngap.caller.line.running import Crossing, Crossings
from turngap.caller.line.spec import LineSpec, Way
from turngap.core.clock import ms_to_ns

DELAY_MS, RATE = 50, 16_000
LINE = LineSpec("", up=Way(delay_ms=DELAY_MS), down=Way(delay_ms=DELAY_MS))


def crossed(way: str, times_ms: list[tuple[float, float]], into: Crossings) -> Crossings:
    """Let 100 bytes enter and come out at each pair of instants."""
    crossing = getattr(into, way)
    steps = [(entered, 0) for entered, _ in times_ms] + [(out, 1) for _, out in times_ms]
    for at_ms, out in sorted(steps):
        if out:
            crossing.leave(ms_to_ns(at_ms), bytes(100))
        else:
            crossing.enter(ms_to_ns(at_ms), bytes(100))
    return into


def heard(*pieces: tuple[float, float, int]) -> list[Heard]:
    """Return sound of an amplitude from and to these instants."""
    return [
        Heard(ms_to_ns(a), np.full(round((b - a) * RATE / 1000), level, np.int16), RATE)
        for a, b, level in pieces
    ]


# A person who ends at 1,000 ms, and a reply of five chunks of 100 ms from 1,500 on; the third waits
# in the line for 250 ms, and the others come with it.
UP = [(1010.0, 1060.0)]
DOWN = [(1450.0, 1500.0), (1550, 1600), (1650, 1950), (1750, 1950), (1850, 1950)]
TURN = TurnOnLine(
    begun_ns=0,
    end_ns=ms_to_ns(1000),
    last_packet_ns=ms_to_ns(1010),
    ended_ns=ms_to_ns(3000),
    parts_ns=((ms_to_ns(1500), ms_to_ns(2250)),),
    received_ns=ms_to_ns(1500),
)


def stalled() -> Crossings:
    return crossed("down", DOWN, crossed("up", UP, Crossings(LINE)))


def chunks(crossings: Crossings) -> list[Chunk]:
    return [Chunk(at, ms_to_ns(100)) for at in crossings.down.arrived_ns]


def test_the_lines_marks_are_when_what_counts_entered_and_came_out() -> None:
    ms = {name: round(ns / 1e6) for name, ns in line_marks(TURN, stalled()).items()}
    assert ms == {"line_up": 1060, "received": 1450, "line_down": 1500}


def test_a_stall_is_a_hole_in_the_reply_and_costs_a_buffer() -> None:
    crossings = stalled()
    sound = heard((1500, 1700, 9000), (1950, 2250, 9000))
    found = figures_of(TURN, crossings, chunks(crossings), sound)
    assert (found.up_ms, found.down_ms) == (60, 50)
    (hole,) = found.dry
    assert (round(hole.at_ms), round(hole.ms), hole.in_word) == (200, 250, True)
    assert found.buffer_ms is not None and round(found.buffer_ms) == 250
    # The last chunk entered 200 ms later than the one that stalled, and came out with it.
    assert (round(found.lag_ms or 0), found.up_lag_ms, found.backlog_bytes) == (50, 0, 300)
    (stall,) = found.stalls
    assert (stall.way, round(stall.at_ms), round(stall.ms)) == ("down", 700, 250)
    assert stall.recovered_ms is None, "the last chunk is still 50 ms late"


def test_a_hole_in_a_pause_is_not_inside_a_word() -> None:
    crossings = stalled()
    sound = heard((1500, 1660, 9000), (1660, 1700, 3), (1950, 2250, 9000))
    (hole,) = figures_of(TURN, crossings, chunks(crossings), sound).dry
    assert not hole.in_word


def test_an_agents_own_pause_is_no_hole_of_the_line() -> None:
    times = [(1450.0, 1500.0), (1550, 1600), (1900, 1950), (2000, 2050)]
    crossings = crossed("down", times, crossed("up", UP, Crossings(LINE)))
    sound = heard((1500, 1700, 9000), (1950, 2150, 9000))
    found = figures_of(TURN, crossings, chunks(crossings), sound)
    assert not found.dry and not found.stalls
    assert (found.buffer_ms, found.lag_ms) == (0, 0)


def test_a_turn_without_a_reply_has_the_way_up_only() -> None:
    silent = TurnOnLine(
        begun_ns=0, end_ns=ms_to_ns(1000), last_packet_ns=ms_to_ns(1010), ended_ns=1
    )
    found = figures_of(silent, crossed("up", UP, Crossings(LINE)), [], [])
    assert (found.up_ms, found.down_ms, found.buffer_ms, found.lag_ms) == (60, None, None, None)


def test_what_never_came_out_is_a_stall_to_the_turns_end() -> None:
    crossings = stalled()
    crossings.down.enter(ms_to_ns(2000), bytes(100))
    found = figures_of(TURN, crossings, chunks(crossings), [])
    assert [round(stall.ms) for stall in found.stalls] == [250, 950]
    assert found.stalls[-1].recovered_ms is None


lengths = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 200), st.integers(0, 900)))


@given(lengths.filter(bool))
def test_behind_the_buffer_no_chunk_is_late_and_behind_less_one_is(
    made: list[tuple[int, int, int]],
) -> None:
    times, entered, arrived = list[tuple[int, Chunk]](), 0, 0
    for wait_ms, length_ms, late_ms in made:
        entered += wait_ms
        arrived = max(arrived, entered + late_ms)
        times.append((ms_to_ns(entered), Chunk(ms_to_ns(arrived), ms_to_ns(length_ms))))
    ideal = played_from(times)
    buffer_ns = buffer_of(times, ideal)
    offset_ns = times[0][1].arrived_ns - ideal[0]

    def is_late(buffer_ns: int) -> bool:
        plays = (at + offset_ns + buffer_ns for at in ideal)
        return any(c.arrived_ns > at for (_, c), at in zip(times, plays, strict=True))

    assert not is_late(buffer_ns)
    assert buffer_ns == 0 or is_late(buffer_ns - 1)


def test_what_comes_out_bit_by_bit_or_within_the_jitter_has_not_stalled() -> None:
    slow = Crossing(Way(delay_ms=DELAY_MS))
    slow.enter(0, bytes(60_000))
    for at_ms in range(50, 1700, 40):
        slow.leave(ms_to_ns(at_ms), bytes(1448))
    shaky = Crossing(Way(delay_ms=DELAY_MS, jitter_ms=150))
    shaky.enter(0, bytes(100))
    shaky.leave(ms_to_ns(290), bytes(100))
    assert not slow.stalls and not shaky.stalls
    shaky.enter(ms_to_ns(1000), bytes(100))
    shaky.leave(ms_to_ns(1310), bytes(100))
    assert list(shaky.stalls) == [(ms_to_ns(1200), ms_to_ns(1310))]
