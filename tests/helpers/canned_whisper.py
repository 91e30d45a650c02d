"""The canned Whisper that several tests read with, made once a test run."""

import tempfile
from functools import cache
from pathlib import Path

from training.whisper.canned import TEXT, make_canned

# One token a word, in the order in which the model says them, one every 250 ms of audio.
WORDS = TEXT.split()
TOKEN_MS = 250

_FOLDER = tempfile.TemporaryDirectory(prefix="turngap-test-whisper-")


@cache
def canned_model() -> Path:
    """Its directory."""
    directory = Path(_FOLDER.name, "canned")
    make_canned(directory, token_ms=TOKEN_MS, quantization=None)
    return directory


def said_until(last_sound_ms: float) -> str:
    """Return the text that it reads in audio whose last sound ends there."""
    return " ".join(WORDS[: int(last_sound_ms // TOKEN_MS) + 1])
