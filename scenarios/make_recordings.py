"""Makes every recording of the scenario library again from the words in its scenarios.

    python scenarios/make_recordings.py [--only NAME]

Needs Debian's flite and espeak-ng. The same engines give the same bytes. The speech bounds are
written into the scenarios; those of the noisy recordings are taken before the noise is added.
Scenarios of slow speech are written along with their recordings, from those they are versions of.
"""

import argparse
import dataclasses
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq

from turngap.core.audio import (
    AUDIBLE_DBFS,
    FULL_SCALE,
    LINE_FLOOR_DBFS,
    Pcm,
    audible_end,
    audible_onset,
    rms_dbfs,
)
from turngap.scenario.label import speech_bounds, write_bounds
from turngap.scenario.library import EXTRA, read_scenario
from turngap.scenario.model import Backchannel, SpeechBounds, UserTurn

HERE = Path(__file__).parent
RATE = 16_000
LEAD_MS, TAIL_MS = 120, 200
# Silero's volume gate misses quiet clips; peaks of -4 to -14 dBFS it hears reliably.
PEAK_DBFS = -7.0
LOWEST_NOISE_HZ = 60.0

Signal = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Voice:
    """One speaker. `pace` 1 is the engine's own; more is faster."""

    engine: Literal["flite", "espeak-ng"]
    name: str
    pace: float = 1.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence in the middle of a turn, after the words `after`."""

    after: str
    ms: int


# One speaker a conversation. Of sixteen voices tried on each, one that pocketsphinx reads without
# an error and whose turns Silero hears as one stretch of speech (but for the pause that is meant).
VOICES = {
    "cough": Voice("flite", "slt", 1.08),  # the words are museum-visit's, in its recordings
    "coffee-order": Voice("flite", "awb", 1.08),
    "day-planner": Voice("flite", "rms", 1.08),
    "doctor-appointment": Voice("flite", "rms", 1.08),
    "museum-visit": Voice("flite", "slt", 1.08),
    # Peaky: noise 20 dB below this voice lies under -42 dBFS, and so counts as silence.
    "noisy-taxi": Voice("flite", "kal16", 1.08),
    "order-status": Voice("flite", "rms", 1.08),
    "phone-number": Voice("espeak-ng", "en-us+michel", 1.1),
    "pizza-order": Voice("espeak-ng", "en-us+edward", 1.05),
    "quick-questions": Voice("espeak-ng", "en-us+f2", 1.05),
    "second-thoughts": Voice("flite", "rms", 1.08),
    "smart-home": Voice("flite", "slt", 1.08),
    "soup-recipe": Voice("espeak-ng", "en-us+f3", 1.05),
    "table-booking": Voice("espeak-ng", "en-us+Reed", 1.05),
    "thinking-aloud": Voice("flite", "rms", 1.08),
}
# Where people stop to think: in the middle of a phrase, of a number, and (the hardest) where what
# they have said would be a whole sentence.
PAUSES = {
    "second-thoughts/1.flac": Pause("set an alarm for six", 150),
    "second-thoughts/2.flac": Pause("the code is four seven one nine", 300),
    "second-thoughts/3.flac": Pause("call my brother", 200),
    "table-booking/1.flac": Pause("I'd like to book a table for", 700),
    "thinking-aloud/1.flac": Pause("I'd like to order", 400),
    "thinking-aloud/2.flac": Pause("my number is five five five", 600),
    "thinking-aloud/3.flac": Pause("I live at", 800),
    "thinking-aloud/4.flac": Pause("please move it to Wednesday", 500),
    "thinking-aloud/5.flac": Pause("is there a train that", 1000),
    "thinking-aloud/6.flac": Pause("turn down the heating", 350),
}
# How much slower people speak in the slow versions: syllables, and their pauses, take 1.25 times as
# long.
SLOW = 0.8
SLOWED = (
    "coffee-order",
    "doctor-appointment",
    "order-status",
    "phone-number",
    "pizza-order",
    "quick-questions",
    "smart-home",
    "table-booking",
)
# flite spells out what is not a word ("em em, aitch em em").
FLITE_PHONES = {"mm-hmm": "pau m m hh ah m pau"}
# Signal-to-noise ratio in dB of all of a conversation's recordings.
NOISE_SNR_DB = {"noisy-taxi": 20.0}

# One cough, and the breath between two.
COUGH_MS, BETWEEN_COUGHS_MS = 380, 40

REMEDY = "install them: apt-get install flite espeak-ng"


def cough() -> Signal:
    """Two coughs: each a burst of noise that dies away, and a voiced rest of falling pitch.

    Silero takes them for speech and pocketsphinx reads a word in each: others would try nobody.
    """
    s = np.arange(RATE * COUGH_MS // 1000) / RATE
    burst = np.where(s < 0.012, s / 0.012, np.exp(-(s - 0.012) / 0.05))
    noise = np.random.default_rng(0).normal(size=len(s)) * burst
    voiced = np.where((s > 0.15) & (s < 0.3), np.sin(np.pi * (s - 0.15) / 0.15), 0.0)
    pulses = [np.sin(k * 2 * np.pi * (180 * s - 80 * s**2)) / k for k in range(1, 20)]
    once = noise + 0.8 * voiced * np.sum(pulses, axis=0)
    return np.concatenate([once, silence(BETWEEN_COUGHS_MS), 0.6 * once])


# What is no speech, by what the scenarios call it.
SOUNDS: dict[str, Callable[[], Signal]] = {"[cough]": cough}


def rendered(voice: Voice, text: str) -> Signal:
    """What the engine makes of `text`."""
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "take.wav"
        subprocess.run(command(voice, text, wav), check=True, stdout=subprocess.DEVNULL)
        samples, rate = soundfile.read(wav, dtype="float64")
    return soxr.resample(samples, rate, RATE) if rate != RATE else samples


def spoken(voice: Voice, text: str) -> Signal:
    """`text`, or the sound that it names, cut to its first and last audible sample."""
    samples = SOUNDS[text]() if text in SOUNDS else rendered(voice, text)
    samples = samples / np.abs(samples).max() * 10 ** (PEAK_DBFS / 20)
    first, last = audible_onset(to_pcm(samples), RATE), audible_end(to_pcm(samples), RATE)
    if first is None or last is None:
        raise SystemExit(f"{voice.engine} {voice.name} said nothing audible for {text!r}")
    return samples[first : last + 1]


def command(voice: Voice, text: str, wav: Path) -> list[str]:
    """The engine's command line."""
    if voice.engine == "flite":
        stretch = f"duration_stretch={1 / voice.pace:.3f}"
        phones = FLITE_PHONES.get(text)
        words = ["-p", phones] if phones else ["-t", text]
        return ["flite", "-voice", voice.name, "--setf", stretch, *words, "-o", str(wav)]
    words_per_minute = str(round(175 * voice.pace))
    return ["espeak-ng", "-v", voice.name, "-s", words_per_minute, "-w", str(wav), text]


