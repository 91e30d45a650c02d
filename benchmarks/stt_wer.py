"""Word error rate and finalisation time of `pocketsphinx` over the library, or over people.

Feeds the recordings in 20 ms packets to what finds the voice in `adaptive` and to the recogniser
that the service wraps, which knows the sentences that are said:

    python benchmarks/stt_wer.py [--library DIR] [--lw 9] [--cmninit ...]
    python benchmarks/stt_wer.py --voices DIR    # people, under each condition of the line

A folder of people has a `voices.json` (see `half_gap/people.py`).
"""

import argparse
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from half_gap.people import CONDITIONS, make_library
from loguru import logger
from rapidfuzz.distance import Levenshtein

from turngap.agent.stack import stack_files
from turngap.scenario.library import load_scenario
from turngap.scenario.model import library_dir, scenario_paths
from turngap_services.sound import RATE
from turngap_services.stt import PocketsphinxSettings
from turngap_services.stt.pocketsphinx import Recogniser
from turngap_services.stt.sentences import library_model
from turngap_services.text import spoken_words
from turngap_services.turn import AdaptiveSettings
from turngap_services.turn.voice import Voice, silero_model

PACKET = RATE // 50
SILENCE_S = 1.0  # before and after each recording
HOLD = RATE // 4  # silence after which `adaptive` has the utterance concluded
EMBEDDED = tomllib.loads(stack_files()["embedded"].read_text(encoding="utf-8"))
RESAMPLES = 2000


@dataclass(frozen=True)
class Said:
    """One recording and what is said in it."""

    name: str
    words: list[str]
    pcm: np.ndarray


@dataclass(frozen=True)
class Heard:
    """Result of a recording."""

    said: Said
    utterances: list[str]
    final_ms: list[float]
    decode_s: float
    late_ms: float | None  # the verdict "stopped" minus last audible sample, where labelled

    @property
    def got(self) -> list[str]:
        return " ".join(self.utterances).split()

    @property
    def wrong(self) -> int:
        return Levenshtein.distance(self.said.words, self.got)


def recordings(library: Path) -> Iterator[tuple[Said, float | None]]:
    for path in scenario_paths(library):
        loaded = load_scenario(path, need_labels=False)
        for turn in loaded.scenario.turns:
            for said in (turn, *(b for b in turn.backchannels if not b.is_sound)):
                clip = loaded.clips[said.audio]
                end = said.speech.end_ms if said.speech else None
                yield Said(said.audio, spoken_words(said.say), clip.at_rate(RATE)), end


def hear(said: Said, end_ms: float | None, hearing: Recogniser) -> Heard:
    models = (silero_model(RATE), silero_model(RATE))
    voice = Voice(RATE, models, AdaptiveSettings().confidence)
    silence = np.zeros(round(SILENCE_S * RATE), np.int16)
    pcm = np.concatenate((silence, said.pcm, silence))
    utterances, final_ms, decode_s, late_ms = [], [], 0.0, None
    for at in range(0, len(pcm), PACKET):
        packet = pcm[at : at + PACKET].tobytes()
        begun = time.perf_counter()
        hearing.audio(packet)
        decode_s += time.perf_counter() - begun
        voice.feed(np.frombuffer(packet, np.int16))
        if voice.last_audible is not None and voice.heard - voice.last_audible >= HOLD:
            voice.settle()
        speaks = voice.onset is not None
        if speaks and not hearing.in_utterance:
            hearing.start()
        elif hearing.in_utterance and not speaks:
            begun = time.perf_counter()
            utterances.append(hearing.stop())
            final_ms.append((time.perf_counter() - begun) * 1000)
            late_ms = None if end_ms is None else (at + PACKET - len(silence)) / 16 - end_ms
    return Heard(said, utterances, final_ms, decode_s, late_ms)


def measure(library: Path, settings: PocketsphinxSettings) -> list[Heard]:
    model = library_model(library, ())
    return [hear(said, end_ms, Recogniser(model, settings)) for said, end_ms in recordings(library)]


def words_wrong(results: list[Heard]) -> str:
    """Return the word error rate with its interval, from recordings drawn with replacement."""
    wrong = np.array([r.wrong for r in results])
    words = np.array([len(r.said.words) for r in results])
    drawn = np.random.default_rng(0).integers(0, len(results), (RESAMPLES, len(results)))
    low, high = np.quantile(wrong[drawn].sum(1) / words[drawn].sum(1), [0.025, 0.975])
    empty = sum(not r.got for r in results)
    return (
        f"WER {100 * wrong.sum() / words.sum():.1f} % ({100 * low:.1f} to {100 * high:.1f}; "
        f"{wrong.sum()} of {words.sum()} words), without a word {empty} of {len(results)}"
    )


def print_misread(results: list[Heard]) -> None:
    for r in results:
        if r.wrong or len(r.utterances) != 1:
            print(f"{r.said.name}: {' '.join(r.said.words)!r} -> {r.utterances}")


def print_times(results: list[Heard]) -> None:
    final = np.array([ms for r in results for ms in r.final_ms])
    late = np.array([r.late_ms for r in results if r.late_ms is not None])
    audio_s = sum(len(r.said.pcm) for r in results) / RATE
    print(
        f"final text after the verdict 'stopped': p50 {np.median(final):.2f} ms, "
        f"p99 {np.quantile(final, 0.99):.2f} ms, max {final.max():.2f} ms, n {len(final)}"
    )
    print(
        f"decoding: {sum(r.decode_s for r in results) / audio_s:.3f} of real time, n {len(results)}"
    )
    if len(late):
        print(
            f"that verdict after the labelled end: p50 {np.median(late):.0f} ms, "
            f"p99 {np.quantile(late, 0.99):.0f} ms, max {late.max():.0f} ms, n {len(late)}"
        )


def main() -> None:
    logger.remove()  # pipecat's debug lines
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    ask.add_argument("--library", type=Path)
    ask.add_argument("--voices", type=Path, help="a folder of recorded people")
    ask.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    ask.add_argument("--cmninit")
    ask.add_argument("--lw", type=float)
    args = ask.parse_args()
    pre_roll_ms = EMBEDDED["stt"]["pre_roll_ms"]
    chosen = {"cmninit": args.cmninit, "language_weight": args.lw, "pre_roll_ms": pre_roll_ms}
    settings = PocketsphinxSettings.model_validate(
        {k: v for k, v in chosen.items() if v is not None}
    )
    library = library_dir(args.library)
    with tempfile.TemporaryDirectory(prefix="turngap-people-") as folder:
        if args.voices:
            for condition in args.conditions:
                people = Path(folder, condition)
                make_library(args.voices, condition, people)
                results = measure(people, settings)
                print_misread(results)
                print(f"{condition:9s} {words_wrong(results)}", flush=True)
        else:
            results = measure(library, settings)
            print_misread(results)
            print(words_wrong(results))
            print_times(results)


if __name__ == "__main__":
    main()
