import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turngap.core.audio import (
    AUDIBLE_DBFS,
    LINE_FLOOR_DBFS,
    Pcm,
    SpeechDetector,
    SpeechEnd,
    SpeechStart,
    audible_end,
    audible_onset,
    audible_samples,
    dbfs_to_amplitude,
    rms_dbfs,
    window_samples,
)

RATES = st.sampled_from([8_000, 16_000, 24_000, 44_100, 48_000])
THRESHOLD = dbfs_to_amplitude(AUDIBLE_DBFS)


def silence(samples: int) -> Pcm:
    return np.zeros(samples, dtype=np.int16)


def buzz(samples: int, dbfs: float = -20.0) -> Pcm:
    """A square wave: loud from its first sample to its last."""
    signs = np.where(np.arange(samples) // 20 % 2 == 0, 1, -1)
    return (signs * dbfs_to_amplitude(dbfs)).astype(np.int16)


def noise(samples: int, dbfs: float, seed: int = 0) -> Pcm:
    white = np.random.default_rng(seed).standard_normal(samples)
    return np.rint(white * dbfs_to_amplitude(dbfs)).astype(np.int16)


@st.composite
def lines(draw: st.DrawFn, rate: int = 8_000) -> Pcm:
    """A line's audio at 8 kHz: stretches of silence, noise, sound and clicks, near every edge."""
    window = window_samples(rate)
    pieces: list[Pcm] = [silence(0)]
    for _ in range(draw(st.integers(0, 8))):
        length = draw(st.integers(0, 5 * window))
        kind = draw(st.sampled_from(["silence", "noise", "near", "buzz", "click", "max"]))
        seed = draw(st.integers(0, 99))
        piece = {
            "silence": silence(length),
            "noise": noise(length, -55.0, seed),
            "near": noise(length, AUDIBLE_DBFS, seed),
            "buzz": buzz(length, -25.0),
            "click": buzz(min(length, 4), 0.0),
            "max": np.full(min(length, 30), -32768, dtype=np.int16),
        }[kind]
        pieces.append(piece)
    return np.concatenate(pieces)


# --- onset and end ----------------------------------------------------------------------------


@given(
    rate=RATES,
    before=st.integers(0, 20_000),
    sound_ms=st.integers(11, 400),
    after=st.integers(0, 20_000),
    dbfs=st.floats(-38.0, 0.0),
)
def test_abrupt_sound_is_found_to_the_sample(
    rate: int, before: int, sound_ms: int, after: int, dbfs: float
) -> None:
    sound = buzz(rate * sound_ms // 1000, dbfs)
    pcm = np.concatenate((silence(before), sound, silence(after)))
    assert audible_onset(pcm, rate) == before
    assert audible_end(pcm, rate) == before + len(sound) - 1


@given(before=st.integers(0, 5_000), after=st.integers(0, 5_000), seed=st.integers(0, 99))
def test_noise_below_the_level_moves_neither_edge(before: int, after: int, seed: int) -> None:
    around = [noise(n, LINE_FLOOR_DBFS, seed) for n in (before, after)]
    pcm = np.concatenate((around[0], buzz(1600), around[1]))
    assert audible_onset(pcm, 16_000) == before
    assert audible_end(pcm, 16_000) == before + 1599


def test_a_tone_that_swells_is_found_where_it_crosses_the_level() -> None:
    rate = 16_000
    t = np.arange(rate) / rate
    swell = np.rint(np.sin(2 * np.pi * 440 * t) * t * 8000).astype(np.int16)
    onset = audible_onset(swell, rate)
    assert onset is not None
    assert abs(swell[onset]) >= THRESHOLD
    # The envelope's RMS passes the level at this instant; a window more or less around it is it.
    crossing = THRESHOLD * math.sqrt(2) / 8000 * rate
    assert abs(onset - crossing) <= window_samples(rate)


@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
@pytest.mark.parametrize("dbfs", [-45.0, -58.0])
def test_noise_below_the_level_is_not_speech(rate: int, dbfs: float) -> None:
    assert audible_onset(noise(10 * rate, dbfs), rate) is None
    assert audible_end(noise(10 * rate, dbfs), rate) is None


@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
@pytest.mark.parametrize("click_ms", [0.1, 0.3, 0.6])
def test_a_click_is_not_speech_however_loud(rate: int, click_ms: float) -> None:
    click = np.full(int(rate * click_ms / 1000), -32768, dtype=np.int16)
    pcm = np.concatenate((silence(rate), click, silence(rate)))
    assert audible_onset(pcm, rate) is None
    # Nor do clicks move the edges of speech that they stand well clear of.
    pcm = np.concatenate((pcm, buzz(rate), pcm))
    assert audible_onset(pcm, rate) == 2 * rate + len(click)
    assert audible_end(pcm, rate) == 3 * rate + len(click) - 1


def test_a_short_loud_sound_is_more_than_a_click() -> None:
    pcm = np.concatenate((silence(500), buzz(48, -10.0), silence(500)))  # 3 ms at 16 kHz
    assert (audible_onset(pcm, 16_000), audible_end(pcm, 16_000)) == (500, 547)


@given(lines())
def test_the_end_is_the_onset_of_the_audio_played_backwards(pcm: Pcm) -> None:
    end = audible_end(pcm, 8_000)
    backwards = audible_onset(pcm[::-1], 8_000)
    assert end == (None if backwards is None else len(pcm) - 1 - backwards)


@given(lines(), st.integers(0, 2_000))
def test_more_silence_around_moves_the_edges_by_just_that(pcm: Pcm, pad: int) -> None:
    onset, end = audible_onset(pcm, 8_000), audible_end(pcm, 8_000)
    padded = np.concatenate((silence(pad), pcm, silence(pad)))
    if len(pcm) < window_samples(8_000):
        return  # less than a window is nothing to judge; the padding makes it one
    assert audible_onset(padded, 8_000) == (None if onset is None else onset + pad)
    assert audible_end(padded, 8_000) == (None if end is None else end + pad)


@pytest.mark.parametrize("samples", [0, 1, 79])
def test_less_than_a_window_is_nothing_to_judge(samples: int) -> None:
    assert audible_onset(buzz(samples), 8_000) is None
    assert audible_end(buzz(samples), 8_000) is None


def test_the_quietest_sample_there_is_does_not_overflow() -> None:
    pcm = np.full(1600, -32768, dtype=np.int16)
    assert (audible_onset(pcm, 16_000), audible_end(pcm, 16_000)) == (0, 1599)
    assert rms_dbfs(pcm) == 0.0


# --- levels -----------------------------------------------------------------------------------


@given(st.floats(-60.0, -1.0), st.integers(200, 5_000))
def test_level_of_a_square_wave_is_its_amplitude(dbfs: float, samples: int) -> None:
    assert rms_dbfs(buzz(samples, dbfs)) == pytest.approx(dbfs, abs=0.3)


# --- the detector -----------------------------------------------------------------------------

Events = list[SpeechStart | SpeechEnd]


def detect(pcm: Pcm, cuts: list[int], *, gap_ms: float = 30.0) -> Events:
    """All events of `pcm`, fed in pieces that end at `cuts`, then cut off."""
    detector = SpeechDetector(8_000, gap_ms=gap_ms)
    edges = [0, *sorted(min(c, len(pcm)) for c in cuts), len(pcm)]
    events: Events = []
    for a, b in pairwise(edges):
        events += detector.feed(pcm[a:b])
    return events + detector.cut()


@given(lines(), st.lists(st.integers(0, 3_300), max_size=12))
@example(buzz(400), list(range(400)))
def test_events_do_not_depend_on_how_the_stream_is_cut(pcm: Pcm, cuts: list[int]) -> None:
    assert detect(pcm, cuts) == detect(pcm, [])


def known(pcm: Pcm, gap: int) -> Events:
    """Return what a stream at 8 kHz shows once these samples are there, by its definition."""
    window = window_samples(8_000)
    judged = max(0, len(pcm) - window + 1)
    events: Events = []
    last: int | None = None
    audible = audible_samples(pcm, window, THRESHOLD)
    for i in [*audible[audible < judged].tolist(), judged]:
        if last is not None and i - last > gap:
            events.append(SpeechEnd(last))
            last = None
        if i < judged:
            if last is None:
                events.append(SpeechStart(i))
            last = i
    return events


@given(lines(), st.lists(st.integers(0, 3_300), max_size=12))
@example(np.concatenate((buzz(800), silence(900), buzz(800))), list(range(0, 2_500, 20)))
def test_each_event_is_told_as_soon_as_it_is_known(pcm: Pcm, cuts: list[int]) -> None:
    detector, told = SpeechDetector(8_000, gap_ms=30), list[SpeechStart | SpeechEnd]()
    for a, b in pairwise([0, *sorted(min(c, len(pcm)) for c in cuts), len(pcm)]):
        told += detector.feed(pcm[a:b])
        assert told == known(pcm[:b], 240)
        assert detector.speaking == (bool(told) and isinstance(told[-1], SpeechStart))


@given(lines(), st.lists(st.integers(0, 3_300), max_size=6))
def test_it_agrees_with_onset_and_end_of_the_whole(pcm: Pcm, cuts: list[int]) -> None:
    events = detect(pcm, cuts)
    onset, end = audible_onset(pcm, 8_000), audible_end(pcm, 8_000)
    if onset is None or end is None:
        assert events == []
    else:
        assert (events[0], events[-1]) == (SpeechStart(onset), SpeechEnd(end))


@given(lines(), st.lists(st.integers(0, 3_300), max_size=6))
def test_starts_and_ends_alternate_with_a_gap_between(pcm: Pcm, cuts: list[int]) -> None:
    events = detect(pcm, cuts)
    assert [type(e) for e in events] == [SpeechStart, SpeechEnd] * (len(events) // 2)
    for before, after in pairwise(events):
        if isinstance(before, SpeechStart):
            assert after.sample >= before.sample
        else:
            assert after.sample - before.sample > 240  # gap_ms at 8 kHz


@pytest.mark.parametrize("cuts", [[], list(range(0, 4_000, 100))])
@pytest.mark.parametrize(("pause", "speeches"), [(2_400, 1), (2_401, 2)])
def test_a_pause_ends_speech_only_when_longer_than_the_gap(
    pause: int, speeches: int, cuts: list[int]
) -> None:
    # From the last sample of the first to the first of the second lie `pause` samples.
    pcm = np.concatenate((buzz(800), silence(pause - 1), buzz(800)))
    assert len(detect(pcm, cuts, gap_ms=300.0)) == 2 * speeches


def test_events_come_as_soon_as_they_can_be_known() -> None:
    detector = SpeechDetector(8_000, gap_ms=100.0)
    assert detector.feed(np.concatenate((silence(100), buzz(79)))) == []
    assert detector.feed(buzz(1)) == [SpeechStart(100)]  # its window of 10 ms is full
    assert detector.speaking
    assert detector.feed(silence(800 + 79 - 1)) == []
    assert detector.feed(silence(2)) == [SpeechEnd(179)]
    assert not detector.speaking


def test_after_a_cut_positions_go_on_and_nothing_is_shared_across_it() -> None:
    detector = SpeechDetector(8_000)
    assert detector.feed(buzz(400)) == [SpeechStart(0)]
    assert detector.cut() == [SpeechEnd(399)]
    assert not detector.speaking
    assert detector.cut() == []
    # 5 ms before the cut and 5 ms after it are no 10 ms of sound.
    assert detector.feed(buzz(40)) == []
    assert detector.cut() == []
    assert detector.feed(np.concatenate((buzz(40), silence(400)))) == [SpeechStart(440)]
    assert detector.cut() == [SpeechEnd(479)]


def test_a_cut_reports_what_was_not_judged_yet() -> None:
    detector = SpeechDetector(8_000)
    assert detector.feed(np.concatenate((silence(100), buzz(70)))) == []
    assert detector.cut() == [SpeechStart(100), SpeechEnd(169)]


def test_silence_has_no_level():
    assert rms_dbfs(silence(8_000)) == -math.inf
    assert rms_dbfs(silence(0)) == -math.inf
