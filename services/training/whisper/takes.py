"""Takes for training: speakers, sentences, pace and pauses.

Needs no torch.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from training.whisper.recipe import Recipe
from training.whisper.speech import RATE, TRAINED, Voice, available, sentences, speak
from turngap.core.audio import Pcm

_PACES = (0.8, 1.2)
# Of the sentences that are long enough, so many have a pause in them, as some of the library's do,
# or break off or begin there, as what a turn-taking cuts at a pause does.
_PAUSE_SHARE, _CUT_SHARE = 0.2, 0.1
_PAUSE_MS = (150.0, 1250.0)
_LEAST_WORDS = 4
# Left of the window for the silence around an utterance, and for a slower voice.
_AROUND_S = 1.4


@dataclass(frozen=True, slots=True)
class Take:
    """One recording.

    Attributes:
        parts: what is said before and after a pause; one part: without a pause.
        voice: who says it.
        pace: see `speak`.
        pause_ms: between the parts.
        breaks_off: the last words are said as if more were to come.
    """

    parts: tuple[str, ...]
    voice: Voice
    pace: float
    pause_ms: float = 0.0
    breaks_off: bool = False

    @property
    def text(self) -> str:
        """Return all that is said."""
        return " ".join(self.parts)

    def recorded(self) -> Pcm:
        """Speak the take, from its first to its last audible sample, at 16 kHz."""
        pcm: list[Pcm] = []
        for number, part in enumerate(self.parts, start=1):
            # The comma makes an engine end on a rising, unfinished tone.
            goes_on = number < len(self.parts) or self.breaks_off
            pcm += [
                speak(self.voice, part + "," * goes_on, self.pace),
                np.zeros(round(self.pause_ms * RATE / 1000), np.int16),
            ]
        return np.concatenate(pcm[:-1])


def planned(recipe: Recipe) -> list[Take]:
    """Plan every take of the training; nothing is recorded yet."""
    draw = np.random.default_rng(recipe.seed)
    return [_take(text, draw) for text in sentences(recipe.utterances, recipe.seed)]


def _take(text: str, draw: np.random.Generator) -> Take:
    voice, pace = TRAINED[draw.integers(len(TRAINED))], float(draw.uniform(*_PACES))
    words, chance = text.split(), draw.random()
    if len(words) < _LEAST_WORDS or chance >= _PAUSE_SHARE + _CUT_SHARE:
        return Take((text,), voice, pace)
    at = int(draw.integers(1, len(words)))
    before, after = " ".join(words[:at]), " ".join(words[at:])
    if chance < _PAUSE_SHARE:
        return Take((before, after), voice, pace, float(draw.uniform(*_PAUSE_MS)))
    if draw.random() < 0.5:
        return Take((before,), voice, pace, breaks_off=True)
    return Take((after,), voice, pace)


def heard(recipe: Recipe, directory: Path) -> list[tuple[str, Pcm]]:
    """Record the takes that fit into the window, with their words; this takes minutes.

    Args:
        recipe: decides what they are.
        directory: where the takes are cached.

    Raises:
        SystemExit: an engine is missing, so that the weights would differ.
    """
    plan = planned(recipe)
    kept = directory / "takes.npz"
    key = json.dumps([asdict(take) for take in plan])
    if kept.exists():
        with np.load(kept) as file:
            if str(file["plan"]) == key:
                sounds = np.split(file["samples"], file["ends"][:-1])
                return _fitting(plan, sounds, recipe)
    if available(TRAINED) != list(TRAINED):
        raise SystemExit("flite is missing: apt-get install flite")
    sounds = [take.recorded() for take in plan]
    ends = np.cumsum([len(pcm) for pcm in sounds])
    partial = directory / "takes.part.npz"
    np.savez(partial, plan=key, samples=np.concatenate(sounds), ends=ends)
    partial.replace(kept)
    return _fitting(plan, sounds, recipe)


def _fitting(plan: list[Take], sounds: list[Pcm], recipe: Recipe) -> list[tuple[str, Pcm]]:
    longest = (recipe.window_s - _AROUND_S) * RATE
    every = zip(plan, sounds, strict=True)
    return [(take.text, pcm) for take, pcm in every if len(pcm) <= longest]
