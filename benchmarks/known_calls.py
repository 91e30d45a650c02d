"""Stereo recordings of calls whose every turn is known, made of recordings of one voice each.

The person is on the left, the agent on the right. Where each word sits follows from the labels of
the recordings and from the gaps that were asked for, so a call's truth is as exact as the labels.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray

from turngap.core.audio import FULL_SCALE
from turngap.scenario.library import load_scenarios
from turngap.scenario.model import EXTRA, library_dir, library_paths

Floats = NDArray[np.float64]
Kind = Literal["answer", "cut_in", "barge_in", "hum", "assent", "no_answer", "live", "extra"]

# Before a format is applied, calls are made at this rate.
RATE = 24_000
# Of what surrounds the speech in a recording, so much is kept, faded in and out.
ROOM_MS = 120.0
# No line is silent: this noise lies under both channels.
FLOOR_DBFS = -75.0
# None is near the budget of 800 ms, which would make the outcome a matter of luck.
GAPS_MS = (150.0, 250.0, 400.0, 600.0, 1000.0, 1500.0, 2200.0)
YIELD_MS = 350.0
GREETING_MS = 900.0
# What follows a last question without an answer.
NO_REPLY_MS = 12_000.0


@dataclass(frozen=True, slots=True)
class Voice:
    """Speech of one voice, with some of its room before and after; bounds in ms."""

    name: str
    pcm: Floats
    start_ms: float
    end_ms: float

    @property
    def speech_ms(self) -> float:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class TrueTurn:
    """A turn of the person: where it is, the gap after it, and what became of it."""

    kind: Kind
    start_ms: float
    end_ms: float
    gap_ms: float | None
    outcome: str


@dataclass(slots=True)
class MadeCall:
    """A call, shape (samples, 2) at `RATE`, and its truth."""

    name: str
    pcm: Floats
    turns: list[TrueTurn] = field(default_factory=list[TrueTurn])
    greeting_ms: float | None = None


def cut_out(name: str, pcm: Floats, rate: int, start_ms: float, end_ms: float) -> Voice:
    """Return the speech of a recording at `RATE`, 23 dB below full scale, with a little room."""
    first = max(0.0, start_ms - ROOM_MS)
    last = min(len(pcm) * 1000 / rate, end_ms + ROOM_MS)
    piece = soxr.resample(pcm[round(first * rate / 1000) : round(last * rate / 1000)], rate, RATE)
    fade = RATE * 20 // 1000
    ramp = np.linspace(0, 1, fade)
    piece[:fade] *= ramp
    piece[-fade:] *= ramp[::-1]
    level = np.sqrt(np.mean(np.square(piece)))
    piece = np.clip(piece * 10 ** (-23 / 20) / level, -0.99, 0.99)
    return Voice(name, piece, start_ms - first, end_ms - first)


def people(folder: Path) -> list[Voice]:
    """Return the people of a folder that holds NAME.flac and `voices.json`, labelled by hand."""
    voices = []
    for entry in json.loads((folder / "voices.json").read_text(encoding="utf-8")):
        pcm, rate = soundfile.read(folder / f"{entry['name']}.flac", dtype="float64")
        mono = pcm if pcm.ndim == 1 else pcm[:, 0]
        speech = entry["speech"]
        voices.append(cut_out(entry["name"], mono, rate, speech["start_ms"], speech["end_ms"]))
    return sorted(voices, key=lambda voice: voice.name)


def synthetic() -> tuple[list[Voice], list[Voice]]:
    """Return the shipped recordings of synthetic voices: turns, and sounds of assent."""
    turns: list[Voice] = []
    hums: list[Voice] = []
    for loaded in load_scenarios(library_paths(library_dir())):
        if {EXTRA, "noise"} & set(loaded.scenario.tags):
            continue
        for turn in loaded.scenario.turns:
            recorded = [(turn, turns), *((hum, hums) for hum in turn.backchannels)]
            for each, kept in recorded:
                clip, speech = loaded.clips[each.audio], each.speech
                assert speech is not None
                pcm = clip.pcm / FULL_SCALE
                kept.append(cut_out(each.audio, pcm, clip.rate, speech.start_ms, speech.end_ms))
    return turns, hums


class _Line:
    """Two channels on which voices are placed."""

    def __init__(self, seconds: float, rng: np.random.Generator) -> None:
        size = (round(seconds * RATE), 2)
        self.pcm = rng.normal(0, 10 ** (FLOOR_DBFS / 20), size)

    def say(self, side: int, voice: Voice, at_ms: float, *, until_ms: float | None = None) -> float:
        """Place speech so that its first word is at `at_ms`; return its end, cut by `until_ms`."""
        first = round((at_ms - voice.start_ms) * RATE / 1000)
        piece = voice.pcm
        end_ms = at_ms + voice.speech_ms
        if until_ms is not None and until_ms < end_ms:
            piece = piece[: round(until_ms * RATE / 1000) - first].copy()
            fade = RATE * 10 // 1000
            piece[-fade:] *= np.linspace(1, 0, fade)
            end_ms = until_ms
        self.pcm[first : first + len(piece), side] += piece
        return end_ms


PERSON, AGENT = 0, 1


def made_call(
    name: str,
    persons: Sequence[Voice],
    agents: Sequence[Voice],
    hums: Sequence[Voice],
    seed: int,
    *,
    ending: Literal["no_answer", "bye", "answer"] = "bye",
) -> MadeCall:
    """Make a call in which `persons` say their turns in order, and `agents` answer at random."""
    rng = np.random.default_rng(seed)
    line = _Line(30 + sum(v.speech_ms / 1000 + 14 for v in persons), rng)
    long_replies = [voice for voice in agents if voice.speech_ms > 2200]
    at = line.say(AGENT, _any(rng, agents), GREETING_MS) + 700.0
    call = MadeCall(name, line.pcm, greeting_ms=GREETING_MS)
    barged_at: float | None = None
    for number, voice in enumerate(persons):
        last = number == len(persons) - 1
        kinds: list[Kind] = ["answer", "answer", "cut_in", "barge_in", "hum", "assent"]
        kind: Kind = kinds[int(rng.integers(len(kinds)))]
        start = at if barged_at is None else barged_at
        end = line.say(PERSON, voice, start)
        if last and ending == "no_answer":
            call.turns.append(TrueTurn("no_answer", start, end, None, "no_reply"))
            at = end + NO_REPLY_MS
            break
        if kind == "assent" and voice.speech_ms > 2500:
            line.say(AGENT, _any(rng, hums), start + 0.5 * voice.speech_ms)
        gap = float(rng.choice(GAPS_MS))
        reply = _any(rng, agents)
        if kind == "cut_in" and voice.speech_ms > 2000:
            gap, reply = -float(rng.uniform(450, 800)), _any(rng, long_replies)
        elif kind == "cut_in":
            kind = "answer"
        if kind in ("barge_in", "hum"):
            reply = _any(rng, long_replies)
        onset = end + gap
        outcome = "cut_in" if gap < 0 else "answered" if gap <= 800 else "late"
        call.turns.append(TrueTurn(kind, start, end, gap, outcome))
        barged_at = None
        if kind == "barge_in" and not last:
            barged_at = onset + float(rng.uniform(900, 1300))
            line.say(AGENT, reply, onset, until_ms=barged_at + YIELD_MS)
        else:
            at = line.say(AGENT, reply, onset)
            hum = _any(rng, hums)
            if kind == "hum" and (after_ms := _inside(reply, hum.speech_ms)) is not None:
                line.say(PERSON, hum, onset + after_ms)
            at += float(rng.uniform(500, 1200))
    call.pcm = line.pcm[: round((at + 1000) * RATE / 1000)]
    return call


def _inside(reply: Voice, sound_ms: float) -> float | None:
    """Return where in a reply a sound falls into no pause; None if there is no such place."""
    frame = RATE * 20 // 1000
    frames = reply.pcm[: len(reply.pcm) // frame * frame].reshape(-1, frame)
    loud = np.sqrt(np.mean(np.square(frames), axis=1)) > 10 ** (-38 / 20)
    spoken = np.convolve(loud, np.ones(9), "same") > 0  # closes silences of 160 ms
    spoken = np.convolve(spoken, np.ones(9), "same") > 8.5
    first, last = round(reply.start_ms / 20), round(reply.end_ms / 20)
    needed = round((sound_ms + 600) / 20)
    for at in range(first + 30, last - needed):
        if spoken[at : at + needed].all():
            return (at - first) * 20.0
    return None


def _any(rng: np.random.Generator, voices: Sequence[Voice]) -> Voice:
    return voices[int(rng.integers(len(voices)))]


# --- what a line and a codec do to a call ---------------------------------------------------------


def with_noise(call: MadeCall, snr_db: float) -> MadeCall:
    """Add pink noise from 60 Hz up to the person's channel, so far below the voices' level."""
    rng = np.random.default_rng(len(call.pcm))
    noise = np.fft.rfft(rng.normal(size=len(call.pcm)))
    hz = np.fft.rfftfreq(len(call.pcm), 1 / RATE)
    pink = np.fft.irfft(
        noise * np.where(hz < 60, 0.0, 1 / np.sqrt(np.maximum(hz, 60))), len(call.pcm)
    )
    pcm = call.pcm.copy()
    pcm[:, PERSON] += pink / np.std(pink) * 10 ** ((-23 - snr_db) / 20)
    return replace(call, pcm=pcm)


def with_echo(call: MadeCall, db: float, delay_ms: float = 120.0) -> MadeCall:
    """Add the agent's voice to the person's channel, later and softer."""
    delay = round(delay_ms * RATE / 1000)
    pcm = call.pcm.copy()
    pcm[delay:, PERSON] += call.pcm[:-delay, AGENT] * 10 ** (db / 20)
    return replace(call, pcm=pcm)


@dataclass(frozen=True, slots=True)
class Format:
    """The format in which a recording is stored."""

    rate: int
    suffix: str = ".wav"
    subtype: str = "PCM_16"


def write_call(call: MadeCall, folder: Path, format: Format) -> Path:
    """Write a call into a file of a format."""
    pcm = np.clip(soxr.resample(call.pcm, RATE, format.rate), -1.0, 32767 / FULL_SCALE)
    file = folder / f"{call.name}{format.suffix}"
    soundfile.write(file, pcm, format.rate, subtype=format.subtype)
    return file
