"""Sentences, the voices that say them, and what a line adds. Needs no torch."""

import asyncio
import random
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr
from scipy.fft import next_fast_len

from training.grammar.dialogue import make_dialogues
from turngap.core.audio import (
    FULL_SCALE,
    LINE_FLOOR_DBFS,
    Pcm,
    audible_end,
    audible_onset,
    dbfs_to_amplitude,
)
from turngap_services.text import scenarios, spoken_words
from turngap_services.tts.espeak import EspeakVoice, engine

RATE = 16_000
PEAK_DBFS = -7.0  # as of the library's recordings
_USUAL_WPM = 175  # espeak-ng's own pace

# How long the silence around an utterance is. Before it lies the pre-roll; behind it what a pause
# is, or the whole of a hold.
LEAD_MS, TAIL_MS = (0, 620), (40, 320)
# People whose vocal tracts are so much longer or shorter (natural logarithm) are about as many as
# the voices here are few.
_SIZES = 0.08
_LOWEST_NOISE_HZ = 60.0


@dataclass(frozen=True, slots=True)
class Voice:
    """One speaker."""

    engine: Literal["espeak-ng", "flite"]
    name: str


# Those that read best, and all of the library's: it is to be read by whoever speaks it.
TRAINED = (
    *(
        Voice("espeak-ng", f"en-us+{variant}")
        for variant in ("edward", "michel", "Reed", "f2", "f3", "m3", "m7", "klatt2")
    ),
    *(Voice("flite", name) for name in ("awb", "kal16", "rms", "slt")),
)
# Never heard in training.
HELD_OUT = Voice("espeak-ng", "en-us+klatt4")


def available(voices: Sequence[Voice]) -> list[Voice]:
    """List the voices whose engine this machine has; espeak-ng comes in a wheel."""
    return [v for v in voices if v.engine == "espeak-ng" or shutil.which(v.engine)]


def library_sentences() -> list[str]:
    """List what people say in the scenario library, once each, as it is spoken."""
    said = [turn.say for scenario in scenarios(None) for turn in scenario.turns]
    return list(dict.fromkeys(" ".join(spoken_words(text)) for text in said))


def sentences(count: int, seed: int) -> list[str]:
    """Mix the library's sentences, a quarter of all, with others of the models' grammar."""
    order = random.Random(seed)
    library = library_sentences()
    made = [order.choice(library) for _ in range(count // 4)]
    for dialogue in make_dialogues(seed, holding=False):
        made += [" ".join(spoken_words(turn.user)) for turn in dialogue.turns]
        if len(made) >= count:
            break
    made = made[:count]
    order.shuffle(made)
    return made


def unseen_sentences(count: int, seed: int, known: Collection[str]) -> list[str]:
    """Return sentences that are not among `known`, from the grammar's held-out side."""
    made: dict[str, None] = {}
    for dialogue in make_dialogues(seed, holding=True):
        texts = (" ".join(spoken_words(turn.user)) for turn in dialogue.turns)
        made |= {text: None for text in texts if text not in known}
        if len(made) >= count:
            break
    return list(made)[:count]


def speak(voice: Voice, text: str, pace: float) -> Pcm:
    """Speak a text: an utterance at 16 kHz, from its first to its last audible sample.

    Args:
        voice: who speaks.
        text: lower case words.
        pace: 1 is the engine's own; more is faster.

    Raises:
        ValueError: the result is not audible.
    """
    samples, rate = (_espeak if voice.engine == "espeak-ng" else _flite)(voice, text, pace)
    sound = soxr.resample(samples, rate, RATE) if rate != RATE else samples
    peak = float(np.abs(sound).max()) if len(sound) else 0.0
    if peak == 0:
        raise ValueError(f"{voice.name} said nothing for {text!r}")
    pcm = np.rint(sound / peak * dbfs_to_amplitude(PEAK_DBFS)).astype(np.int16)
    first, last = audible_onset(pcm, RATE), audible_end(pcm, RATE)
    assert first is not None and last is not None, "its peak is audible"
    return pcm[first : last + 1]


def _espeak(voice: Voice, text: str, pace: float) -> tuple[np.ndarray, int]:
    who = EspeakVoice(voice.name, round(_USUAL_WPM * pace), 50)

    async def collect() -> bytes:
        return b"".join([chunk async for chunk in engine().speak(text, who)])

    pcm = np.frombuffer(asyncio.run(collect()), np.int16)
    return pcm.astype(np.float64) / FULL_SCALE, engine().rate


def _flite(voice: Voice, text: str, pace: float) -> tuple[np.ndarray, int]:
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "take.wav"
        stretch = f"duration_stretch={1 / pace:.3f}"
        command = ["flite", "-voice", voice.name, "--setf", stretch, "-t", text, "-o", str(wav)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        samples, rate = soundfile.read(wav, dtype="float64")
    return samples, rate


def on_the_line(speech: Pcm, random_: np.random.Generator, *, gently: bool) -> Pcm:
    """Return `speech` louder or softer, with silence around it and noise under it.

    Args:
        speech: from `speak`.
        random_: the source of random choices.
        gently: the line's own noise floor only; else now and then a room's, and the voice of
            somebody smaller or larger.
    """
    if not gently:
        speech = _of_another_size(speech, float(random_.uniform(-_SIZES, _SIZES)))
    lead, tail = (round(random_.uniform(*span) * RATE / 1000) for span in (LEAD_MS, TAIL_MS))
    whole = np.zeros(lead + len(speech) + tail)
    whole[lead : lead + len(speech)] = speech * 10 ** (random_.uniform(-9, 4) / 20)
    floor_dbfs, slope = LINE_FLOOR_DBFS, 0.0
    if not gently and random_.random() < 0.5:
        floor_dbfs, slope = random_.uniform(LINE_FLOOR_DBFS, -36), random_.uniform(0, 1)
    whole += noise(len(whole), slope, random_) * dbfs_to_amplitude(floor_dbfs)
    return np.clip(np.rint(whole), -32768, 32767).astype(np.int16)


def _of_another_size(speech: Pcm, larger: float) -> np.ndarray:
    """Play it slower or faster: pitch and formants move with the pace, as between people."""
    at = np.arange(0, len(speech) - 1, np.exp(-larger))
    return np.interp(at, np.arange(len(speech)), speech)


def noise(samples: int, slope: float, random_: np.random.Generator) -> np.ndarray:
    """Make noise of RMS 1: white if `slope` is 0, pink like streets and fans if it is 1."""
    white = random_.normal(size=samples)
    if not slope:
        return white
    # FFTs of a length with large prime factors take ten times as long.
    size = next_fast_len(samples, real=True)
    spectrum = np.fft.rfft(white, size)
    hz = np.arange(1, len(spectrum) + 1) * RATE / size
    spectrum /= np.maximum(hz, _LOWEST_NOISE_HZ) ** (slope / 2)
    shaped = np.fft.irfft(spectrum, size)[:samples]
    return shaped / np.sqrt(np.mean(shaped**2))
