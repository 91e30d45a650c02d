"""Word error rate and finalisation time of `pocketsphinx` over the library, or over people.

Feeds the recordings in 20 ms packets to what finds the voice (`--ears`: that of `adaptive`, or
pipecat's Silero with the settings of `vad` or `smart-turn`) and to the recogniser that the service
wraps, which knows the sentences that are said:

    python benchmarks/stt_wer.py [--library DIR] [--lw 9] [--cmninit ...]
    python benchmarks/stt_wer.py --voices DIR    # people, under each condition of the line
    python benchmarks/stt_wer.py --calibrate --voices DIR   # prints mean cepstra for CMNINIT

A folder of people has a `voices.json` (see `half_gap/people.py`).
"""

import argparse
import asyncio
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from half_gap.people import CONDITIONS, make_library
from loguru import logger
from pipecat.audio.vad.silero import SileroVADAnalyzer
from pipecat.audio.vad.vad_analyzer import VADParams, VADState
from rapidfuzz.distance import Levenshtein

from turngap.agent.stack import stack_files
from turngap.scenario import silero
from turngap.scenario.library import library_dir, load_scenario, scenario_paths
from turngap_services.stt.pocketsphinx import PocketsphinxSettings
from turngap_services.stt.pocketsphinx.model import library_model
from turngap_services.stt.pocketsphinx.recogniser import Recogniser
from turngap_services.stt.sound import RATE
from turngap_services.text import spoken_words
from turngap_services.turn.adaptive import AdaptiveSettings
from turngap_services.turn.adaptive.voice import Voice
from turngap_services.turn.vad import SmartTurnSettings, VadSettings

PACKET = RATE // 50
SILENCE_S = 1.0  # before and after each recording
HOLD = RATE // 4  # silence after which `adaptive` has the utterance concluded
CALIBRATION_ROUNDS = 12
# Its ears find a voice sooner than pipecat's VAD, so it needs less of what was before.
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
    """What became of a recording."""

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


class SileroEars:
    """pipecat's analyzer."""

    def __init__(self, settings: VadSettings | SmartTurnSettings) -> None:
        self._vad = SileroVADAnalyzer(
            params=VADParams(**settings.model_dump(include={*VADParams.model_fields}))
        )
        self._vad.set_sample_rate(RATE)
        self._state = VADState.QUIET

    async def speaks(self, packet: bytes) -> bool:
        new = await self._vad.analyze_audio(packet)
        if new in (VADState.SPEAKING, VADState.QUIET):
            self._state = new
        return self._state == VADState.SPEAKING

    async def close(self) -> None:
        await self._vad.cleanup()


class AdaptiveEars:
    """Those of `adaptive`: an utterance is over after 250 ms of silence."""

    def __init__(self) -> None:
        models = (silero.model(RATE), silero.model(RATE))
        self._voice = Voice(RATE, models, AdaptiveSettings().confidence)

    async def speaks(self, packet: bytes) -> bool:
        voice = self._voice
        voice.feed(np.frombuffer(packet, np.int16))
        if voice.last_audible is not None and voice.heard - voice.last_audible >= HOLD:
            voice.settle()
        return voice.onset is not None

    async def close(self) -> None: ...


EARS = {
    "adaptive": AdaptiveEars,
    "vad": lambda: SileroEars(VadSettings()),
    "smart-turn": lambda: SileroEars(SmartTurnSettings()),
}


def recordings(library: Path) -> Iterator[tuple[Said, float | None]]:
    for path in scenario_paths(library):
        loaded = load_scenario(path, need_labels=False)
        for turn in loaded.scenario.turns:
            for said in (turn, *(b for b in turn.backchannels if not b.is_sound)):
                clip = loaded.clips[said.audio]
                end = said.speech.end_ms if said.speech else None
                yield Said(said.audio, spoken_words(said.say), clip.at_rate(RATE)), end


