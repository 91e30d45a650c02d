"""Silero models, each with its own state, which share the process's one session."""

import copy
from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from turngap.backends import AGENT
from turngap.core.errors import AgentError

if TYPE_CHECKING:
    from pipecat.audio.vad.silero import SileroOnnxModel

# The state is reset as by pipecat's analyzer, for its reasons: music, or a long silence at 8 kHz,
# leaves it deaf to the speech that follows. Only in clear silence, as a reset in speech loses
# confidence.
RESET_WINDOWS = 62  # 2 s
SILENT_WINDOWS = 5
SILENT_BELOW = 0.1


@cache
def _loaded() -> "SileroOnnxModel":
    if not AGENT.met():
        raise AgentError(
            "speech.no_model",
            "speech in recordings is found with Silero, which is not installed here",
            hint=AGENT.remedy,
        )
    from pipecat.audio.vad.silero import SileroOnnxModel

    path = resources.files("pipecat.audio.vad.data").joinpath("silero_vad.onnx")
    return SileroOnnxModel(str(path))


def load() -> None:
    """Load the model, once a process: about 60 ms.

    Raises:
        AgentError: it is not installed.
    """
    _loaded()


def model(rate: int) -> Callable[[NDArray[np.float32]], float]:
    """Return a model with a fresh state for audio at `rate` Hz (8000 or 16000)."""
    silero = copy.copy(_loaded())
    silero.reset_states()
    windows = silent = 0

    def probability(window: NDArray[np.float32]) -> float:
        nonlocal windows, silent
        p = float(silero(window, rate)[0].item())
        windows += 1
        silent = silent + 1 if p < SILENT_BELOW else 0
        if windows >= RESET_WINDOWS and silent >= SILENT_WINDOWS:
            silero.reset_states()
            windows = 0
        return p

    return probability
