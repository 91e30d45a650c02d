"""Sentences from outside every library, who says them, and over which line."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import soxr

from training.turns.speakers import RATE, Speaker, rendered
from turngap.core.audio import (
    FULL_SCALE,
    LINE_FLOOR_DBFS,
    Pcm,
    audible_end,
    audible_onset,
    dbfs_to_amplitude,
)
from turngap_services.stt.pocketsphinx import Recogniser
from turngap_services.stt.sentences import Heard

Line = Literal["clean", "noise", "telephone"]
LINES: tuple[Line, ...] = get_args(Line)
SNR_DB = 20.0
_PEAK_DBFS = -7.0  # as of the library's recordings
_MU = 255.0
_PACKET = RATE // 50
# As `adaptive` hears a turn: found so late, and concluded after so much silence.
_LEAD_MS, _FOUND_MS, _SILENCE_MS = 400, 100, 250


@dataclass(frozen=True, slots=True)
class Reading:
    """A recogniser's reading of a take."""

    text: str
    heard: Heard | None


def sentences(set_name: Literal["fit", "judge"]) -> list[str]:
    """Return the sentences of a set, a line each."""
    file = Path(__file__).with_name(f"{set_name}.txt")
    return file.read_text(encoding="utf-8").splitlines()


def espeak(*names: str) -> list[Speaker]:
    """Return voices of espeak-ng."""
    return [Speaker("espeak-ng", name) for name in names]


def said(speaker: Speaker, text: str, line: Line, seed: int) -> tuple[Pcm, float, float]:
    """Return a take, 16 kHz, and where speech begins and ends in it, ms."""
    sound = rendered(speaker, text)
    sound *= dbfs_to_amplitude(_PEAK_DBFS) / np.abs(sound).max()
    pcm = np.rint(sound).astype(np.int16)
    first, last = audible_onset(pcm, RATE), audible_end(pcm, RATE)
    assert first is not None and last is not None, "its peak is audible"
    speech = sound[first : last + 1]
    ms = len(speech) * 1000 / RATE
    floor = dbfs_to_amplitude(LINE_FLOOR_DBFS)
    if line == "noise":
        floor = float(np.sqrt(np.mean(speech**2))) * 10 ** (-SNR_DB / 20)
    pad = [np.zeros(RATE * of_ms // 1000) for of_ms in (_LEAD_MS, _SILENCE_MS + 100)]
    whole = np.concatenate((pad[0], speech, pad[1]))
    whole += np.random.default_rng(seed).normal(0, floor, len(whole))
    if line == "telephone":
        whole = telephone(whole / FULL_SCALE) * FULL_SCALE
    return np.clip(np.rint(whole), -32768, 32767).astype(np.int16), _LEAD_MS, _LEAD_MS + ms


def telephone(sound: np.ndarray) -> np.ndarray:
    """Return samples in -1..1 as they come over 8 kHz µ-law, resampled there and back."""
    narrow = np.clip(soxr.resample(sound, RATE, RATE // 2), -1, 1)
    code = np.rint(np.sign(narrow) * np.log1p(_MU * np.abs(narrow)) / np.log1p(_MU) * 127) / 127
    heard = np.sign(code) * np.expm1(np.abs(code) * np.log1p(_MU)) / _MU
    return soxr.resample(heard, RATE // 2, RATE)


def read(recogniser: Recogniser, take: tuple[Pcm, float, float]) -> Reading:
    """Have a recogniser hear a take as `adaptive` would have it."""
    pcm, start_ms, end_ms = take
    for at in range(0, len(pcm), _PACKET):
        ms = at * 1000 / RATE
        if ms >= start_ms + _FOUND_MS:
            recogniser.start()
        if ms >= end_ms + _SILENCE_MS:
            break
        recogniser.audio(pcm[at : at + _PACKET].tobytes())
    text = recogniser.stop()
    return Reading(text, recogniser.heard())
