"""Word error rate of published Whisper models on people, by how much of the audio is read at once.

    tools/published-weights weights
    HF_HUB_CACHE=weights python benchmarks/whisper_wer.py --voices DIR --write docs/open-world.md

Each recording is read in three ways: `live`, as the agent reads it (in every pause, a little more
than the audio, words before a pause kept once two readings agree), `short` (all of it at once, a
little more than the audio) and `whole` (all of it in the window of 30 s). Sizes that are
not in the cache are left out. A folder of people has a `voices.json` (see `half_gap/people.py`).
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from endings import errors_told
from half_gap.people import make_library
from loguru import logger
from pages import write
from rapidfuzz.distance import Levenshtein
from stt_wer import PACKET, RESAMPLES, SILENCE_S, Said, recordings

from turngap.backends.weights import state_of
from turngap.core.audio import Pcm
from turngap.core.errors import InputError
from turngap_services.loading import pinned_names
from turngap_services.sound import RATE
from turngap_services.stt import WhisperSettings, weights_of
from turngap_services.stt.readings import Utterance
from turngap_services.stt.whisper import Reader
from turngap_services.text import spoken_words
from turngap_services.turn import AdaptiveSettings
from turngap_services.turn.voice import Voice, silero_model

BEGIN = "<!-- made by benchmarks/whisper_wer.py -->"
MS = RATE // 1000


def read_live(reader: Reader, settings: WhisperSettings, pcm: Pcm) -> tuple[str, float]:
    """Return the text read as in a conversation, and the time of the last reading, ms."""
    voice = Voice(RATE, (silero_model(RATE), silero_model(RATE)), AdaptiveSettings().confidence)
    utterance = Utterance(settings, reader.window_s)
    announced, took_ms = None, 0.0
    for at in range(0, len(pcm), PACKET):
        voice.feed(pcm[at : at + PACKET])
        utterance.audio(pcm[at : at + PACKET])
        last = voice.last_audible
        silent = 0 if last is None else voice.heard - last
        if last is not None and last != announced and silent >= settings.pause_ms * MS:
            announced = last
            utterance.pause(silent / MS)
        if last is not None and at + PACKET >= len(pcm):
            utterance.stop(silent / MS)
        while reading := utterance.due():
            begun = time.perf_counter()
            text = reader.read(reading.pcm).text
            took_ms = (time.perf_counter() - begun) * 1000
            utterance.read(reading, text, took_ms)
    return utterance.text, took_ms


def read_at_once(reader: Reader, settings: WhisperSettings, pcm: Pcm) -> tuple[str, float]:
    """Return the text of one reading, and its time, ms."""
    begun = time.perf_counter()
    text = reader.read(pcm).text
    return text, (time.perf_counter() - begun) * 1000


WAYS: dict[str, tuple[str, Callable[[Reader, WhisperSettings, Pcm], tuple[str, float]]]] = {
    "live": ("fit", read_live),
    "short": ("fit", read_at_once),
    "whole": ("full", read_at_once),
}


def row(size: str, way: str, people: Sequence[Said]) -> str:
    """Read everyone in one way, and write the line of the table."""
    window, read = WAYS[way]
    settings = WhisperSettings.model_validate({"model": size, "device": "cpu", "window": window})
    reader = Reader(settings)
    wrong, words, times = [], [], []
    silence = np.zeros(round(SILENCE_S * RATE), np.int16)
    for said in people:
        text, took_ms = read(reader, settings, np.concatenate((silence, said.pcm, silence)))
        heard = spoken_words(text)
        wrong.append(Levenshtein.distance(said.words, heard))
        words.append(len(said.words))
        times.append(took_ms)
    drawn = np.random.default_rng(0).integers(0, len(people), (RESAMPLES, len(people)))
    rates = np.array(wrong)[drawn].sum(1) / np.array(words)[drawn].sum(1)
    low, high = np.quantile(rates, [0.025, 0.975])
    cells = (
        f"`{size}`", way, f"{sum(wrong)} of {sum(words)}",
        f"{sum(wrong) / sum(words):.1%} ({low:.1%} to {high:.1%})",
        f"{np.median(times):.0f} / {np.quantile(times, 0.95):.0f}",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    logger.remove()  # pipecat's debug lines
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--voices", type=Path, required=True, help="a folder of recorded people")
    parser.add_argument("--model", action="append", default=[], help="a size (all that are there)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table into a page")
    given = parser.parse_args()
    with errors_told(), TemporaryDirectory(prefix="turngap-wer-") as folder:
        sizes = given.model or [s for s in pinned_names("whisper") if _is_here(s)]
        if not sizes:
            raise InputError(
                "whisper_wer.none", "no Whisper is in the cache", hint="HF_HUB_CACHE=DIR"
            )
        make_library(given.voices, "original", Path(folder))
        people = [said for said, _ in recordings(Path(folder))]
        head = ("model", "read", "words wrong", "WER (95 %)", "last reading p50 / p95, ms")
        lines = [f"| {' | '.join(head)} |", "| --- | --- | --- | --- | --- |"]
        for size in sizes:
            for way in WAYS:
                lines.append(row(size, way, people))
                print(lines[-1], flush=True)
    text = f"{chr(10).join(lines)}\n\n{len(people)} recordings of people; one thread, int8."
    if given.write is not None:
        write(given.write, BEGIN, text)


def _is_here(size: str) -> bool:
    weights = weights_of(WhisperSettings(model=size))
    return weights is not None and state_of(weights).complete


if __name__ == "__main__":
    main()
