"""What the closed-domain recogniser takes for its own sentences, and what for others.

    python benchmarks/out_of_domain.py [--voices DIR] [--sentences]

Sentences of the set `judge` of `training.unknown` are said by voices that the library was not
recorded with, and that nothing was fitted or calibrated on. Beside them stand those that must not
be refused: the library's recordings, its sentences in the same other voices, spoken dialogues of
the grammar's held-out side, and generated turns, each with a recogniser of its own sentences. With
`--voices`, people say sentences of their own (not to be refused), and to the library's recogniser
the same are from outside its domain. Needs flite, festival and espeak-ng.
"""

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from half_gap.people import make_library
from held_out_talk import main as held_out
from rapidfuzz.distance import Levenshtein

from training.turns.sentences import sentences as turns
from training.turns.speakers import SPEAKERS, Speaker
from training.unknown.takes import LINES, Line, espeak, read, said, sentences
from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, dbfs_to_amplitude
from turngap.core.stats import wilson
from turngap.scenario.library import library_dir, library_paths, load_scenario
from turngap_services.stt.pocketsphinx import PocketsphinxSettings
from turngap_services.stt.pocketsphinx.known import LEAST_MS, shipped
from turngap_services.stt.pocketsphinx.model import (
    Model,
    Saying,
    build_model,
    library_model,
    library_sayings,
)
from turngap_services.stt.pocketsphinx.recogniser import Recogniser
from turngap_services.stt.sound import RATE
from turngap_services.text import spoken_words

# None of them is in the library, and none in the set that was fitted on.
OTHERS = (
    Speaker("festival", "cmu_us_slt_arctic_hts"),
    Speaker("flite", "kal"),
    *espeak("en-us+Annie", "en-us+m7", "en-us+michel", "en-us+klatt4", "en-us+linda"),
    *espeak("en-gb", "en-gb-scotland", "en-us+Mike"),
)
TURNS = 40
DIALOGUES = 12
CONDITIONS = {"clean": "original", "noise": "noise20", "telephone": "mulaw8k"}

Take = tuple[Pcm, float, float]


@dataclass(frozen=True)
class Judged:
    """A take and what was made of it."""

    said: str
    text: str
    known: bool
    answered: bool

    @property
    def read(self) -> bool:
        """Whether at most a quarter of its words is wrong."""
        words = spoken_words(self.said)
        return Levenshtein.distance(words, self.text.split()) <= len(words) / 4


def judged(text: str, take: Take, model: Model) -> Judged:
    reading = read(Recogniser(model, PocketsphinxSettings(pre_roll_ms=300)), take)
    heard = reading.heard
    known = heard is not None and shipped().knows(heard)
    offered = heard is not None and not known and heard.sounding_ms >= LEAST_MS
    return Judged(text, reading.text, known, known or offered)


def spoken(
    texts: Iterable[str], voices: tuple[Speaker, ...], line: Line
) -> Iterator[tuple[str, Take]]:
    """Each text in one voice, by turns."""
    for n, text in enumerate(texts):
        yield text, said(voices[n % len(voices)], text, line, n)


def recorded(library: Path) -> Iterator[tuple[str, Take]]:
    """The recordings of a library, on a line that is never quite silent."""
    floor = np.random.default_rng(0).normal(0, dbfs_to_amplitude(LINE_FLOOR_DBFS), RATE // 2)
    silence = np.rint(floor).astype(np.int16)
    for path in library_paths(library):
        loaded = load_scenario(path)
        for turn in loaded.scenario.turns:
            assert turn.speech is not None
            pcm = np.concatenate((silence, loaded.clips[turn.audio].at_rate(RATE), silence))
            yield turn.say, (pcm, turn.speech.start_ms + 500, turn.speech.end_ms + 500)


def sayings_of(takes: Iterable[tuple[str, Take]]) -> Model:
    return build_model([Saying("take", text) for text in dict.fromkeys(t for t, _ in takes)], {})


def share(count: int, of: int) -> str:
    low, high = wilson(count / of, of) if of else (0.0, 1.0)
    return f"{count} of {of} ({100 * low:.1f} to {100 * high:.1f} %)"


def print_inside(name: str, takes: list[tuple[str, Take]], model: Model, lines: bool) -> None:
    results = [judged(text, take, model) for text, take in takes]
    refused = [r for r in results if not r.known]
    right = [r for r in results if r.read]
    lost = sum(not r.known for r in right)
    print(
        f"{name:34s} refused {share(len(refused), len(results))}; "
        f"of those read {share(lost, len(right))}",
        flush=True,
    )
    for r in refused if lines else ():
        print(f"    {r.said!r} read {r.text!r}")


def print_outside(name: str, takes: list[tuple[str, Take]], model: Model, lines: bool) -> None:
    results = [judged(text, take, model) for text, take in takes]
    offered = sum(r.answered and not r.known for r in results)
    wrong = [r for r in results if r.known]
    print(
        f"{name:34s} “I can help with …” {share(offered, len(results))}; "
        f"taken for a known sentence {share(len(wrong), len(results))}; "
        f"no answer {sum(not r.answered for r in results)}",
        flush=True,
    )
    for r in wrong if lines else ():
        print(f"    {r.said!r} read {r.text!r}")


def main() -> None:
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ask.add_argument("--voices", type=Path, help="a folder of recorded people")
    ask.add_argument("--sentences", action="store_true", help="print each that was wrong")
    args = ask.parse_args()
    library = library_model(None, ())
    own = [saying.text for saying in library_sayings(None)]
    print(shipped().about)
    print("\nOut of the domain")
    for line in LINES:
        takes = list(spoken(sentences("judge"), OTHERS, line))
        print_outside(f"50 sentences, {line}", takes, library, args.sentences)
    print("\nIn the domain")
    print_inside("library, its recordings", list(recorded(library_dir())), library, args.sentences)
    for line in LINES:
        takes = list(spoken(own, OTHERS, line))
        print_inside(f"library, other voices, {line}", takes, library, args.sentences)
    judges = tuple(speaker for speaker, _ in SPEAKERS["judge"].voices)
    texts = [" ".join(sentence.parts) for sentence in turns("judge")[:TURNS]]
    for line in LINES:
        takes = list(spoken(texts, judges, line))
        print_inside(f"turns, judge, {line}", takes, sayings_of(takes), args.sentences)
    with tempfile.TemporaryDirectory(prefix="turngap-domain-") as folder:
        talks = Path(folder, "held-out")
        talks.mkdir()
        held_out([str(talks), "--dialogues", str(DIALOGUES)])
        takes = list(recorded(talks))
        print_inside("held-out dialogues", takes, library_model(talks, ()), args.sentences)
        for line, condition in CONDITIONS.items() if args.voices else ():
            people = Path(folder, condition)
            make_library(args.voices, condition, people)
            takes = list(recorded(people))
            print_inside(f"people, {line}", takes, library_model(people, ()), args.sentences)
            print_outside(f"people, not the library’s, {line}", takes, library, args.sentences)


if __name__ == "__main__":
    main()