def take(voice: Voice, text: str, pause: Pause | None) -> Signal:
    """A clean recording: lead, speech with its pause, tail."""
    if pause is None:
        speech = spoken(voice, text)
    else:
        rest = text.removeprefix(pause.after)
        if rest == text:
            raise SystemExit(f"{text!r} does not begin with {pause.after!r}")
        # The comma makes the engine end on a rising, unfinished tone.
        parts = [spoken(voice, pause.after + ","), silence(pause.ms), spoken(voice, rest)]
        speech = np.concatenate(parts)
    return np.concatenate([silence(LEAD_MS), speech, silence(TAIL_MS)])


def silence(ms: int) -> Signal:
    """Digital silence; `with_floor` covers it."""
    return np.zeros(RATE * ms // 1000)


def with_floor(signal: Signal, rng: np.random.Generator) -> Signal:
    """The signal on a line that is never quite silent: pocketsphinx misreads digital silence."""
    return signal + rng.normal(0.0, 10 ** (LINE_FLOOR_DBFS / 20), len(signal))


def pink_noise(samples: int, rng: np.random.Generator) -> Signal:
    """Noise of RMS 1 whose power falls 3 dB an octave, from LOWEST_NOISE_HZ up: a busy street."""
    spectrum = np.fft.rfft(rng.normal(size=samples))
    hz = np.fft.rfftfreq(samples, 1 / RATE)
    spectrum *= np.where(hz < LOWEST_NOISE_HZ, 0.0, 1 / np.sqrt(np.maximum(hz, LOWEST_NOISE_HZ)))
    noise = np.fft.irfft(spectrum, samples)
    return noise / np.sqrt(np.mean(noise**2))


def active_level_dbfs(pcm: Pcm, bounds: SpeechBounds) -> float:
    """RMS of the 10 ms windows between the bounds that are audible: pauses are not speech."""
    speech = pcm[int(bounds.start_ms * RATE / 1000) : int(bounds.end_ms * RATE / 1000)]
    window = RATE // 100
    windows = speech[: len(speech) // window * window].reshape(-1, window)
    return rms_dbfs(np.concatenate([w for w in windows if rms_dbfs(w) >= AUDIBLE_DBFS]))


def to_pcm(signal: Signal) -> Pcm:
    """Int16 samples."""
    return np.rint(np.clip(signal, -1, 1 - 1 / FULL_SCALE) * FULL_SCALE).astype(np.int16)


def voice_of(name: str) -> Voice:
    """The conversation's speaker, at the pace of that conversation."""
    if (base := slowed(name)) is None:
        return VOICES[name]
    return dataclasses.replace(VOICES[base], pace=VOICES[base].pace * SLOW)


def pause_in(name: str, audio: str) -> Pause | None:
    """The pause in that recording of the conversation."""
    if (base := slowed(name)) is None:
        return PAUSES.get(audio)
    pause = PAUSES.get(audio.replace(name, base, 1))
    return pause and dataclasses.replace(pause, ms=round(pause.ms / SLOW))


def slowed(name: str) -> str | None:
    """The scenario that `name` is the slow version of."""
    base = name.removeprefix("slow-")
    return base if base != name else None


def write_slowed(folder: Path, name: str) -> None:
    """Write the slow version of a scenario: the same words, recorded again."""
    base = name.removeprefix("slow-")
    yaml = YAML(typ="rt")
    yaml.width = 100
    yaml.preserve_quotes = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    tree = yaml.load((folder / f"{base}.yaml").read_text(encoding="utf-8"))
    tree["name"] = name
    tree["about"] = f"{base} with speech slowed by {1 - SLOW:.0%}."
    tags = [tag for tag in tree["tags"] if tag != "smoke"]
    tree["tags"] = CommentedSeq([*tags, "slow", EXTRA])
    tree["tags"].fa.set_flow_style()
    for turn in tree["turns"]:
        turn["audio"] = turn["audio"].replace(base, name, 1)
        del turn["speech"]
    with (folder / f"{name}.yaml").open("w", encoding="utf-8") as file:
        file.write("# Made by make_recordings.py.\n")
        yaml.dump(tree, file)


def record(folder: Path, name: str, recorded: UserTurn | Backchannel) -> SpeechBounds:
    """Make one recording; return its speech bounds, taken on the clean take."""
    rng = np.random.default_rng(zlib.crc32(recorded.audio.encode()))
    spoken_take = take(voice_of(name), recorded.say, pause_in(name, recorded.audio))
    clean = with_floor(spoken_take, rng)
    bounds = speech_bounds(to_pcm(clean), RATE, AUDIBLE_DBFS)
    if bounds is None:
        raise SystemExit(f"{recorded.audio}: no audible speech")
    signal, noise_dbfs = clean, LINE_FLOOR_DBFS
    if name in NOISE_SNR_DB:
        noise_dbfs = active_level_dbfs(to_pcm(clean), bounds) - NOISE_SNR_DB[name]
        signal = clean + pink_noise(len(clean), rng) * 10 ** (noise_dbfs / 20)
    file = folder / recorded.audio
    file.parent.mkdir(exist_ok=True)
    soundfile.write(file, to_pcm(signal), RATE, subtype="PCM_16")
    print(
        f"{recorded.audio:32} {len(signal) / RATE:5.2f} s  speech {bounds.start_ms:6.1f} to "
        f"{bounds.end_ms:6.1f} ms  noise {noise_dbfs:.1f} dBFS  {file.stat().st_size:6d} bytes"
    )
    return bounds


def make(folder: Path, name: str) -> None:
    """Make one scenario's recordings and write their speech bounds into its file."""
    path = folder / f"{name}.yaml"
    if slowed(name) is not None:
        write_slowed(folder, name)
    scenario = read_scenario(path)
    recorded = [r for turn in scenario.turns for r in (turn, *turn.backchannels)]
    write_bounds(path, {r.audio: record(folder, name, r) for r in recorded})


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Make the library's recordings again.")
    known = [*sorted(VOICES), *(f"slow-{name}" for name in SLOWED)]
    parser.add_argument("--only", metavar="NAME", choices=known, help="one scenario")
    only = parser.parse_args(argv).only
    names = [only] if only else known
    engines = {voice_of(name).engine for name in names}
    if missing := sorted(engine for engine in engines if shutil.which(engine) is None):
        sys.exit(f"not found: {', '.join(missing)}; {REMEDY}")
    for name in names:
        make(HERE, name)


if __name__ == "__main__":
    main()
