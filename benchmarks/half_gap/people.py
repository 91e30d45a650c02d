"""Recordings of people, as a library of conversations of one turn under one condition of the line.

A folder of them has a `voices.json`, a list of

    {"name": "anna-1", "say": "five five", "speech": {"start_ms": 215, "end_ms": 1260}}

and the recording `anna-1.flac` (or `.wav`) beside it.
"""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from turngap.core.cue import SpeechBounds
from turngap.core.errors import InputError

RATE = 16_000
# What everybody is told, as nothing is known of what people of other recordings ask for.
REPLY = "All right, let me look that up."

# Noise continues while the agent waits and answers, and is there before the voice.
NOISE_BEFORE_MS, NOISE_AFTER_MS = 500.0, 4000.0
# Windows of speech as far below the loudest as this are pauses, and count for no level.
ACTIVE_DB = 30.0
_MU = 255.0
_EXPECTED = 'expected a list of {"name": …, "say": …, "speech": {"start_ms": …, "end_ms": …}}'

Sound = NDArray[np.float64]


def louder(sound: Sound, speech: SpeechBounds, by_db: float) -> tuple[Sound, float]:
    """Return the same voice, louder or, if `by_db` is negative, softer."""
    return sound * 10 ** (by_db / 20), 0.0


def noisy(sound: Sound, speech: SpeechBounds, snr_db: float) -> tuple[Sound, float]:
    """Return the voice in white noise `snr_db` below its active level."""
    before, after = (round(ms * RATE / 1000) for ms in (NOISE_BEFORE_MS, NOISE_AFTER_MS))
    padded = np.pad(sound, (before, after))
    noise = np.random.default_rng(0).standard_normal(len(padded))
    return padded + noise * active_level(sound, speech) * 10 ** (-snr_db / 20), NOISE_BEFORE_MS


def telephone(sound: Sound, speech: SpeechBounds) -> tuple[Sound, float]:
    """Return the voice over 8 kHz µ-law (G.711's companding), resampled there and back."""
    narrow = np.clip(soxr.resample(sound, RATE, RATE // 2), -1, 1)
    code = np.rint(np.sign(narrow) * np.log1p(_MU * np.abs(narrow)) / np.log1p(_MU) * 127) / 127
    heard = np.sign(code) * np.expm1(np.abs(code) * np.log1p(_MU)) / _MU
    return soxr.resample(heard, RATE // 2, RATE), 0.0


# Each returns the sound that is played, and by how many ms the speech in it begins later.
CONDITIONS: dict[str, Callable[[Sound, SpeechBounds], tuple[Sound, float]]] = {
    "original": lambda sound, _: (sound, 0.0),
    "plus6": partial(louder, by_db=6.0),
    "minus10": partial(louder, by_db=-10.0),
    "minus20": partial(louder, by_db=-20.0),
    "noise20": partial(noisy, snr_db=20.0),
    "noise10": partial(noisy, snr_db=10.0),
    "mulaw8k": telephone,
}


def active_level(sound: Sound, speech: SpeechBounds) -> float:
    """Return the voice's RMS without its pauses, in windows of 20 ms."""
    first, last = (round(ms * RATE / 1000) for ms in (speech.start_ms, speech.end_ms))
    window = RATE // 50
    voice = sound[first : first + (last - first) // window * window].reshape(-1, window)
    powers = (voice**2).mean(axis=1)
    return float(np.sqrt(powers[powers >= powers.max() * 10 ** (-ACTIVE_DB / 10)].mean()))


def make_library(voices: Path, condition: str, library: Path, *, turns_a_call: int = 1) -> None:
    """Write a library of the recordings in a folder, as they sound under that condition.

    Each call has up to `turns_a_call` recordings, in the order of `voices.json`.

    Raises:
        InputError: the folder lacks a readable `voices.json`, or a recording that it names.
    """
    (library / "voices").mkdir(parents=True, exist_ok=True)
    told = _told(voices)
    for first in range(0, len(told), turns_a_call):
        turns: list[dict[str, object]] = []
        for name, say, speech in told[first : first + turns_a_call]:
            sound, later_ms = CONDITIONS[condition](_read(voices, name, speech), speech)
            file = f"voices/{name}.flac"
            soundfile.write(library / file, np.clip(sound, -1, 1), RATE, subtype="PCM_16")
            bounds = {"start_ms": speech.start_ms + later_ms, "end_ms": speech.end_ms + later_ms}
            turns.append({"say": say, "audio": file, "speech": bounds, "reply": REPLY})
        name, say, _ = told[first]
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        scenario = {"name": slug, "about": say, "voices": "recorded", "turns": turns}
        # JSON is YAML.
        (library / f"{slug}.yaml").write_text(json.dumps(scenario), encoding="utf-8")


def _told(voices: Path) -> list[tuple[str, str, SpeechBounds]]:
    file = voices / "voices.json"
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        found = [(str(t["name"]), str(t["say"]), _bounds(t["speech"])) for t in told]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise InputError(
            "voices.unreadable",
            f"{file} cannot be read: {type(e).__name__}: {e}",
            hint=_EXPECTED,
        ) from e
    if not found:
        raise InputError("voices.unreadable", f"{file} names no recording", hint=_EXPECTED)
    return found


def _bounds(speech: dict[str, float]) -> SpeechBounds:
    return SpeechBounds(start_ms=speech["start_ms"], end_ms=speech["end_ms"])


def _read(voices: Path, name: str, speech: SpeechBounds) -> Sound:
    file = next((f for f in (voices / f"{name}.flac", voices / f"{name}.wav") if f.is_file()), None)
    if file is None:
        raise InputError("voices.missing", f"{voices} has no {name}.flac or {name}.wav")
    try:
        pcm, rate = soundfile.read(file, dtype="float64", always_2d=True)
    except soundfile.LibsndfileError as e:
        raise InputError("voices.unreadable", f"{file} cannot be read: {e}") from e
    if not 0 <= speech.start_ms < speech.end_ms <= len(pcm) * 1000 / rate:
        raise InputError("voices.bounds", f"{file}: its speech in voices.json lies outside of it")
    return soxr.resample(pcm.mean(axis=1), rate, RATE)
