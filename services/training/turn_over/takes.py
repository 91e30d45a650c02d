"""Recorded turns and the conditions they are heard under. Needs no torch."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile

from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, rms_dbfs
from turngap.scenario.library import load_scenario
from turngap.scenario.model import scenario_paths

RATE = 16_000
BEFORE_MS = 500.0
AFTER_MS = 2500.0

CONDITIONS = ("as-recorded", "10-dB-softer", "noise", "telephone")
_SNR_DB = 20.0


@dataclass(frozen=True, slots=True)
class Take:
    """One turn on the line, with a quiet line before and after it.

    Attributes:
        name: the names of the recording and its condition.
        voice: the speaker, if the recording's folder names one.
        say: the words.
        pcm: the sound, 16 kHz.
        end_ms: when its speech ends, in the sound.
        pauses_ms: begin and end of its pauses.
    """

    name: str
    voice: str
    say: str
    pcm: Pcm
    start_ms: float
    end_ms: float
    pauses_ms: tuple[tuple[float, float], ...]


def takes_in(folder: Path, condition: str = "as-recorded", phase_ms: float = 0.0) -> Iterator[Take]:
    """Yield the turns of a library of scenarios, or of a folder of people with a `voices.json`.

    Args:
        folder: where they are.
        condition: one of `CONDITIONS`.
        phase_ms: the delay of the whole sound, which shifts it on the VAD's grid.
    """
    for take in _people(folder) if (folder / "voices.json").exists() else _library(folder):
        yield _on_the_line(take, condition, phase_ms)


def _people(folder: Path) -> Iterator[Take]:
    for told in json.loads((folder / "voices.json").read_text(encoding="utf-8")):
        pcm, rate = soundfile.read(folder / f"{told['name']}.flac", dtype="int16")
        assert rate == RATE, told["name"]
        speech = told["speech"]
        yield Take(
            told["name"], told["name"].partition("_")[0], told["say"], np.asarray(pcm, np.int16),
            speech["start_ms"], speech["end_ms"], (),
        )  # fmt: skip


def _library(folder: Path) -> Iterator[Take]:
    told = folder / "turns.json"
    turns = json.loads(told.read_text(encoding="utf-8")) if told.exists() else []
    voices = {turn["name"]: turn["speaker"]["voice"] for turn in turns}
    for path in scenario_paths(folder):
        loaded = load_scenario(path)
        for number, turn in enumerate(loaded.scenario.turns, start=1):
            assert turn.speech is not None
            pcm = loaded.clips[turn.audio].at_rate(RATE)
            pauses = tuple((p.start_ms, p.end_ms) for p in turn.pauses or ())
            name = f"{loaded.scenario.name}/{number}"
            yield Take(
                name, voices.get(loaded.scenario.name, name), turn.say, pcm,
                turn.speech.start_ms, turn.speech.end_ms, pauses,
            )  # fmt: skip


def _on_the_line(take: Take, condition: str, phase_ms: float) -> Take:
    before_ms = BEFORE_MS + phase_ms
    rng = np.random.default_rng(0)

    def line(ms: float) -> Pcm:
        amplitude = 32768 * 10 ** (LINE_FLOOR_DBFS / 20)
        return rng.normal(0, amplitude, round(ms * RATE / 1000)).astype(np.int16)

    # A noise that broke off would sound like the beginning of something: what follows a recording
    # is its own room, if there is enough of it.
    room = take.pcm[round((take.end_ms + 500) * RATE / 1000) :]
    after = line(AFTER_MS)
    if len(room) > RATE:
        after = np.resize(np.concatenate((room[::-1], room)), RATE)
    pcm = np.concatenate((line(before_ms), take.pcm, after))
    return replace(
        take,
        name=f"{take.name}@{condition}",
        pcm=under(pcm, condition, take.pcm),
        start_ms=take.start_ms + before_ms,
        end_ms=take.end_ms + before_ms,
        pauses_ms=tuple((a + before_ms, b + before_ms) for a, b in take.pauses_ms),
    )


def under(pcm: Pcm, condition: str, speech: Pcm) -> Pcm:
    """Return the sound as a softer voice, a noisy room or a telephone line makes it."""
    sound = pcm.astype(np.float64)
    if condition == "10-dB-softer":
        sound *= 10 ** (-10 / 20)
    elif condition == "noise":
        level = rms_dbfs(speech) - _SNR_DB
        sound += np.random.default_rng(1).normal(0, 32768 * 10 ** (level / 20), len(pcm))
    elif condition == "telephone":
        sound = _telephone(sound)
    return np.clip(np.rint(sound), -32768, 32767).astype(np.int16)


def _telephone(sound: np.ndarray) -> np.ndarray:
    """Convert to 8 kHz µ-law (G.711) and back."""
    import soxr

    narrow = np.clip(soxr.resample(sound / 32768, RATE, RATE // 2), -1, 1)
    mu = 255.0
    code = np.rint(np.sign(narrow) * np.log1p(mu * np.abs(narrow)) / np.log1p(mu) * 127) / 127
    wide = np.sign(code) * np.expm1(np.abs(code) * np.log1p(mu)) / mu
    out = soxr.resample(wide, RATE // 2, RATE)
    return np.resize(out, len(sound)) * 32768
