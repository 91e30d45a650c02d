"""Speech found in a recording, and warnings about it."""

import re

import numpy as np
import pytest
import scipy.ndimage
import scipy.signal
import soxr
from hypothesis import given
from hypothesis import strategies as st

from helpers.made_speech import RATE, louder, room, spoken
from turngap.core.audio import Pcm
from turngap.scenario import speech
from turngap.scenario.speech import DIGITAL_SILENCE_MS, FoundSpeech, digital_silence, find_speech

# On the shipped recordings the rule is within 10 ms of what is exact by construction.
NEAR_MS = 15.0


def found(pcm: Pcm, rate: int = RATE) -> FoundSpeech:
    speech = find_speech(pcm, rate)
    assert speech is not None
    return speech


def kinds(speech: FoundSpeech) -> set[str]:
    return {warning.kind for warning in speech.warnings}


def fricative(ms: float, dbfs: float) -> Pcm:
    """An "s": noise above 4 kHz."""
    noise = np.random.default_rng(5).normal(size=round(ms * RATE / 1000))
    sos = scipy.signal.butter(6, 4000, "highpass", fs=RATE, output="sos")
    hiss = scipy.signal.sosfilt(sos, noise)
    return np.rint(hiss / np.std(hiss) * 32768 * 10 ** (dbfs / 20)).astype(np.int16)


