"""Read audio files: the header is checked before any audio is decoded."""

import mmap
import os
import shlex
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import FULL_SCALE
from turngap.core.errors import InputError
from turngap.core.untrusted import harmless
from turngap.core.wording import several
from turngap.store.files import open_regular

if TYPE_CHECKING:
    from soundfile import SoundFile

FORMATS = ("WAV", "WAVEX", "RF64", "FLAC")
# Recorded calls come in these, too, and last longer than a turn. Above a rate, nothing that a call
# carries is lost at 16 kHz.
CALL_FORMATS = (*FORMATS, "OGG", "MP3", "AIFF", "W64")
MAX_CALL_MS, MAX_CALL_RATE, CALL_RATE = 7_200_000.0, 24_000, 16_000
# A telephone's rate, below which no one speaks, and the highest at which anybody records.
MIN_RATE, MAX_RATE = 8_000, 192_000
# Ten minutes: no turn of a conversation is longer. At 48 kHz it is 58 MB.
MAX_MS = 600_000.0
# What one command loads at once: ten hours at 16 kHz, 1.2 GB.
MAX_SAMPLES = 10 * 3600 * 16_000
_BLOCK = 2**16  # frames
# Floats are cut at 1, as players do. What is louder by so much (12 dB) is no sound, but integers.
_LOUDEST = 4.0
# Larger WAV files (ten minutes at 96 kHz) are not looked at for faults. What follows the samples
# and is smaller than a tail, or has a name, is a tag.
_MOST_BYTES, _MOST_TAIL = 2**27, 4096


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
    call: bool = False,
) -> Sound:
    """Read a WAV or FLAC file, or a part of it, of at most ten minutes.

    Args:
        file: the file.
        what: begins the kinds of the errors: `{what}.not_audio`, `.not_mono`, `.too_long`.
        at: the place that names the file, for the error.
        below: as in `open_regular`.
        channels: the required number of channels.
        part_ms: start and end of the part to read, in ms from the file's start.
        call: read a recorded call of at most two hours in any of `CALL_FORMATS`, and bring a high
            rate to 16 kHz while it is read.

    Raises:
        InputError: the file is not such a file, or the part is too long.
    """
    import soundfile

    name, typed = harmless(f"{at}: {file}" if at else str(file)), shlex.quote(str(file))
    allowed = _allowed(channels, typed, call=call)
    try:
        with os.fdopen(open_regular(file, below=below), "rb") as opened:
            try:
                with soundfile.SoundFile(opened.fileno(), closefd=False) as sound:
                    _check_form(sound, name, typed, what, channels, call=call)
                    most_ms = MAX_CALL_MS if call else MAX_MS
                    first, last = _bounds(sound, name, typed, what, part_ms, most_ms=most_ms)
                    if fault := _fault(opened.fileno(), typed):
                        raise _UnreadableError(*fault)
                    blocks, rate = _read(sound, first, last), sound.samplerate
                    if call and rate > MAX_CALL_RATE:
                        blocks, rate = _resampled(blocks, rate, channels), CALL_RATE
                    samples = np.concatenate([np.empty((0, channels), np.int16), *blocks])
                    return Sound(samples, rate)
            except soundfile.LibsndfileError as e:
                fault = _fault(opened.fileno(), typed) or (e.error_string, allowed)
                raise _UnreadableError(*fault) from e
    except (OSError, _UnreadableError) as e:
        why, hint = getattr(e, "strerror", None) or str(e), allowed
        if isinstance(e, _UnreadableError):
            why, hint = e.args
        message = f"{name} is not audio that can be read: {why}"
        raise InputError(f"{what}.not_audio", message, hint=hint) from e


def _fault(descriptor: int, typed: str) -> tuple[str, str] | None:
    """Return the fault of a WAV file before its samples, and the remedy; None for other files."""
    size, at = os.fstat(descriptor).st_size, 12
    if size > _MOST_BYTES or os.pread(descriptor, 4, 0) != b"RIFF":
        return None
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as raw:
        if (second := raw.find(b"WAVEfmt ", at) - 8) > 0:
            hint = f"`head -c {second} {typed} > first.wav` takes the first alone"
            return f"a second file begins at byte {second:,} of {size:,}", hint
        while len(head := raw[at : at + 8]) == 8:
            chunk, length = struct.unpack("<4sI", head)
            at += 8
            end = at + length + length % 2
            if chunk == b"data":
                tag = size - end < _MOST_TAIL or raw[end : end + 4].isalnum()
                if at == size or (length and tag):
                    return None
                held = f"{length:,} bytes of" if length else "no"
                why = (
                    f"its header says that it holds {held} samples, and {size - at:,} bytes follow"
                )
                return why, f"`sox --ignore-length {typed} new.wav` mends it"
            if length % 2 and raw[at + length : at + length + 4] in (b"data", b"fmt ", b"LIST"):
                why = f"its chunk {chunk.decode('latin-1')!r} of {length:,} bytes is not padded"
                return why, "write it again without that chunk, or padded to an even length"
            at = end
    return None


