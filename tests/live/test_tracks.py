"""A track: what is read does not depend on how it came."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.clock import samples_to_ns
from turngap.live.conversation import Track

SIZES = st.lists(st.integers(1, 500), min_size=1, max_size=20)


def ramp(n: int) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return (np.arange(n) % 30_000 + 1).astype(np.int16)


def track_of(sizes: list[int], rate: int = 16_000) -> Track:
    track, whole = Track(), ramp(sum(sizes))
    for size in sizes:
        track.append(whole[track.total : track.total + size], rate, mic_at=track.total)
    return track


@given(sizes=SIZES, start=st.integers(-50, 5000), length=st.integers(0, 6000))
def test_what_is_read_does_not_depend_on_the_pieces(
    sizes: list[int], start: int, length: int
) -> None:
    whole = ramp(sum(sizes))
    wanted = np.zeros(length, np.int16)
    low, high = max(0, start), min(len(whole), start + length)
    if low < high:
        wanted[low - start : high - start] = whole[low:high]
    assert np.array_equal(track_of(sizes).read(start, start + length), wanted)


@given(sizes=SIZES, start=st.integers(0, 3000), samples=st.integers(1, 3000))
def test_what_was_played_keeps_its_place_in_time(
    sizes: list[int], start: int, samples: int
) -> None:
    rate, at_ns = 24_000, 7_000_000_000
    for piece in track_of(sizes, rate).played(start, samples, at_ns):
        offset = int(piece.pcm[0]) - 1 - start  # the ramp's own position
        assert piece.start_ns == at_ns + samples_to_ns(offset, rate)
        assert piece.rate == rate
    total = sum(len(p.pcm) for p in track_of(sizes, rate).played(start, samples, at_ns))
    assert total == max(0, min(sum(sizes), start + samples) - start)


@given(sizes=SIZES, before=st.integers(0, 5000))
def test_what_is_forgotten_reads_as_silence_and_the_rest_stays(
    sizes: list[int], before: int
) -> None:
    track, total = track_of(sizes), sum(sizes)
    track.forget_before(before)
    kept = track.read(0, total)
    assert np.array_equal(kept[min(before, total) :], ramp(total)[min(before, total) :])
    assert track.total == total


def test_as_sent_never_overlaps() -> None:
    track = Track()
    for mic_at in (0, 0, 320, 16_000):
        track.append(ramp(2400), 24_000, mic_at)  # 100 ms each, faster than they sound
    pieces = track.as_sent(0, 16_000)
    starts_ms = [p.start_ns / 1e6 for p in pieces]
    assert starts_ms == [0, 100, 200, 1000]
    assert len(track.as_sent(1000, 16_000)) == 1
