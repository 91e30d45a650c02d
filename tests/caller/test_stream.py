"""The caller's microphone: where recordings lie in it, what lies between, when packets leave."""

import asyncio
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.caller.stream import (
    GRID_MS,
    RATE,
    LagProbe,
    Sender,
    UserStream,
    line_noise,
    loop_probe,
)
from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, audible_onset, rms_dbfs
from turngap.testing import ManualClock
from turngap.testing.virtual import LoopClock, VirtualLoop, in_virtual_time

MS = 1_000_000
STREAM = UserStream(0)
GRID, PACKET = STREAM.grid, STREAM.packet
T0 = 7_000_000_123
PACKET_NS = 20 * MS


def clip(samples: int, value: int = 5000) -> Pcm:
    return np.full(samples, value, dtype=np.int16)


# --- the stream -------------------------------------------------------------------------------


@given(st.integers(0, 10**7), st.integers(0, 3 * GRID))
def test_a_recording_begins_on_the_grid_no_sooner_than_asked(not_before: int, phase: int) -> None:
    start = UserStream(T0).place(clip(10), not_before, phase=phase)
    assert start >= not_before
    assert (start - phase) % GRID == 0
    assert start < max(not_before, phase) + GRID


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 48_000])
def test_the_grid_is_that_of_packets_and_of_vad_windows(rate: int) -> None:
    stream = UserStream(0, rate)
    assert stream.grid * 1000 == GRID_MS * rate
    assert stream.grid % stream.packet == 0
    assert stream.grid % (rate * 32 // 1000) == 0


@given(st.integers(0, 50_000), st.integers(0, 3_000), st.lists(st.integers(1, 2_999), max_size=4))
def test_what_is_read_does_not_depend_on_how(start: int, length: int, cuts: list[int]) -> None:
    stream = UserStream(T0)
    stream.place(clip(3_000), 12_345)
    stream.place(clip(777, -4000), 30_000, phase=5)
    whole = stream.read(start, length)
    edges = [0, *sorted(c for c in cuts if c < length), length]
    parts = [stream.read(start + a, b - a) for a, b in pairwise(edges)]
    assert len(whole) == length
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@given(
    st.sampled_from([8_000, 16_000, 24_000, 48_000]),
    st.integers(0, 10**6),
    st.integers(0, 20_000),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 4_000)), max_size=4),
)
def test_a_packet_is_noise_from_its_place_on_the_grid_and_recordings_over_it(
    rate: int, start: int, length: int, clips: list[tuple[int, int]]
) -> None:
    stream = UserStream(T0, rate)
    expected = np.resize(np.roll(line_noise(rate), -(start % stream.grid)), length)
    for not_before, samples in clips:
        at = stream.place(clip(samples), not_before)
        expected[max(0, at - start) : max(0, at + samples - start)] = 5000
    assert stream.read(start, length).tobytes() == expected.tobytes()
    stream.read(start, length)[:] = 1  # a copy: the noise is that of every packet to come
    assert stream.read(start, length).tobytes() == expected.tobytes()


def test_a_recording_lies_where_it_was_placed_sample_by_sample() -> None:
    stream = UserStream(T0)
    pcm = np.arange(1, 4001, dtype=np.int16)
    start = stream.place(pcm, 5_000, phase=33)
    np.testing.assert_array_equal(stream.read(start, len(pcm)), pcm)
    around = stream.read(start - 100, len(pcm) + 200)
    np.testing.assert_array_equal(around[100:-100], pcm)
    assert np.abs(around[:100]).max() < 300
    assert np.abs(around[-100:]).max() < 300


def test_between_recordings_there_is_noise_at_the_floor_and_nothing_audible() -> None:
    between = UserStream(T0).read(123, 5 * RATE)
    assert rms_dbfs(between) == pytest.approx(LINE_FLOOR_DBFS, abs=0.5)
    assert audible_onset(between, RATE) is None
    assert len(np.unique(between)) > 50


def test_the_noise_is_the_same_in_every_run_and_at_every_place_of_the_grid() -> None:
    stream, other = UserStream(T0), UserStream(0)
    np.testing.assert_array_equal(stream.read(0, GRID), line_noise())
    np.testing.assert_array_equal(stream.read(700, 400), other.read(700 + 11 * GRID, 400))


@given(st.integers(0, 10**8))
def test_instants_and_samples_agree(sample: int) -> None:
    stream = UserStream(T0)
    assert stream.sample_at(stream.instant_ns(sample)) == sample
    assert stream.sample_at(stream.instant_ns(sample) + 1) == sample + 1
    assert stream.instant_ns(sample + RATE) - stream.instant_ns(sample) == 1000 * MS


# --- the sender -------------------------------------------------------------------------------


