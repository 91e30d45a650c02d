"""What a line did to a turn, from instants made by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.caller.conversation import Conversation, PlayedTurn
from turngap.caller.ear import Heard
from turngap.caller.line.figures import (
    Chunk,
    CrossedAudio,
    TurnOnLine,
    buffer_of,
    figures_of,
    line_marks,
)
from turngap.caller.line.running import Crossing, Crossings
from turngap.caller.line.spec import LineSpec, Way, parse_line
from turngap.caller.said import AudioChunk
from turngap.core.clock import ms_to_ns, ns_to_ms
from turngap.play.calibrate import utterance
from turngap.testing.agent import Reply, Script
from turngap.testing.memory import line_to
from turngap.testing.virtual import LoopClock, in_virtual_time

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
    """Return chunks of 100 ms, one for each that crossed."""
    audio, pcm = CrossedAudio(crossings), np.ones(RATE // 10, np.int16)
    for at in crossings.down.arrived_ns:
        audio.on_message(at, AudioChunk(pcm, RATE))
    return audio.chunks


def test_the_lines_marks_are_when_what_counts_entered_and_came_out() -> None:
    ms = {name: round(ns / 1e6) for name, ns in line_marks(TURN, stalled()).items()}
    assert ms == {"line_up": 1050, "received": 1450, "line_down": 1500}


def test_a_stall_is_a_hole_in_the_reply_and_costs_a_buffer() -> None:
    crossings = stalled()
    sound = heard((1500, 1700, 9000), (1950, 2250, 9000))
    found = figures_of(TURN, crossings, chunks(crossings), sound)
    assert (found.up_ms, found.down_ms) == (50, 50)
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
    assert (found.up_ms, found.down_ms, found.buffer_ms, found.lag_ms) == (50, None, None, None)


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
    reply, entered, arrived, ends, ideal_ends = list[Chunk](), 0, 0, 0, 0
    for wait_ms, length_ms, late_ms in made:
        entered += wait_ms
        arrived = max(arrived, entered + late_ms)
        starts, ideal = max(arrived, ends), max(entered, ideal_ends)
        ms = (entered, arrived, length_ms, starts, ideal)
        reply.append(Chunk(*map(ms_to_ns, ms)))
        ends, ideal_ends = starts + length_ms, ideal + length_ms
    buffer_ns = buffer_of(reply)
    offset_ns = reply[0].starts_ns - reply[0].ideal_ns

    def is_late(buffer_ns: int) -> bool:
        return any(c.arrived_ns > c.ideal_ns + offset_ns + buffer_ns for c in reply)

    assert not is_late(buffer_ns)
    assert buffer_ns == 0 or is_late(buffer_ns - 1)


def test_a_burst_behind_audio_that_still_plays_is_not_heard() -> None:
    # A second of sound waits to be played when three chunks of words come late and at once.
    times = [(1000.0 + 10 * i, 1050.0 + 10 * i) for i in range(10)]
    times += [(1200.0, 1450.0), (1300, 1450), (1400, 1450)]
    crossings = crossed("down", times, crossed("up", UP, Crossings(LINE)))
    words = TurnOnLine(
        begun_ns=0,
        end_ns=ms_to_ns(900),
        last_packet_ns=ms_to_ns(910),
        ended_ns=ms_to_ns(3000),
        parts_ns=((ms_to_ns(2050), ms_to_ns(2350)),),
        received_ns=crossings.down.arrived_ns[10],
    )
    found = figures_of(words, crossings, chunks(crossings), heard((1050, 2350, 9000)))
    assert (found.buffer_ms, found.dry) == (0, ())


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


def play(line: LineSpec | None) -> PlayedTurn:
    """Play a turn to an agent that answers after 300 ms and speaks for 1.2 s."""

    async def call() -> PlayedTurn:
        reply, clock = Reply(delay_ms=300, speech_ms=1200, chunk_ms=10), LoopClock()
        async with line_to(Script(replies=(reply,)), clock=clock, line=line, call="torn") as opened:
            offset = await opened.clock_offset()
            cues = [utterance(opened.rate)]
            conversation = Conversation(opened, cues, clock, offset=offset, watch=clock)
            (played,) = [each async for each in conversation.play()]
            return played

    return in_virtual_time(call())


def test_a_word_that_the_line_tears_is_one_word() -> None:
    plain, torn_early = play(None).turn.gap_ns, 0
    for seed in range(1, 13):
        played = play(parse_line(f"delay=20,down.outage=400ms/0.9s,seed={seed}"))
        figures, gap_ns = played.line, played.turn.gap_ns
        assert plain and gap_ns and figures and figures.down_ms and figures.up_ms
        assert len(played.turn.parts_ns) == 1
        assert ns_to_ms(gap_ns - plain) == pytest.approx(figures.up_ms + figures.down_ms, abs=2)
        torn_early += any(hole.at_ms < 150 for hole in figures.dry)
    assert torn_early >= 3
