"""Between a sound device and a conversation: no sample lost, none out of its place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.caller.stream import RATE
from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, SpeechEnd, SpeechStart, dbfs_to_amplitude
from turngap.core.clock import NS_PER_S
from turngap.live.handset import (
    AdaptiveDetector,
    Decimator,
    DeviceClock,
    Handset,
    Noise,
    Playout,
    Swap,
)
from turngap.live.sound import BLOCK, DEVICE_RATE, Block

CUTS = st.lists(st.integers(1, 700), min_size=1, max_size=30)


def sine(hz: float, ms: float, rate: int = DEVICE_RATE, amplitude: float = 8000) -> Pcm:
    t = np.arange(round(rate * ms / 1000)) / rate
    return np.rint(np.sin(2 * np.pi * hz * t) * amplitude).astype(np.int16)


def block(mic: Pcm, at_ns: int = 0, round_trip_ns: int = 0) -> Block:
    return Block(mic, at_ns, at_ns + round_trip_ns)


@given(cuts=CUTS)
def test_the_line_gets_the_same_however_the_device_cuts_its_blocks(cuts: list[int]) -> None:
    whole = sine(300, 300)[: sum(cuts)]
    decimator, pieces, at = Decimator(), [], 0
    for cut in cuts:
        pieces.append(decimator.feed(whole[at : at + cut]))
        at += cut
    assert np.array_equal(np.concatenate(pieces), Decimator().feed(whole))


def test_the_line_gets_speech_as_it_is_and_nothing_that_would_alias() -> None:
    heard = Decimator().feed(sine(1000, 500))[200:]
    assert len(heard) == pytest.approx(RATE * 0.5 - 200, abs=1)
    assert np.abs(heard).max() == pytest.approx(8000, rel=0.02)
    assert np.abs(Decimator().feed(sine(11_000, 500))[200:]).max() < 80


@given(
    sizes=st.lists(st.integers(1, 900), min_size=1, max_size=12),
    rate=st.sampled_from([16_000, 22_050, 24_000, 48_000]),
)
def test_all_that_came_is_played_once_and_in_its_place(sizes: list[int], rate: int) -> None:
    playout, sample = Playout(), 0
    for size in sizes:
        playout.add(sample, np.full(size, 1000, np.int16), rate, received_ns=sample)
        sample += size
    played: list[Pcm] = []
    places = []
    for _ in range(sum(sizes) * DEVICE_RATE // rate // BLOCK + 2):
        pcm, sounded = playout.take(BLOCK)
        places += [(len(played) * BLOCK + s.offset, s) for s in sounded]
        played.append(pcm)
    assert all(len(pcm) == BLOCK for pcm in played)
    loud = np.count_nonzero(np.concatenate(played))
    # The resampler keeps up to a few samples at the end.
    assert loud == pytest.approx(sum(sizes) * DEVICE_RATE / rate, abs=12)
    for at, place in places:
        assert place.sample == pytest.approx(at * rate / DEVICE_RATE, abs=2 + len(sizes))
        assert place.received_ns <= place.sample


def test_what_is_flushed_is_not_played() -> None:
    playout = Playout()
    playout.add(0, np.full(24_000, 1000, np.int16), 24_000, 0)
    assert playout.take(BLOCK)[0].any()
    playout.flush()
    pcm, sounded = playout.take(BLOCK)
    assert not pcm.any()
    assert sounded == ()
    playout.add(24_000, np.full(2400, 1000, np.int16), 24_000, 0)
    assert playout.take(BLOCK)[1][0].sample == 24_000


def test_the_device_may_use_its_buffer_again() -> None:
    swaps: list[Swap] = []
    handset = Handset(swaps.append)
    buffer = np.full(BLOCK, 7, np.int16)
    handset.exchange(block(buffer))
    buffer[:] = 0
    assert swaps[0].block.mic[0] == 7


def test_the_clock_counts_samples_and_not_the_drivers_jittering_stamps() -> None:
    clock, rng = DeviceClock(), np.random.default_rng(1)
    begun_ns = 77 * NS_PER_S
    for n in range(300):
        at_ns = n * BLOCK * NS_PER_S // DEVICE_RATE
        jitter_ns = int(rng.integers(-3_000_000, 3_000_000))
        stamped = Block(
            np.zeros(BLOCK, np.int16), at_ns + jitter_ns, at_ns + jitter_ns + 25_000_000
        )
        wait_ns = int(rng.integers(0, 20_000_000))
        clock.add(stamped, begun_ns + at_ns + 10_000_000 + wait_ns)
    assert clock.round_trip_ns == 25_000_000
    assert clock.heard_ns(DEVICE_RATE) == NS_PER_S
    assert clock.played_ns(DEVICE_RATE) == NS_PER_S + 25_000_000
    # The least wait there was is what the clocks are compared by.
    assert 0 <= clock.machine_ns - begun_ns < 500_000
    assert clock.now_ns(begun_ns + NS_PER_S) == pytest.approx(NS_PER_S, abs=500_000)


def noise(ms: float, dbfs: float) -> Pcm:
    n = round(DEVICE_RATE * ms / 1000)
    amplitude = dbfs_to_amplitude(dbfs)
    return np.rint(np.random.default_rng(2).standard_normal(n) * amplitude).astype(np.int16)


def events_of(pcm: Pcm) -> list[tuple[type, float]]:
    detector, found = AdaptiveDetector(), []
    for first in range(0, len(pcm), BLOCK):
        found += detector.feed(pcm[first : first + BLOCK])
    return [(type(e), e.sample * 1000 / DEVICE_RATE) for e in found]


@pytest.mark.parametrize("room_dbfs", [LINE_FLOOR_DBFS, -45, -38, -30])
def test_a_voice_is_found_in_a_quiet_room_and_in_a_loud_one(room_dbfs: float) -> None:
    room = noise(6000, room_dbfs)
    first = 4 * DEVICE_RATE
    room[first : first + DEVICE_RATE] += sine(300, 1000)
    found = events_of(room)
    assert [kind for kind, _ in found] == [SpeechStart, SpeechEnd]
    # A window of 10 ms with the voice in it lends audibility to the noise beside it.
    assert found[0][1] == pytest.approx(4000, abs=11)
    assert found[1][1] == pytest.approx(5000, abs=11)


def test_a_fan_that_starts_is_found_out_to_be_no_voice() -> None:
    quiet, fan = noise(2000, LINE_FLOOR_DBFS), noise(8000, -32)
    first = 6 * DEVICE_RATE
    fan[first - 2 * DEVICE_RATE : first - DEVICE_RATE] += sine(300, 1000)
    found = events_of(np.concatenate((quiet, fan)))
    kinds = [kind for kind, _ in found]
    assert kinds[:2] == [SpeechStart, Noise]
    assert kinds[2:] == [SpeechStart, SpeechEnd]
    assert found[2][1] == pytest.approx(6000, abs=11)


def test_one_who_speaks_at_length_is_no_fan() -> None:
    speech = noise(9000, LINE_FLOOR_DBFS)
    for second in range(2, 8):  # with a stop of 60 ms in each second
        first = second * DEVICE_RATE
        speech[first : first + round(0.94 * DEVICE_RATE)] += sine(300, 940)
    kinds = [kind for kind, _ in events_of(speech)]
    assert kinds == [SpeechStart, SpeechEnd]
