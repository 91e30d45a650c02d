"""Silero as pipecat has it, eight times quicker than turngap's; all models share one session."""

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, cast

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
OUTPUTS = ("output", "stateN")


@cache
def _loaded() -> "SileroOnnxModel":
    if not AGENT.met():
        raise AgentError(
            "speech.no_model",
            "a person's voice is found with Silero, which is not installed here",
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
    # As pipecat's `SileroOnnxModel` calls it, without its checks: an agent asks 62 times a second.
    run = _loaded().session.run
    samples, context = (512, 64) if rate == 16_000 else (256, 32)
    heard = np.zeros((1, context + samples), np.float32)
    fresh = np.zeros((2, 1, 128), np.float32)
    asked = {"input": heard, "state": fresh, "sr": np.array(rate, np.int64)}
    windows = silent = 0

    def probability(window: NDArray[np.float32]) -> float:
        nonlocal windows, silent
        heard[0, :context] = heard[0, samples:]
        heard[0, context:] = window
        out, asked["state"] = cast("list[NDArray[np.float32]]", run(OUTPUTS, asked))
        p = float(out.item())
        windows += 1
        silent = silent + 1 if p < SILENT_BELOW else 0
        if windows >= RESET_WINDOWS and silent >= SILENT_WINDOWS:
            asked["state"] = fresh
            heard[:] = 0
            windows = 0
        return p

    return probability
