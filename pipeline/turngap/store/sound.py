"""Reads audio files: what their header says is checked before anything of them is decoded."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import FULL_SCALE
from turngap.core.errors import InputError
from turngap.core.untrusted import harmless
from turngap.store.files import open_regular

if TYPE_CHECKING:
    from soundfile import SoundFile

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC")
# A telephone's rate, below which nobody speaks, and the highest at which anybody records.
MIN_RATE, MAX_RATE = 8_000, 192_000
# Ten minutes: no turn of a conversation is longer. At 48 kHz it is 58 MB.
MAX_MS = 600_000.0
# What one command loads at once: ten hours at 16 kHz, 1.2 GB.
MAX_SAMPLES = 10 * 3600 * 16_000
_BLOCK = 2**16  # frames


@dataclass(frozen=True, slots=True)
class Sound:
    """Recorded audio: int16 samples of shape (n, channels) at `rate` Hz."""

    samples: NDArray[np.int16]
    rate: int


def read_sound(
    file: Path,
    what: str,
    *,
    at: str = "",
    below: Path | None = None,
    channels: int = 1,
    part_ms: tuple[float, float] = (0.0, float("inf")),
) -> Sound:
    """Read a WAV or FLAC file, or a part of it, of at most ten minutes.

    Args:
        file: the file.
        what: begins the kinds of the errors: `{what}.not_audio`, `.not_mono`, `.too_long`.
        at: the place that names the file, for the error.
        below: as in `open_regular`.
        channels: how many it must have.
        part_ms: from when to when to read, in ms from its start.

    Raises:
        InputError: it is no such file, or what is wanted of it is too long.
    """
    import soundfile

    name = harmless(f"{at}: {file}" if at else str(file))
    try:
        with (
            os.fdopen(open_regular(file, below=below), "rb") as opened,
            soundfile.SoundFile(opened.fileno(), closefd=False) as sound,
        ):
            _check_form(sound, name, file, what, channels)
            first, last = _bounds(sound, name, what, part_ms)
            samples = np.concatenate(
                [np.empty((0, channels), np.int16), *_read(sound, first, last)]
            )
            return Sound(samples, sound.samplerate)
    except (soundfile.LibsndfileError, OSError, _NoNumberError) as e:
        why = getattr(e, "error_string", None) or getattr(e, "strerror", None) or str(e)
        raise _not_audio(what, channels, f"{name} is not audio that can be read: {why}") from e


def _check_form(sound: "SoundFile", name: str, file: Path, what: str, channels: int) -> None:
    if sound.format not in FORMATS:
        raise _not_audio(what, channels, f"{name} is {sound.format}, expected WAV or FLAC")
    if sound.channels != channels:
        raise InputError(
            f"{what}.not_mono" if channels == 1 else f"{what}.not_stereo",
            f"{name} has {sound.channels} channels, expected {channels}",
            hint=f"sox {file.name} mono.wav remix -" if channels == 1 else "",
        )
    if not MIN_RATE <= sound.samplerate <= MAX_RATE:
        raise InputError(
            f"{what}.rate",
            f"{name} has {sound.samplerate} samples a second, expected {MIN_RATE} to {MAX_RATE}",
            hint=f"sox {file.name} -r 16000 new.wav, if its header is right",
        )


def _bounds(
    sound: "SoundFile", name: str, what: str, part_ms: tuple[float, float]
) -> tuple[int, int]:
    """Return the first frame to read, and the one after the last."""
    rate = sound.samplerate
    first, last = (round(min(max(0.0, ms) * rate / 1000, sound.frames)) for ms in part_ms)
    if last - first > MAX_MS * rate / 1000:
        raise InputError(
            f"{what}.too_long",
            f"{name} lasts {(last - first) / rate:.0f} s, by its header; "
            f"expected at most {MAX_MS / 1000:.0f} s",
            hint="cut it into turns; if the header is wrong, `sox old.wav new.wav` mends it",
        )
    return first, max(first, last)


def _read(sound: "SoundFile", first: int, last: int) -> Iterator[NDArray[np.int16]]:
    """Yield a part of the sound in blocks, however much more the file holds."""
    sound.seek(first)
    left = last - first
    while left > 0 and len(block := sound.read(min(left, _BLOCK), "float32", always_2d=True)):
        if not np.isfinite(block).all():
            raise _NoNumberError("it holds samples that are no numbers")
        left -= len(block)
        # By way of float, exact for PCM16: read as integers, libsndfile makes silence of float
        # files.
        scaled = np.rint(block.clip(-1, 1) * FULL_SCALE).clip(-FULL_SCALE, FULL_SCALE - 1)
        yield scaled.astype(np.int16)


class _NoNumberError(Exception):
    pass


def _not_audio(what: str, channels: int, message: str) -> InputError:
    shape = "one channel" if channels == 1 else f"{channels} channels"
    rates = f"{MIN_RATE // 1000} to {MAX_RATE // 1000} kHz"
    return InputError(f"{what}.not_audio", message, hint=f"allowed: WAV or FLAC, {shape}, {rates}")
