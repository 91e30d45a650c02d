"""Verdicts of stock pipecat on a recording: smart turn on its end, Silero on its stretches."""

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from turngap.core.audio import FULL_SCALE, Pcm
from turngap_services.turn.voice import silero_model

if TYPE_CHECKING:
    from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

RATE = 16_000
# pipecat's defaults: smart turn is asked after this much silence, and hears this much before the
# speech; Silero hears speech from this confidence on.
_STOP_MS, _BEFORE_MS = 200.0, 500.0
_CONFIDENCE = 0.7
_WINDOW = 512


@cache
def _smart_turn() -> "LocalSmartTurnAnalyzerV3":
    from pipecat.audio.turn.smart_turn.local_smart_turn_v3 import LocalSmartTurnAnalyzerV3

    return LocalSmartTurnAnalyzerV3()


def completeness(pcm: Pcm, start_ms: float, end_ms: float) -> float:
    """Return smart turn's probability that a turn is complete: over 0.5 is its verdict "complete".

    Args:
        pcm: mono, 16 kHz.
        start_ms: where the speech begins.
        end_ms: where it ends; smart turn hears up to 200 ms more.
    """
    first = max(0, round((start_ms - _BEFORE_MS) * RATE / 1000))
    heard = pcm[first : round((end_ms + _STOP_MS) * RATE / 1000)]
    return float(_smart_turn()._predict_endpoint(heard / np.float32(FULL_SCALE))["probability"])


def stretches(pcm: Pcm) -> int:
    """Count the pieces of speech that Silero hears; 200 ms of silence separate two."""
    speech = silero_model(RATE)
    # The silence that a caller sends before and after a recording.
    around = np.zeros(RATE // 2)
    heard = np.concatenate((around, pcm / FULL_SCALE, around)).astype(np.float32)
    windows = heard[: len(heard) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
    voiced = np.flatnonzero([speech(window) >= _CONFIDENCE for window in windows])
    apart = _STOP_MS * RATE / 1000 / _WINDOW
    return int(np.sum(np.diff(voiced) - 1 >= apart)) + 1 if len(voiced) else 0
