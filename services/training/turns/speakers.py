"""Voices of the two sets, which have none in common, and their engines."""

import io
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr

from training.turns.sentences import SetName

RATE = 16_000
# An engine says a sentence in a tenth of a second. One that hangs is stopped after this long.
_LIMIT_S = 30.0
REMEDY = "apt-get install flite espeak-ng festival festvox-us-slt-hts"

Engine = Literal["flite", "festival", "espeak-ng"]


@dataclass(frozen=True, slots=True)
class Speaker:
    """One person.

    Attributes:
        engine, voice: the engine and its voice that speak for them.
        pace: 1 is the engine's own; more is faster.
        size: the size of the vocal tract; below 1, all resonances and the pitch are higher.
        pitch: a further factor of the pitch.
        lively: a factor of the melody's movements.
    """

    engine: Engine
    voice: str
    pace: float = 1.0
    size: float = 1.0
    pitch: float = 1.0
    lively: float = 1.0


@dataclass(frozen=True, slots=True)
class Cast:
    """A speaker of a set: how often it is drawn, and its limits of pace and pitch."""

    voices: tuple[tuple[Speaker, float], ...]
    pace: tuple[float, float]

    def drawn(self, draw: np.random.Generator) -> Speaker:
        """Draw a speaker within these limits."""
        weights = np.array([weight for _, weight in self.voices])
        speaker = self.voices[int(draw.choice(len(weights), p=weights / weights.sum()))][0]
        return replace(
            speaker,
            pace=float(draw.uniform(*self.pace)),
            size=float(np.exp(draw.uniform(-0.1, 0.1))),
            pitch=float(np.exp(draw.uniform(-0.12, 0.12))),
            lively=float(draw.uniform(0.7, 1.5)),
        )


def _espeak(*variants: str) -> list[Speaker]:
    return [Speaker("espeak-ng", f"en-us+{variant}") for variant in variants]


# Voices made from recordings (flite, festival) speak most, as they sound most like people.
SPEAKERS: dict[SetName, Cast] = {
    "fit": Cast(
        (
            (Speaker("flite", "rms"), 4),
            (Speaker("flite", "kal16"), 2),
            *((speaker, 0.8) for speaker in _espeak("m1", "m3", "f1", "f2", "edward")),
        ),
        (0.85, 1.2),
    ),
    "judge": Cast(
        (
            (Speaker("flite", "slt"), 3),
            (Speaker("flite", "awb"), 3),
            (Speaker("festival", "cmu_us_slt_arctic_hts"), 2),
            *((speaker, 0.8) for speaker in _espeak("m7", "michel", "f3", "Annie", "Reed")),
        ),
        (0.8, 1.25),
    ),
}


def missing_engines() -> list[Engine]:
    """List the engines that this machine lacks."""
    engines: tuple[Engine, ...] = ("flite", "festival", "espeak-ng")
    return [e for e in engines if shutil.which("text2wave" if e == "festival" else e) is None]


def rendered(speaker: Speaker, text: str) -> np.ndarray:
    """Render `text` at the engine's own pace: float64 samples in -1..1 at 16 kHz.

    Raises:
        subprocess.SubprocessError: the engine failed, or took longer than half a minute.
    """
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "take.wav"
        command, given = _command(speaker, text, wav)
        subprocess.run(
            command, input=given, check=True, capture_output=True, timeout=_LIMIT_S, text=True
        )
        samples, rate = soundfile.read(io.BytesIO(wav.read_bytes()), dtype="float64")
    return soxr.resample(samples, rate, RATE) if rate != RATE else samples


def _command(speaker: Speaker, text: str, wav: Path) -> tuple[list[str], str | None]:
    """Build the engine's command line, and the text for its standard input."""
    match speaker.engine:
        case "flite":
            return ["flite", "-voice", speaker.voice, "-t", text, "-o", str(wav)], None
        case "festival":
            return ["text2wave", "-eval", f"(voice_{speaker.voice})", "-o", str(wav)], text
        case "espeak-ng":
            return ["espeak-ng", "-v", speaker.voice, "-w", str(wav), text], None