def _allowed(channels: int, typed: str, *, call: bool) -> str:
    """Say what may be given."""
    shape = "one channel" if channels == 1 else f"{channels} channels"
    rates = f"{MIN_RATE // 1000} to {MAX_RATE // 1000} kHz"
    if call:
        return (
            f"allowed: WAV, FLAC, Ogg, MP3 or AIFF, {shape}, {rates}; "
            f"`ffmpeg -i {typed} new.wav` makes a WAV file"
        )
    return f"allowed: WAV or FLAC, {shape}, {rates}"


def _check_form(
    sound: "SoundFile", name: str, typed: str, what: str, channels: int, *, call: bool
) -> None:
    if sound.format not in (CALL_FORMATS if call else FORMATS):
        message = f"{name} is {sound.format}, expected WAV or FLAC"
        hint = _allowed(channels, typed, call=call)
        if not call:
            hint += f"; `ffmpeg -i {typed} new.wav` makes one"
        raise InputError(f"{what}.not_audio", message, hint=hint)
    if call and sound.channels != channels:
        raise InputError(
            f"{what}.not_stereo",
            f"{name} has {several(sound.channels, 'channel')}: both people are in one, so that no "
            "one can tell who spoke when"
            if sound.channels == 1
            else f"{name} has {sound.channels} channels, expected 2: the person and the agent",
            hint="record both sides apart (dual-channel, stereo); platforms have a setting for it"
            if sound.channels == 1
            else f"`sox {typed} call.wav remix 1 2` takes the first two",
        )
    if sound.channels != channels:
        sides = ("left side", "right") if sound.channels == 2 else ("first channel", "second")
        raise InputError(
            f"{what}.not_mono" if channels == 1 else f"{what}.not_stereo",
            f"{name} has {sound.channels} channels, expected {channels}",
            hint=f"`sox {typed} mono.wav remix 1` takes its {sides[0]}, `remix 2` its {sides[1]}: "
            "use the one with only the person"
            if channels == 1
            else "",
        )
    if not MIN_RATE <= sound.samplerate <= MAX_RATE:
        raise InputError(
            f"{what}.rate",
            f"{name} has {sound.samplerate} samples a second, expected {MIN_RATE} to {MAX_RATE}",
            hint=f"`sox {typed} -r 16000 new.wav`, if its header is right",
        )


def _bounds(
    sound: "SoundFile",
    name: str,
    typed: str,
    what: str,
    part_ms: tuple[float, float],
    *,
    most_ms: float,
) -> tuple[int, int]:
    """Return the first frame to read, and the one after the last."""
    rate = sound.samplerate
    first, last = (round(min(max(0.0, ms) * rate / 1000, sound.frames)) for ms in part_ms)
    if last - first > most_ms * rate / 1000:
        raise InputError(
            f"{what}.too_long",
            f"{name} lasts {(last - first) / rate:.0f} s, by its header; "
            f"expected at most {most_ms / 1000:.0f} s",
            hint=f"cut it into {'shorter calls' if most_ms == MAX_CALL_MS else 'turns'}; "
            f"if the header is wrong, `sox {typed} new.wav` mends it",
        )
    return first, max(first, last)


def _read(sound: "SoundFile", first: int, last: int) -> Iterator[NDArray[np.int16]]:
    """Yield a part of the sound in blocks, however much more the file holds."""
    sound.seek(first)
    left, peak = last - first, 0.0
    while left > 0 and len(block := sound.read(min(left, _BLOCK), "float32", always_2d=True)):
        peak = max(peak, float(np.abs(block).max()))
        if not np.isfinite(block).all():
            raise _UnreadableError("it holds samples that are not numbers", "write it anew")
        left -= len(block)
        # By way of float, exact for PCM16: read as integers, libsndfile makes silence of float
        # files.
        scaled = np.rint(block.clip(-1, 1) * FULL_SCALE).clip(-FULL_SCALE, FULL_SCALE - 1)
        yield scaled.astype(np.int16)
    if peak > _LOUDEST:
        raise _UnreadableError(
            f"it holds samples up to {peak:,.5g}, expected at most 1",
            "divide integers by their full scale, as 32,768, before they are written as floats",
        )


def _resampled(
    blocks: Iterator[NDArray[np.int16]], rate: int, channels: int
) -> Iterator[NDArray[np.int16]]:
    """Bring blocks to 16 kHz one by one."""
    import soxr

    stream = soxr.ResampleStream(rate, CALL_RATE, channels, dtype="int16")
    for block in blocks:
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.empty((0, channels), np.int16), last=True)


class _UnreadableError(Exception):
    """Audio that cannot be used, with the reason and what to do."""