async def hear(said: Said, end_ms: float | None, hearing: Recogniser, ears_name: str) -> Heard:
    ears = EARS[ears_name]()
    silence = np.zeros(round(SILENCE_S * RATE), np.int16)
    pcm = np.concatenate((silence, said.pcm, silence))
    utterances, final_ms, decode_s, late_ms = [], [], 0.0, None
    for at in range(0, len(pcm), PACKET):
        packet = pcm[at : at + PACKET].tobytes()
        begun = time.perf_counter()
        hearing.audio(packet)
        decode_s += time.perf_counter() - begun
        speaks = await ears.speaks(packet)
        if speaks and not hearing.in_utterance:
            hearing.start()
        elif hearing.in_utterance and not speaks:
            begun = time.perf_counter()
            utterances.append(hearing.stop())
            final_ms.append((time.perf_counter() - begun) * 1000)
            late_ms = None if end_ms is None else (at + PACKET - len(silence)) / 16 - end_ms
    await ears.close()
    return Heard(said, utterances, final_ms, decode_s, late_ms)


async def calibrate(libraries: list[Path], settings: PocketsphinxSettings, ears: str) -> None:
    """Print mean cepstra of the utterances as the decoder hears them, halfway between libraries.

    The decoder's own running mean gives its start value the weight of 5 s, so the average is fed
    back until it stands still.
    """
    for _ in range(CALIBRATION_ROUNDS):
        means = []
        for library in libraries:
            model, of_library = library_model(library, ()), []
            for said, end_ms in recordings(library):
                hearing = Recogniser(model, settings)
                await hear(said, end_ms, hearing, ears)
                of_library.append([float(x) for x in hearing.cepstral_means().split(",")])
            means.append(np.mean(of_library, axis=0))
            print(f"  {_numbers(means[-1])} {library} (n {len(of_library)})")
        cmninit = _numbers(np.mean(means, axis=0))
        print(cmninit, flush=True)
        settings = settings.model_copy(update={"cmninit": cmninit})


def _numbers(means: np.ndarray) -> str:
    return ",".join(f"{x:.1f}" for x in means)


async def measure(library: Path, settings: PocketsphinxSettings, ears: str) -> list[Heard]:
    model = library_model(library, ())
    return [
        await hear(said, end_ms, Recogniser(model, settings), ears)
        for said, end_ms in recordings(library)
    ]


def words_wrong(results: list[Heard]) -> str:
    """The word error rate with its interval, from recordings drawn again with replacement."""
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


async def main() -> None:
    logger.remove()  # pipecat's debug lines
    ask = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    ask.add_argument("--library", type=Path)
    ask.add_argument("--voices", type=Path, help="a folder of recorded people")
    ask.add_argument("--conditions", nargs="+", choices=CONDITIONS, default=list(CONDITIONS))
    ask.add_argument("--ears", choices=EARS, default="adaptive")
    ask.add_argument("--calibrate", action="store_true")
    ask.add_argument("--cmninit")
    ask.add_argument("--lw", type=float)
    ask.add_argument("--quiet", action="store_true", help="no line for each recording")
    args = ask.parse_args()
    pre_roll_ms = EMBEDDED["stt"]["pre_roll_ms"] if args.ears == "adaptive" else None
    chosen = {"cmninit": args.cmninit, "language_weight": args.lw, "pre_roll_ms": pre_roll_ms}
    settings = PocketsphinxSettings.model_validate(
        {k: v for k, v in chosen.items() if v is not None}
    )
    library = library_dir(args.library)
    with tempfile.TemporaryDirectory(prefix="turngap-people-") as folder:
        if args.calibrate:
            libraries = [library]
            if args.voices:
                make_library(args.voices, "original", Path(folder))
                libraries.append(Path(folder))
            await calibrate(libraries, settings, args.ears)
        elif args.voices:
            for condition in args.conditions:
                people = Path(folder, condition)
                make_library(args.voices, condition, people)
                results = await measure(people, settings, args.ears)
                if not args.quiet:
                    print_misread(results)
                print(f"{condition:9s} {words_wrong(results)}", flush=True)
        else:
            results = await measure(library, settings, args.ears)
            if not args.quiet:
                print_misread(results)
            print(words_wrong(results))
            print_times(results)


if __name__ == "__main__":
    asyncio.run(main())
