"""Makes every recording of the scenario library again from the words in its scenarios.

    python scenarios/make_recordings.py [--only NAME]

Needs Debian's flite and espeak-ng, and the dependency group `training`. The same engines
give the same bytes. The speech bounds and pauses are written into the scenarios; those of the noisy
recordings are taken before the noise is added. Scenarios of slow speech are written along with
their recordings, from those they are versions of. What smart turn and Silero make of each recording
is written into `recordings.json`.
"""

import argparse
import dataclasses
import json
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

from training.turns.plan import Ending
from training.turns.sound import shaped
from training.turns.speakers import Speaker
from training.turns.verdicts import completeness, stretches
from turngap.core import cue
from turngap.core.audio import (
    AUDIBLE_DBFS,
    FULL_SCALE,
    LINE_FLOOR_DBFS,
    Pcm,
    audible_end,
    audible_onset,
    rms_dbfs,
)
from turngap.core.cue import SpeechBounds
from turngap.scenario.label import write_bounds
from turngap.scenario.model import EXTRA, Backchannel, UserTurn, read_scenario
from turngap.scenario.speech import speech_bounds

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
# Six of them were chosen anew, among seven, as smart turn finds more of their turns complete.
VOICES = {
    "cough": Voice("flite", "slt", 1.08),  # the words are museum-visit's, in its recordings
    "coffee-order": Voice("flite", "awb", 1.08),
    "day-planner": Voice("flite", "awb", 1.08),
    "doctor-appointment": Voice("flite", "rms", 1.08),
    "museum-visit": Voice("flite", "slt", 1.08),
    # Peaky: noise 20 dB below this voice lies under -42 dBFS, and so counts as silence.
    "noisy-taxi": Voice("flite", "kal16", 1.08),
    "order-status": Voice("flite", "slt", 1.08),
    "phone-number": Voice("flite", "awb", 1.08),
    "pizza-order": Voice("espeak-ng", "en-us+edward", 1.05),
    "quick-questions": Voice("flite", "slt", 1.08),
    "second-thoughts": Voice("flite", "slt", 1.08),
    "smart-home": Voice("flite", "slt", 1.08),
    "soup-recipe": Voice("espeak-ng", "en-us+f3", 1.05),
    "table-booking": Voice("espeak-ng", "en-us+Reed", 1.05),
    "thinking-aloud": Voice("flite", "kal16", 1.08),
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

# An engine often ends a sentence as if more were to come. So each turn is spoken up to so many
# times: first as the engine speaks, then with a fall (or, asked for a yes or no, a rise) of another
# depth and length. The first take is kept that smart turn finds complete with this probability, or
# else the one that comes nearest.
TAKES, COMPLETE = 10, 0.7
_YES_OR_NO = ("is ", "are ", "do ", "can ", "could ")

REMEDY = "install them: apt-get install flite espeak-ng"


def cough() -> Signal:
    """Make two coughs: each a burst of noise that dies away, and a voiced rest of falling pitch.

    Silero takes them for speech and pocketsphinx reads a word in each: other sounds would test
    nothing.
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
    """Render `text` with the engine."""
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "take.wav"
        subprocess.run(command(voice, text, wav), check=True, stdout=subprocess.DEVNULL)
        samples, rate = soundfile.read(wav, dtype="float64")
    return soxr.resample(samples, rate, RATE) if rate != RATE else samples


def spoken(voice: Voice, text: str, ending: Ending | None = None) -> Signal:
    """`text`, or the sound that it names, cut to its first and last audible sample.

    Args:
        voice: who says it.
        text: the words.
        ending: of its melody; None: the engine's own.
    """
    samples = SOUNDS[text]() if text in SOUNDS else rendered(voice, text)
    if ending is not None:
        samples = shaped(samples, ending, Speaker(voice.engine, voice.name), higher=0.0)
    samples = samples / np.abs(samples).max() * 10 ** (PEAK_DBFS / 20)
    first, last = audible_onset(to_pcm(samples), RATE), audible_end(to_pcm(samples), RATE)
    if first is None or last is None:
        raise SystemExit(f"{voice.engine} {voice.name} said nothing audible for {text!r}")
    return samples[first : last + 1]


def command(voice: Voice, text: str, wav: Path) -> list[str]:
    """Build the engine's command line."""
    if voice.engine == "flite":
        stretch = f"duration_stretch={1 / voice.pace:.3f}"
        phones = FLITE_PHONES.get(text)
        words = ["-p", phones] if phones else ["-t", text]
        return ["flite", "-voice", voice.name, "--setf", stretch, *words, "-o", str(wav)]
    words_per_minute = str(round(175 * voice.pace))
    return ["espeak-ng", "-v", voice.name, "-s", words_per_minute, "-w", str(wav), text]


@dataclass(frozen=True, slots=True)
class Take:
    """A clean recording: lead, speech with its pause, tail; and where the pause lies."""

    signal: Signal
    pauses: tuple[cue.Pause, ...]


def take(voice: Voice, text: str, pause: Pause | None, ending: Ending | None) -> Take:
    """Speak a turn once."""
    before, pauses, rest = np.empty(0), (), text
    if pause is not None:
        rest = text.removeprefix(pause.after)
        if rest == text:
            raise SystemExit(f"{text!r} does not begin with {pause.after!r}")
        # The comma makes the engine end on a rising, unfinished tone.
        first = spoken(voice, pause.after + ",")
        start_ms = round(LEAD_MS + len(first) * 1000 / RATE, 1)
        before = np.concatenate([first, silence(pause.ms)])
        pauses = (cue.Pause(start_ms=start_ms, end_ms=round(start_ms + pause.ms, 1)),)
    speech = [before, spoken(voice, rest, ending)]
    return Take(np.concatenate([silence(LEAD_MS), *speech, silence(TAIL_MS)]), pauses)


def endings(recorded: UserTurn | Backchannel, rng: np.random.Generator) -> list[Ending | None]:
    """Draw how each take ends; a backchannel is not a turn, and has the engine's ending only."""
    takes: list[Ending | None] = [None]
    if isinstance(recorded, UserTurn):
        for number in range(TAKES - 1):
            rises = recorded.say.startswith(_YES_OR_NO) and number % 2 == 0
            takes.append(
                Ending(
                    "H-H%" if rises else "L-L%",
                    semitones=float(rng.normal(5, 2) if rises else rng.normal(-6, 1.5)),
                    over_ms=float(rng.uniform(200, 450)),
                    lengthened=float(rng.uniform(1.0, 1.25)),
                    softer_db=float(rng.uniform(0, 3)),
                )
            )
    return takes


def silence(ms: int) -> Signal:
    """Digital silence; `with_floor` covers it."""
    return np.zeros(RATE * ms // 1000)


def with_floor(signal: Signal, rng: np.random.Generator) -> Signal:
    """Add a line's noise floor to the signal: pocketsphinx misreads digital silence."""
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
    """Return the conversation's speaker, at the pace of that conversation."""
    if (base := slowed(name)) is None:
        return VOICES[name]
    return dataclasses.replace(VOICES[base], pace=VOICES[base].pace * SLOW)


def pause_in(name: str, audio: str) -> Pause | None:
    """Return the pause in that recording of the conversation."""
    if (base := slowed(name)) is None:
        return PAUSES.get(audio)
    pause = PAUSES.get(audio.replace(name, base, 1))
    return pause and dataclasses.replace(pause, ms=round(pause.ms / SLOW))


def slowed(name: str) -> str | None:
    """Return the scenario that `name` is the slow version of."""
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
        del turn["speech"], turn["pauses"]
    with (folder / f"{name}.yaml").open("w", encoding="utf-8") as file:
        file.write("# Made by make_recordings.py.\n")
        yaml.dump(tree, file)


@dataclass(frozen=True, slots=True)
class Recording:
    """One that was made, with its labels, and what smart turn made of each take."""

    pcm: Pcm
    bounds: SpeechBounds
    pauses: tuple[cue.Pause, ...]
    complete: float
    tried: tuple[float, ...]

    def row(self, voice: Voice) -> dict[str, object]:
        """Build its entry in `recordings.json`; a probability over 0.5 means a complete turn."""
        return {
            "voice": f"{voice.engine} {voice.name}",
            "complete": round(self.complete, 2),
            "takes": [round(p, 2) for p in self.tried],
            "silero_stretches": stretches(self.pcm),
        }


def record(name: str, recorded: UserTurn | Backchannel) -> Recording:
    """Speak until a take is complete. The bounds are taken on the clean take."""
    seed = zlib.crc32(recorded.audio.encode())
    best, tried = None, []
    for ending in endings(recorded, np.random.default_rng([seed, 1])):
        rng = np.random.default_rng(seed)
        spoken_take = take(voice_of(name), recorded.say, pause_in(name, recorded.audio), ending)
        clean = with_floor(spoken_take.signal, rng)
        bounds = speech_bounds(to_pcm(clean), RATE, AUDIBLE_DBFS)
        if bounds is None:
            raise SystemExit(f"{recorded.audio}: no audible speech")
        signal = clean
        if name in NOISE_SNR_DB:
            noise_dbfs = active_level_dbfs(to_pcm(clean), bounds) - NOISE_SNR_DB[name]
            signal = clean + pink_noise(len(clean), rng) * 10 ** (noise_dbfs / 20)
        pcm = to_pcm(signal)
        tried.append(completeness(pcm, bounds.start_ms, bounds.end_ms))
        if clear_edges(to_pcm(clean), bounds) and (best is None or tried[-1] > best[0]):
            best = (tried[-1], pcm, bounds, spoken_take.pauses)
        if best is not None and best[0] >= COMPLETE:
            break
    if best is None:
        raise SystemExit(f"{recorded.audio}: its speech fades too slowly to have an end")
    complete, pcm, bounds, pauses = best
    return Recording(pcm, bounds, pauses, complete, tuple(tried))


def clear_edges(clean: Pcm, bounds: SpeechBounds) -> bool:
    """Return whether 10 dB less or more move neither bound by more than 10 ms."""
    found = [speech_bounds(clean, RATE, AUDIBLE_DBFS + db) for db in (-10, -5)]
    return all(
        f and abs(f.start_ms - bounds.start_ms) <= 10 and abs(f.end_ms - bounds.end_ms) <= 10
        for f in found
    )


def make(folder: Path, name: str) -> dict[str, dict[str, object]]:
    """Make one scenario's recordings and write their labels into its file; return their rows."""
    path = folder / f"{name}.yaml"
    if slowed(name) is not None:
        write_slowed(folder, name)
    scenario = read_scenario(path)
    rows: dict[str, dict[str, object]] = {}
    made: dict[str, Recording] = {}
    for recorded in [r for turn in scenario.turns for r in (turn, *turn.backchannels)]:
        one = made[recorded.audio] = record(name, recorded)
        file = folder / recorded.audio
        file.parent.mkdir(exist_ok=True)
        soundfile.write(file, one.pcm, RATE, subtype="PCM_16")
        rows[recorded.audio] = row = one.row(voice_of(name))
        print(recorded.audio, row)
    bounds = {audio: one.bounds for audio, one in made.items()}
    write_bounds(path, bounds, {audio: one.pauses for audio, one in made.items()})
    return rows


def write_table(folder: Path, rows: dict[str, dict[str, object]]) -> None:
    """Put the rows into `recordings.json`, a line a recording."""
    path = folder / "recordings.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    every = sorted((known | rows).items())
    text = ",\n".join(f"  {json.dumps(audio)}: {json.dumps(row)}" for audio, row in every)
    path.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


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
        write_table(HERE, make(HERE, name))


if __name__ == "__main__":
    main()
