"""Measure the error of `turngap label`, on people and on shipped recordings with noise.

    python benchmarks/labels.py [--voices DIR]

DIR holds `voices.json`, a list of {name, speech: {start_ms, end_ms}, source}, and NAME.flac for
each: people, whose bounds somebody has marked by hand. Each is labelled at several levels, one of
which clips. Nothing is fitted; `--by-source` shows how much the figures hang on any one source.
Then each says its last 250 to 700 ms once more after a pause, as loud or softer, in its own room.

The shipped recordings are synthetic, and their bounds exact: they were taken on clean takes. Pink
noise is mixed over those that have none.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from turngap.core.audio import AUDIBLE_DBFS, FULL_SCALE, Pcm, rms_dbfs
from turngap.core.cue import SpeechBounds
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import EXTRA, library_dir, library_paths
from turngap.scenario.speech import DOUBTFUL_MS, find_speech

LEVELS_DB = (0, -10, -20, 6)
SOFTER_DB = (0, -6, -12, -18)
PAUSES_MS = (400, 1500)
WORDS_MS = (250, 450, 700)
DECAY_MS = 100
SNRS_DB = (None, 30, 20, 15, 10)
RATE = 16_000

# These concern the recording; the others say that a bound may be wrong.
OF_THE_RECORDING = {"clipping", "digital_silence"}


@dataclass(frozen=True)
class Labelled:
    """One recording at one level: how far its bounds are off, and what was warned of."""

    voice: dict[str, Any]
    start_off_ms: float
    end_off_ms: float
    start_error_ms: float
    end_error_ms: float
    warned: bool

    @property
    def bad(self) -> bool:
        return max(abs(self.start_off_ms), abs(self.end_off_ms)) > DOUBTFUL_MS


def at_level(pcm: Pcm, db: float) -> Pcm:
    """Return the recording louder or softer; what does not fit into int16 is clipped."""
    return np.clip(np.rint(pcm * 10 ** (db / 20)), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def with_noise(pcm: Pcm, snr_db: float | None, speech: SpeechBounds, seed: int) -> Pcm:
    """Pink noise from 60 Hz up, so far below the RMS of the audible parts of the speech."""
    if snr_db is None:
        return pcm
    noise = np.fft.rfft(np.random.default_rng(seed).normal(size=len(pcm)))
    hz = np.fft.rfftfreq(len(pcm), 1 / RATE)
    pink = np.fft.irfft(noise * np.where(hz < 60, 0.0, 1 / np.sqrt(np.maximum(hz, 60))), len(pcm))
    first, last = (round(ms * RATE / 1000) for ms in (speech.start_ms, speech.end_ms))
    levels = [rms_dbfs(pcm[i : i + 160]) for i in range(first, last, 160)]
    powers = [10 ** (level / 10) for level in levels if level >= AUDIBLE_DBFS]
    rms = FULL_SCALE * float(np.sqrt(np.mean(powers))) * 10 ** (-snr_db / 20)
    return np.rint(pcm + pink / np.std(pink) * rms).astype(np.int16)


def said_again(
    pcm: Pcm, rate: int, speech: dict[str, float], *, pause_ms: int, word_ms: int, db: float
) -> tuple[Pcm, dict[str, float]]:
    """Repeat the end of the speech after a pause with the sound of the room."""
    start, end, pause, word, decay = (
        round(ms * rate / 1000)
        for ms in (speech["start_ms"], speech["end_ms"], pause_ms, word_ms, DECAY_MS)
    )
    room = max(pcm[: max(0, start - decay)], pcm[end + decay :], key=len)
    upto = pcm[: end + pause]
    bed = np.resize(room, end + pause + word + rate - len(upto))
    out = np.concatenate((upto, bed)).astype(np.int32)
    again = pcm[end - word : end + decay] * 10 ** (db / 20)
    out[end + pause :][: len(again)] += np.rint(again).astype(np.int32)
    ends_ms = speech["end_ms"] + pause_ms + word_ms
    return np.clip(out, -FULL_SCALE, FULL_SCALE - 1).astype(np.int16), speech | {"end_ms": ends_ms}


def labelled(voice: dict[str, Any], pcm: Pcm, rate: int) -> Labelled | None:
    found = find_speech(pcm, rate)
    if found is None:
        return None
    bounds, truth = found.bounds, voice["speech"]
    return Labelled(
        voice,
        bounds.start_ms - truth["start_ms"],
        bounds.end_ms - truth["end_ms"],
        bounds.start_error_ms or 0.0,
        bounds.end_error_ms or 0.0,
        any(w.kind not in OF_THE_RECORDING for w in found.warnings),
    )


def recording(folder: Path, voice: dict[str, Any]) -> tuple[Pcm, int]:
    samples, rate = soundfile.read(folder / f"{voice['name']}.flac", dtype="int16")
    return np.asarray(samples, dtype=np.int16), rate


def at_levels(folder: Path, voice: dict[str, Any], db: float) -> Labelled | None:
    pcm, rate = recording(folder, voice)
    return labelled(voice, at_level(pcm, db), rate)


def library(snr_db: float | None) -> list[Labelled | None]:
    """Label the turns that are played by default, with that much noise."""
    found: list[Labelled | None] = []
    for loaded in load_scenarios(library_paths(library_dir())):
        if {EXTRA, "noise"} & set(loaded.scenario.tags):
            continue
        for turn in loaded.scenario.turns:
            assert turn.speech
            pcm = with_noise(
                loaded.clips[turn.audio].at_rate(RATE), snr_db, turn.speech, len(found)
            )
            voice = {"name": turn.audio, "speech": turn.speech.model_dump(), "source": "library"}
            found.append(labelled(voice, pcm, RATE))
    return found


def quantiles(values: Sequence[float]) -> str:
    """Median, 90th percentile and largest of the absolute values."""
    off = np.abs(values)
    return f"{np.median(off):4.0f} /{np.percentile(off, 90):4.0f} /{off.max():4.0f}"


def within(labels: Sequence[Labelled], off: Callable[[Labelled], tuple[float, float]]) -> str:
    covered = sum(abs(error) <= claimed for error, claimed in map(off, labels))
    return f"{covered:3} of {len(labels)}"


def line(labels: Sequence[Labelled]) -> str:
    bad = [label for label in labels if label.bad]
    good = [label for label in labels if not label.bad]
    return (
        f"{quantiles([x.start_off_ms for x in labels])}   "
        f"{quantiles([x.end_off_ms for x in labels])}   "
        f"{within(labels, lambda x: (x.start_off_ms, x.start_error_ms))}   "
        f"{within(labels, lambda x: (x.end_off_ms, x.end_error_ms))}   "
        f"{sum(x.warned for x in bad)} of {len(bad)}   {sum(x.warned for x in good)} of {len(good)}"
    )


def last_words(folder: Path, voices: Sequence[dict[str, Any]]) -> None:
    print("people, a last word after a pause\n          end              > 100 ms  > 300  unwarned")
    for db in SOFTER_DB:
        labels = []
        for n, voice in enumerate(voices):
            for pause_ms in PAUSES_MS:
                word_ms = WORDS_MS[n % len(WORDS_MS)]
                pcm, rate = recording(folder, voice)
                pcm, speech = said_again(
                    pcm, rate, voice["speech"], pause_ms=pause_ms, word_ms=word_ms, db=db
                )
                if label := labelled(voice | {"speech": speech}, pcm, rate):
                    labels.append(label)
        far, lost = ([x for x in labels if abs(x.end_off_ms) > ms] for ms in (DOUBTFUL_MS, 300))
        print(
            f"{db:+4} dB   {quantiles([x.end_off_ms for x in labels])}   {len(far):3} of "
            f"{len(labels)}   {len(lost):3}   {sum(not x.warned for x in lost):3}"
        )


HEAD = "start              end                start in error  end in error  bad warned  good warned"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--voices", type=Path, metavar="DIR", help="recordings of people")
    parser.add_argument("--by-source", action="store_true", help="leave out one source at a time")
    parser.add_argument("--each", action="store_true", help="show each recording as it is")
    args = parser.parse_args()
    print("absolute error in ms: median / p90 / largest; a bound is bad beyond 100 ms")
    if args.voices:
        voices = json.loads((args.voices / "voices.json").read_text(encoding="utf-8"))
        people(args.voices, voices, each=args.each, by_source=args.by_source)
        last_words(args.voices, voices)
    print(f"shipped, with noise\n          {HEAD}")
    for snr_db in SNRS_DB:
        found = library(snr_db)
        labels = [label for label in found if label is not None]
        name = "clean" if snr_db is None else f"{snr_db} dB"
        print(f"{name:>7}   {line(labels)}   unlabelled {len(found) - len(labels)}")


def people(folder: Path, voices: Sequence[dict[str, Any]], *, each: bool, by_source: bool) -> None:
    print(f"people, at levels\n          {HEAD}")
    for db in LEVELS_DB:
        found = [at_levels(folder, voice, db) for voice in voices]
        labels = [label for label in found if label is not None]
        print(f"{db:+4} dB   {line(labels)}   unlabelled {len(found) - len(labels)}")
        if db:
            continue
        if each:
            for x in labels:
                print(
                    f"        {x.voice['name']:16} start {x.start_off_ms:+5.0f} "
                    f"±{x.start_error_ms:.0f}  end {x.end_off_ms:+5.0f} ±{x.end_error_ms:.0f}"
                    f"{'  warned' if x.warned else ''}"
                )
        if by_source:
            for source in sorted({voice["source"] for voice in voices}):
                rest = [x for x in labels if x.voice["source"] != source]
                print(f"        without {source} (n={len(rest)}): {line(rest)}")


if __name__ == "__main__":
    main()
