"""Silero's answers, remembered: the agents of many tests say the same, and each window takes 1 ms.

The same windows in the same order get the same answer, which `tests/caller/test_words.py` checks.
"""

from weakref import WeakKeyDictionary

import pytest

from turngap.core.audio import Pcm
from turngap.silero import Silero

# By all windows since the detector began.
_ANSWERS: dict[int, float] = {}
really_ask, really_reset = Silero.probability, Silero.reset


class _Heard:
    """The windows since a detector began, and how many of them it was really asked about."""

    def __init__(self) -> None:
        self.key = 0
        self.windows: list[tuple[Pcm, int]] = []
        self.asked = 0


_heard: WeakKeyDictionary[Silero, _Heard] = WeakKeyDictionary()


def remember(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask Silero only about what it was not asked before."""
    monkeypatch.setattr(Silero, "probability", _probability)
    monkeypatch.setattr(Silero, "reset", _reset)


def _probability(silero: Silero, window: Pcm, rate: int) -> float:
    heard = _heard.setdefault(silero, _Heard())
    heard.windows.append((window.copy(), rate))
    heard.key = hash((heard.key, rate, window.tobytes()))
    if heard.key not in _ANSWERS:
        for each in heard.windows[heard.asked :]:
            _ANSWERS[heard.key] = really_ask(silero, *each)
        heard.asked = len(heard.windows)
    return _ANSWERS[heard.key]


def _reset(silero: Silero) -> None:
    _heard.pop(silero, None)
    really_reset(silero)
