"""Word error rate and finalisation time of `pocketsphinx` over the scenario library.

Feeds the recordings in 20 ms packets to Silero VAD and to the recogniser that the service wraps:

    python benchmarks/stt_wer.py [--library DIR] [--noise-dbfs -50] [--lw 9] [--cmninit ...]
    python benchmarks/stt_wer.py --calibrate     # prints the library's mean cepstra for CMNINIT
"""

import argparse
import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams, VADState
from rapidfuzz.distance import Levenshtein

from turngap.scenario.library import library_dir, load_scenario, scenario_paths
from turngap_services.stt.pocketsphinx import PocketsphinxSettings
from turngap_services.stt.pocketsphinx.model import RATE, library_model
from turngap_services.stt.pocketsphinx.recogniser import Recogniser
from turngap_services.text import spoken_words
from turngap_services.turn.vad import VadSettings

PACKET = RATE // 50
SILENCE_S = 1.0  # before and after each recording
CALIBRATION_ROUNDS = 12


@dataclass(frozen=True)
class Said:
    """One recording and what is said in it."""

    name: str
    words: list[str]
    pcm: np.ndarray


@dataclass(frozen=True)
class Heard:
    """What became of a recording."""

    said: Said
    utterances: list[str]
    final_ms: list[float]
    decode_s: float
    late_ms: float | None  # VAD stop minus last audible sample, where labelled


def recordings(library: Path) -> Iterator[tuple[Said, float | None]]:
    for path in scenario_paths(library):
        loaded = load_scenario(path, need_labels=False)
        for turn in loaded.scenario.turns:
            for said in (turn, *(b for b in turn.backchannels if not b.is_sound)):
                clip = loaded.clips[said.audio]
                end = said.speech.end_ms if said.speech else None
                yield Said(said.audio, spoken_words(said.say), clip.at_rate(RATE)), end


async def hear(said: Said, end_ms: float | None, hearing: Recogniser, params: VADParams) -> Heard:
    vad = SileroVADAnalyzer(params=params)
    vad.set_sample_rate(RATE)
    silence = np.zeros(round(SILENCE_S * RATE), np.int16)
    pcm = np.concatenate((silence, said.pcm, silence))
    state, utterances, final_ms, decode_s, late_ms = VADState.QUIET, [], [], 0.0, None
    for at in range(0, len(pcm), PACKET):
        packet = pcm[at : at + PACKET].tobytes()
        begun = time.perf_counter()
        hearing.audio(packet)
        decode_s += time.perf_counter() - begun
        new = await vad.analyze_audio(packet)
        if new in (VADState.SPEAKING, VADState.QUIET) and new != state:
            state = new
            if state == VADState.SPEAKING:
                hearing.start()
                continue
            begun = time.perf_counter()
            utterances.append(hearing.stop())
            final_ms.append((time.perf_counter() - begun) * 1000)
            late_ms = None if end_ms is None else (at + PACKET - len(silence)) / 16 - end_ms
    await vad.cleanup()
    return Heard(said, utterances, final_ms, decode_s, late_ms)


async def calibrate(library: Path, settings: PocketsphinxSettings, params: VADParams) -> str:
    """Mean cepstra of the library's utterances as the decoder hears them, pre-roll and all.

    The decoder's own running mean gives its start value the weight of 5 s, so the average is fed
    back until it stands still.
    """
    model = library_model(library, ())
    all_said = list(recordings(library))
    for _ in range(CALIBRATION_ROUNDS):
        means: list[list[float]] = []
        for said, end_ms in all_said:
            hearing = Recogniser(model, settings)
            await hear(said, end_ms, hearing, params)
            means.append([float(x) for x in hearing.cepstral_means().split(",")])
        cmninit = ",".join(f"{x:.1f}" for x in np.mean(means, axis=0))
        print(cmninit)
        settings = settings.model_copy(update={"cmninit": cmninit})
    return settings.cmninit


async def main() -> None:
    logger.remove()  # pipecat's debug lines
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    ask.add_argument("--library", type=Path)
    ask.add_argument("--calibrate", action="store_true")
    ask.add_argument("--cmninit")
    ask.add_argument("--lw", type=float)
    ask.add_argument("--noise-dbfs", type=float)
    ask.add_argument("--min-volume", type=float, default=VadSettings().min_volume)
    ask.add_argument("--quiet", action="store_true", help="no line for each recording")
    args = ask.parse_args()
    chosen = {"cmninit": args.cmninit, "language_weight": args.lw, "noise_dbfs": args.noise_dbfs}
    settings = PocketsphinxSettings.model_validate(
        {k: v for k, v in chosen.items() if v is not None}
    )
    library = library_dir(args.library)
    params = VADParams(min_volume=args.min_volume)
    if args.calibrate:
        await calibrate(library, settings, params)
        return
    model = library_model(library, ())
    results = []
    for said, end_ms in recordings(library):
        results.append(await hear(said, end_ms, Recogniser(model, settings), params))
    errors = words = 0
    for r in results:
        got = " ".join(r.utterances).split()
        wrong = Levenshtein.distance(r.said.words, got)
        errors, words = errors + wrong, words + len(r.said.words)
        if not args.quiet and (wrong or len(r.utterances) != 1):
            print(f"{r.said.name}: {' '.join(r.said.words)!r} -> {r.utterances}")
    final = np.array([ms for r in results for ms in r.final_ms])
    late = np.array([r.late_ms for r in results if r.late_ms is not None])
    audio_s = sum(len(r.said.pcm) for r in results) / RATE
    print(
        f"WER {100 * errors / words:.1f} % ({errors} of {words} words, {len(results)} recordings)"
    )
    print(
        f"final text after the VAD's stop: p50 {np.median(final):.2f} ms, "
        f"p99 {np.quantile(final, 0.99):.2f} ms, max {final.max():.2f} ms, n {len(final)}"
    )
    print(
        f"decoding: {sum(r.decode_s for r in results) / audio_s:.3f} of real time, n {len(results)}"
    )
    if len(late):
        print(
            f"VAD's stop after the labelled end: p50 {np.median(late):.0f} ms, "
            f"p99 {np.quantile(late, 0.99):.0f} ms, max {late.max():.0f} ms, n {len(late)}"
        )


if __name__ == "__main__":
    asyncio.run(main())