def thump(peak: float) -> Pcm:
    """A knock on the table: 90 Hz that die away within 100 ms."""
    t = np.arange(RATE // 8) / RATE
    return np.rint(peak * np.sin(2 * np.pi * 90 * t) * np.exp(-t / 0.03)).astype(np.int16)


def mixed(pcm: Pcm, sound: Pcm, at_ms: float) -> Pcm:
    wide, first = pcm.astype(np.int32), round(at_ms * RATE / 1000)
    wide[first : first + len(sound)] += sound
    return np.clip(wide, -32768, 32767).astype(np.int16)


def test_speech_is_found_where_it_is() -> None:
    pcm, start_ms, end_ms = spoken()
    speech = found(pcm)
    assert abs(speech.bounds.start_ms - start_ms) <= NEAR_MS
    assert abs(speech.bounds.end_ms - end_ms) <= NEAR_MS
    assert speech.pauses == ()
    assert speech.warnings == ()
    assert speech.snr_db > 20


def test_the_error_covers_the_truth() -> None:
    pcm, start_ms, end_ms = spoken()
    bounds = found(pcm).bounds
    assert bounds.start_error_ms is not None and bounds.end_error_ms is not None
    assert abs(bounds.start_ms - start_ms) <= bounds.start_error_ms <= 100
    assert abs(bounds.end_ms - end_ms) <= bounds.end_error_ms <= 100


@pytest.mark.parametrize("db", [-20, -10, 6, 12])
def test_the_level_does_not_matter(db: float) -> None:
    pcm = spoken().pcm
    as_it_is, changed = found(pcm).bounds, found(louder(pcm, db)).bounds
    assert abs(changed.start_ms - as_it_is.start_ms) <= 10
    assert abs(changed.end_ms - as_it_is.end_ms) <= 10


@pytest.mark.parametrize("rate", [8000, 22_050, 44_100, 48_000])
def test_the_rate_does_not_matter(rate: int) -> None:
    pcm, start_ms, end_ms = spoken()
    bounds = found(soxr.resample(pcm, RATE, rate), rate).bounds
    # At 8 kHz there is no fricative left to hear.
    assert abs(bounds.start_ms - start_ms) <= 30
    assert abs(bounds.end_ms - end_ms) <= 30


def test_a_final_fricative_is_speech() -> None:
    pcm, _, end_ms = spoken(after_ms=600)
    # As weak beside the vowels as people's are: 30 dB.
    speech = found(mixed(pcm, fricative(120, -42), end_ms))
    assert abs(speech.bounds.end_ms - (end_ms + 120)) <= 25


@pytest.mark.parametrize("peak", [8000, 30_000])
def test_a_thump_is_not_speech(peak: float) -> None:
    pcm, start_ms, end_ms = spoken(before_ms=900, after_ms=900)
    pcm = mixed(mixed(pcm, thump(peak), 300), thump(peak), end_ms + 400)
    bounds = found(pcm).bounds
    assert abs(bounds.start_ms - start_ms) <= 30
    assert abs(bounds.end_ms - end_ms) <= 30


def test_a_murmur_in_the_background_is_not_speech() -> None:
    pcm, _, end_ms = spoken(after_ms=3000)
    murmur = louder(spoken(before_ms=20, after_ms=50).pcm, -26)
    speech = found(mixed(pcm, murmur, end_ms + 700))
    assert abs(speech.bounds.end_ms - end_ms) <= 30
    # It may have been the person: where it was is said.
    (text,) = [str(warning) for warning in speech.warnings if warning.kind == "left_out"]
    from_ms, to_ms = map(int, re.findall(r"\d+", text))
    assert end_ms + 600 < from_ms < end_ms + 900 < to_ms < end_ms + 2500


@pytest.mark.parametrize("db", [-6, -12, -15, -18])
@pytest.mark.parametrize("pause_ms", [400, 1500])
def test_a_soft_word_after_a_long_pause_is_speech(db: float, pause_ms: float) -> None:
    pcm, start_ms, end_ms = spoken(after_ms=pause_ms + 1500)
    word = spoken().pcm[round(start_ms * RATE / 1000) :][: RATE * 200 // 1000]
    speech = found(mixed(pcm, louder(word, db), end_ms + pause_ms))
    assert abs(speech.bounds.end_ms - (end_ms + pause_ms + 200)) <= 100
    assert len(speech.pauses) == 1


def test_what_is_too_short_to_have_bounds_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    probability, levels = np.zeros(1000), np.full((3, 1000), -80.0)
    for stretch in (slice(100, 300), slice(600, 607)):
        probability[stretch], levels[:, stretch] = 0.9, -20.0
    made = speech._Sound(probability, levels, np.full(1000, True))
    monkeypatch.setattr(speech, "_sound", lambda *_: made)
    label = found(spoken().pcm)
    assert label.bounds.end_ms < 1600
    assert "left_out" in kinds(label)


def test_a_pause_within_the_turn_is_named() -> None:
    first, second = spoken(after_ms=300), spoken(before_ms=300)
    speech = found(np.concatenate((first.pcm, second.pcm)))
    offset_ms = len(first.pcm) * 1000 / RATE
    (pause,) = speech.pauses
    assert abs(pause.start_ms - first.end_ms) <= 30
    assert abs(pause.end_ms - (offset_ms + second.start_ms)) <= 30
    assert speech.bounds.start_ms < pause.start_ms < pause.end_ms < speech.bounds.end_ms


def test_the_closure_of_a_stop_is_no_pause() -> None:
    first, second = spoken(after_ms=60), spoken(before_ms=60)
    assert found(np.concatenate((first.pcm, second.pcm))).pauses == ()


def test_speech_at_the_files_edge_is_warned_of() -> None:
    pcm, start_ms, end_ms = spoken()
    cut = pcm[round((start_ms + 60) * RATE / 1000) : round((end_ms - 60) * RATE / 1000)]
    texts = [str(warning) for warning in found(cut).warnings if warning.kind == "edge"]
    assert len(texts) == 2
    assert "begins at the file's edge" in texts[0]
    assert "ends at the file's edge" in texts[1]


def test_clipping_is_warned_of() -> None:
    pcm = spoken().pcm
    assert "clipping" in kinds(found(louder(pcm, 20)))
    # Also where somebody has turned it down since.
    assert "clipping" in kinds(found(louder(louder(pcm, 20), -12)))
    assert "clipping" not in kinds(found(pcm))


def test_digital_silence_is_warned_of_and_not_taken_for_the_noise() -> None:
    pcm = spoken().pcm
    silent = np.zeros(RATE // 2, dtype=np.int16)
    as_it_is, cut = found(pcm), found(np.concatenate((silent, pcm, silent)))
    assert "digital_silence" in kinds(cut)
    assert abs(cut.snr_db - as_it_is.snr_db) < 3
    assert abs(cut.bounds.end_ms - 500 - as_it_is.bounds.end_ms) <= 10


def test_a_low_signal_to_noise_ratio_is_warned_of_and_widens_the_error() -> None:
    pcm, _, end_ms = spoken()
    noisy = mixed(pcm, room(len(pcm) * 1000 / RATE, -30), 0)
    speech, clean = found(noisy), found(pcm)
    assert "low_snr" in kinds(speech)
    assert speech.snr_db < clean.snr_db - 10
    error_ms, clean_ms = speech.bounds.end_error_ms, clean.bounds.end_error_ms
    assert error_ms is not None and clean_ms is not None
    assert abs(speech.bounds.end_ms - end_ms) <= error_ms
    assert error_ms > clean_ms


def test_a_recording_that_holds_nothing_but_speech_says_so() -> None:
    pcm, start_ms, end_ms = spoken()
    cut = pcm[round((start_ms + 100) * RATE / 1000) : round((end_ms - 100) * RATE / 1000)]
    assert "no_silence" in kinds(found(cut))


@pytest.mark.parametrize(
    "pcm",
    [
        np.zeros(0, dtype=np.int16),
        np.ones(1, dtype=np.int16),
        np.full(400, 9000, dtype=np.int16),
        np.zeros(RATE, dtype=np.int16),
        np.full(RATE, 12_000, dtype=np.int16),
        room(2000),
        room(2000, -20),
        thump(30_000),
    ],
    ids=["empty", "one sample", "too short", "silence", "offset", "room", "noise", "thump"],
)
def test_where_nobody_speaks_nothing_is_found(pcm: Pcm) -> None:
    assert find_speech(pcm, RATE) is None


def test_bounds_never_leave_the_recording() -> None:
    pcm, start_ms, end_ms = spoken()
    for rate in (8000, 11_025, 16_000, 44_100):
        cut = pcm[round((start_ms + 100) * RATE / 1000) : round((end_ms - 100) * RATE / 1000)]
        cut = soxr.resample(cut, RATE, rate)
        bounds = found(cut, rate).bounds
        assert 0 <= bounds.start_ms < bounds.end_ms <= len(cut) * 1000 / rate


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=200), st.sampled_from([100, 500, 16_000]))
def test_digital_silence_is_where_no_two_samples_of_30_ms_differ_by_more_than_2(
    samples: list[int], rate: int
) -> None:
    pcm, size = np.array(samples, np.int16), max(1, rate * DIGITAL_SILENCE_MS // 1000)
    high = scipy.ndimage.maximum_filter1d(pcm, size, mode="nearest")
    low = scipy.ndimage.minimum_filter1d(pcm, size, mode="nearest")
    still = scipy.ndimage.maximum_filter1d(high - low <= 2, size, mode="nearest")
    assert np.array_equal(digital_silence(pcm, rate), still)
