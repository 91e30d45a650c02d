"""Between a sound device and a conversation: no sample lost, none out of its place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.caller.stream import RATE
from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, SpeechEnd, SpeechStart, dbfs_to_amplitude
from turngap.live.handset import (
    AdaptiveDetector,
    Decimator,
    Handset,
    Noise,
    Playout,
)
from turngap.live.sound import BLOCK, DEVICE_RATE, Block

CUTS = st.lists(st.integers(1, 700), min_size=1, max_size=30)


def sine(hz: float, ms: float, rate: int = DEVICE_RATE, amplitude: float = 8000) -> Pcm:
    t = np.arange(round(rate * ms / 1000)) / rate
    return np.rint(np.sin(2 * np.pi * hz * t) * amplitude).astype(np.int16)


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
def test_all_that_came_is_played_once(sizes: list[int], rate: int) -> None:
    playout = Playout()
    for size in sizes:
        playout.add(np.full(size, 1000, np.int16), rate)
    blocks = sum(sizes) * DEVICE_RATE // rate // BLOCK + 2
    played = [playout.take(BLOCK) for _ in range(blocks)]
    assert all(len(pcm) == BLOCK for pcm in played)
    loud = np.count_nonzero(np.concatenate(played))
    # The resampler keeps up to a few samples at the end.
    assert loud == pytest.approx(sum(sizes) * DEVICE_RATE / rate, abs=12)


def test_the_device_may_use_its_buffer_again() -> None:
    blocks: list[Block] = []
    handset = Handset(blocks.append)
    buffer = np.full(BLOCK, 7, np.int16)
    handset.exchange(Block(buffer))
    buffer[:] = 0
    assert blocks[0].mic[0] == 7


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
