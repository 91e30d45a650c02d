"""Measure how well a Whisper reads the scenario library: word error rates.

    python -m training.whisper.read DIRECTORY [--window fit]

It reads through the backend `whisper`, as the agent does. Needs no torch.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypedDict

import numpy as np
from rapidfuzz.distance import Levenshtein

from training.whisper.recipe import Recipe
from training.whisper.speech import (
    HELD_OUT,
    RATE,
    TRAINED,
    Voice,
    available,
    library_sentences,
    on_the_line,
    speak,
    unseen_sentences,
)
from training.whisper.takes import planned
from turngap.core.audio import Pcm
from turngap.scenario.library import load_scenario
from turngap.scenario.model import library_dir, library_paths
from turngap_services.stt import WhisperSettings
from turngap_services.stt.whisper import Reader
from turngap_services.text import spoken_words

_SEED = 1_000_003  # not the training's
_UNSEEN = 100


class Count(TypedDict):
    """Words that were read wrong: substituted, left out or put in."""

    wrong: int
    words: int
    wer: float


def evaluate(directory: Path, window: Literal["full", "fit"] = "full") -> dict[str, Count]:
    """Test the library's recordings, then its sentences and unseen ones in new takes and voices."""
    reader = Reader(WhisperSettings(model=str(directory), window=window))
    voices = available(TRAINED)
    known = {take.text for take in planned(Recipe())}
    library, unseen = library_sentences(), unseen_sentences(_UNSEEN, _SEED, known)
    return {
        "the library's recordings": count(reader, recordings()),
        "the library's sentences, voices of the training": count(reader, takes(library, voices)),
        "the library's sentences, a voice never heard": count(reader, takes(library, [HELD_OUT])),
        "sentences never heard, voices of the training": count(reader, takes(unseen, voices)),
    }


def recordings() -> Iterable[tuple[str, Pcm]]:
    """Yield each recording with its words."""
    for path in library_paths(library_dir()):
        loaded = load_scenario(path)
        for turn in loaded.scenario.turns:
            yield " ".join(spoken_words(turn.say)), loaded.clips[turn.audio].at_rate(RATE)


def takes(texts: Iterable[str], voices: list[Voice]) -> Iterable[tuple[str, Pcm]]:
    """Yield the sentences, spoken by each voice in turn, on a line with its noise."""
    draw = np.random.default_rng(_SEED)
    for number, text in enumerate(texts):
        pcm = speak(voices[number % len(voices)], text, float(draw.uniform(0.9, 1.1)))
        yield text, on_the_line(pcm, draw, gently=True)


def count(reader: Reader, spoken: Iterable[tuple[str, Pcm]]) -> Count:
    """Count the wrong words in all of it."""
    wrong = words = 0
    for text, pcm in spoken:
        wrong += Levenshtein.distance(text.split(), spoken_words(reader.read(pcm).text))
        words += len(text.split())
    return {"wrong": wrong, "words": words, "wer": wrong / words}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--window", choices=("full", "fit"), default="full", help="see stt.window")
    arguments = parser.parse_args()
    for name, counted in evaluate(arguments.directory, arguments.window).items():
        print(
            f"{name}: {counted['wrong']} of {counted['words']} words wrong ({counted['wer']:.1%})"
        )


if __name__ == "__main__":
    main()
