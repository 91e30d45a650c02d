"""Melody of a voice where it falls silent, on voices made of harmonics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.audio import Pcm
from turngap_services.turn.voice import Melody, melody_of

RATE = 16_000


def sung(*pitch: float, ms: float = 1200, db: float = -20.0, rate: int = RATE) -> Pcm:
    """A voice whose last 300 ms move from the first pitch, in Hz, to the last."""
    t = np.arange(round(ms * rate / 1000)) / rate
    hz = np.interp(t, [0, t[-1] - 0.3, t[-1]], [pitch[0], pitch[0], pitch[-1]])
    phase = 2 * np.pi * np.cumsum(hz) / rate
    wave = sum(np.sin(n * phase) / n for n in range(1, 9))
    noise = np.random.default_rng(0).normal(0, 0.003, len(t))
    return ((wave / 2 + noise) * 32768 * 10 ** (db / 20)).astype(np.int16)


def melody(pcm: Pcm, rate: int = RATE) -> Melody:
    found = melody_of(pcm, rate)
    assert found is not None
    return found


@pytest.mark.parametrize("hz", [80, 120, 200, 300])
@pytest.mark.parametrize("semitones", [-5, 0, 5])
def test_falls_and_rises_are_told_in_semitones(hz: float, semitones: float) -> None:
    found = melody(sung(hz, hz * 2 ** (semitones / 12)))
    # The last 60 ms lie before the very end.
    assert found.pitch == pytest.approx(semitones * 0.85, abs=0.8)
    assert np.sign(round(found.falls)) == np.sign(semitones)


@given(st.floats(-45, -8))
def test_how_loud_the_voice_is_changes_nothing(db: float) -> None:
    one, other = melody(sung(120, 90)), melody(sung(120, 90, db=db))
    assert other.pitch == pytest.approx(one.pitch, abs=0.3)
    assert other.loudness == pytest.approx(one.loudness, abs=0.5)


def test_a_voice_that_fades_grows_softer() -> None:
    fading = sung(120) * np.concatenate((np.ones(RATE), np.linspace(1, 0.05, RATE // 5)))
    assert melody(fading.astype(np.int16)).loudness < -5 < melody(sung(120)).loudness


def test_the_last_voiced_stretch_is_measured() -> None:
    gap = np.zeros(RATE // 10, np.int16)
    found = melody(np.concatenate((sung(120, ms=600), gap, sung(120, ms=300))))
    assert found.voiced_ms == pytest.approx(300, abs=40)


def test_a_telephones_rate_says_the_same() -> None:
    assert melody(sung(120, 90, rate=8000), 8000).pitch == pytest.approx(
        melody(sung(120, 90)).pitch, abs=0.3
    )


@pytest.mark.parametrize("ms", [0, 5, 30, 500])
def test_what_has_no_pitch_has_no_melody(ms: float) -> None:
    hiss = np.random.default_rng(0).normal(0, 3000, round(ms * 16)).astype(np.int16)
    assert melody_of(hiss, RATE) is None
    assert melody_of(np.zeros(len(hiss), np.int16), RATE) is None
