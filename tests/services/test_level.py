import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turngap.core.audio import Pcm, rms_dbfs
from turngap_services.sound import TARGET_DBFS, Levelled

RATE = 16_000
NOTHING = np.empty(0, np.int16)


def tone(dbfs: float, seconds: float) -> Pcm:
    t = np.arange(round(RATE * seconds)) / RATE
    amplitude = 32768 * np.sqrt(2) * 10 ** (dbfs / 20)
    return np.rint(amplitude * np.sin(2 * np.pi * 200 * t)).astype(np.int16)


def levelled(pcm: Pcm, known: Pcm = NOTHING, packet: int = 320) -> Pcm:
    level = Levelled(RATE, known)
    pieces = [level.feed(pcm[at : at + packet]) for at in range(0, len(pcm), packet)]
    return np.concatenate((*pieces, level.flush()))


@pytest.mark.parametrize("dbfs", [-5, -20, -45, -55])
def test_a_voice_comes_out_at_one_level_from_its_first_sample(dbfs: float) -> None:
    voice = tone(dbfs, 0.5)
    heard = levelled(voice, known=voice[:4000])
    assert rms_dbfs(heard) == pytest.approx(TARGET_DBFS, abs=0.2)
    assert rms_dbfs(heard[:160]) == pytest.approx(TARGET_DBFS, abs=0.2)


def test_a_pause_keeps_the_gain_and_a_louder_word_lowers_it_within_30_ms() -> None:
    soft, pause, loud = tone(-40, 0.3), tone(-70, 1.0), tone(-20, 0.3)
    heard = levelled(np.concatenate((soft, pause, loud)), known=soft)
    assert rms_dbfs(heard[5000:20_000]) == pytest.approx(-50, abs=0.2)
    assert rms_dbfs(heard[20_800 + 480 :]) == pytest.approx(TARGET_DBFS, abs=0.2)


def test_neither_silence_nor_a_rustle_is_raised_to_the_level_of_a_voice() -> None:
    assert not levelled(np.zeros(RATE, np.int16)).any()
    rustle = tone(-80, 1.0)
    assert rms_dbfs(levelled(rustle, known=rustle)) < -39


def test_nothing_wraps_full_scale_around() -> None:
    loud = np.full(RATE, 32_767, np.int16)
    assert levelled(loud).min() > 0
    # A sudden shout, before the gain has followed.
    assert levelled(np.concatenate((tone(-50, 0.2), loud)), known=tone(-50, 0.2)).max() == 32_767


@given(
    lengths=st.lists(st.integers(0, 700), max_size=30),
    known=st.integers(0, 3000),
    seed=st.integers(0, 9),
)
def test_how_the_stream_is_cut_changes_nothing(lengths: list[int], known: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pcm = (rng.normal(0, 1, sum(lengths)) * rng.uniform(0, 9000)).astype(np.int16)
    level = Levelled(RATE, pcm[:known])
    cuts = np.split(pcm, np.cumsum(lengths)[:-1]) if lengths else []
    heard = np.concatenate((*(level.feed(piece) for piece in cuts), level.flush()))
    assert len(heard) == len(pcm)
    assert np.array_equal(heard, levelled(pcm, known=pcm[:known]))