class Line:
    """Takes packets, in no time unless told otherwise."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.sent: list[tuple[int, Pcm]] = []
        self.ticks: list[int] = []
        self.holds_ns: dict[int, int] = {}

    async def send(self, pcm: Pcm) -> None:
        self.sent.append((self.clock.now_ns(), pcm))
        hold_ns = self.holds_ns.get(len(self.sent) - 1, 0)
        await self.clock.sleep_until_ns(self.clock.now_ns() + hold_ns)

    async def tick(self, now_ns: int) -> None:
        self.ticks.append(now_ns)


async def run(sender: Sender, line: Line, for_ns: int) -> None:
    task = asyncio.create_task(sender.run(line.tick))
    await line.clock.advance(for_ns)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_each_packet_leaves_when_its_last_sample_has_sounded() -> None:
    clock = ManualClock(T0)
    line, stream = Line(clock), UserStream(T0)
    pcm = np.arange(1, 1001, dtype=np.int16)
    start = stream.place(pcm, GRID)
    sender = Sender(stream, clock, line.send)
    await run(sender, line, 500 * MS)
    assert [at for at, _ in line.sent] == [T0 + (i + 1) * PACKET_NS for i in range(25)]
    assert sender.late_ns == [0] * 25
    assert line.ticks == [at for at, _ in line.sent]
    assert sender.next_sample == 25 * PACKET
    sent = np.concatenate([p for _, p in line.sent])
    np.testing.assert_array_equal(sent[start : start + len(pcm)], pcm)
    np.testing.assert_array_equal(sent, stream.read(0, 25 * PACKET))


async def test_a_line_that_held_up_one_packet_makes_the_next_late_and_not_those_after() -> None:
    clock = ManualClock(T0)
    line, stream = Line(clock), UserStream(T0)
    line.holds_ns[3] = 45 * MS  # packets 4 and 5 are due meanwhile
    sender = Sender(stream, clock, line.send)
    await run(sender, line, 200 * MS)
    assert sender.late_ns == [0, 0, 0, 0, 25 * MS, 5 * MS, 0, 0, 0, 0]
    assert len(np.concatenate([p for _, p in line.sent])) == 10 * PACKET


async def test_lateness_is_that_of_the_packets_which_hold_the_samples() -> None:
    clock = ManualClock(T0)
    line = Line(clock)
    line.holds_ns[3] = 45 * MS
    sender = Sender(UserStream(T0), clock, line.send)
    await run(sender, line, 200 * MS)
    assert sender.lateness_ns(0, PACKET - 1) == [0]
    assert sender.lateness_ns(4 * PACKET - 1, 4 * PACKET) == [0, 25 * MS]
    assert sender.lateness_ns(4 * PACKET, 6 * PACKET - 1) == [25 * MS, 5 * MS]
    assert sender.lateness_ns(9 * PACKET, 99 * PACKET) == [0]


async def test_a_recording_laid_while_a_packet_is_on_its_way_is_sent_whole() -> None:
    clock = ManualClock(T0)
    line, stream = Line(clock), UserStream(T0)
    sender = Sender(stream, clock, line.send)
    task = asyncio.create_task(sender.run(line.tick))
    await clock.advance(10 * PACKET_NS + 7 * MS)
    start = stream.place(clip(1_000), sender.next_sample + 2 * PACKET)
    await clock.advance(40 * PACKET_NS)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    sent = np.concatenate([p for _, p in line.sent])
    np.testing.assert_array_equal(sent[start : start + 1_000], clip(1_000))


# --- the probe of the event loop ----------------------------------------------------------------


def loop() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


def test_all_who_run_a_probe_share_its_beats_until_the_last_one_leaves() -> None:
    async def course() -> list[int | None]:
        clock = LoopClock()
        probe, told = LagProbe(clock), list[int | None]()
        users = [asyncio.create_task(probe.run(from_ns)) for from_ns in (0, 3 * MS)]
        await clock.sleep_until_ns(100 * MS)
        beats = len(probe._due_ns)
        loop().hold_up(40)
        users[0].cancel()  # who began it leaves, and it goes on
        await clock.sleep_until_ns(200 * MS)
        told += [probe.worst_ns(0, 90 * MS), probe.worst_ns(0, 200 * MS)]
        told += [probe.worst_ns(100 * MS, 110 * MS), probe.worst_ns(145 * MS, 200 * MS)]
        users[1].cancel()
        await asyncio.wait(users)
        await clock.sleep_until_ns(400 * MS)
        told.append(probe.worst_ns(201 * MS, 400 * MS))
        assert 18 <= beats <= 20
        return told

    # A beat was due 2.5 ms after the hold-up began.
    assert in_virtual_time(course()) == [0, 37_500_000, 37_500_000, 0, None]


def test_a_probe_that_fails_tells_all_who_run_it() -> None:
    class BrokenClock(LoopClock):
        async def sleep_until_ns(self, deadline_ns: int) -> None:
            raise OSError("no clock")

    async def course() -> list[BaseException | None]:
        probe = LagProbe(BrokenClock())
        return list(await asyncio.gather(probe.run(0), probe.run(0), return_exceptions=True))

    assert [str(e) for e in in_virtual_time(course())] == ["no clock"] * 2


async def test_the_conversations_of_a_loop_have_one_probe() -> None:
    async def other() -> LagProbe:
        return loop_probe()

    assert loop_probe() is loop_probe()
    assert await asyncio.to_thread(asyncio.run, other()) is not loop_probe()
