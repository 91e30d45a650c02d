"""Finds where a person's speech begins, pauses and ends in a recording, and says how surely.

Silero finds the speech, whatever its level; the sound near its bounds places them. Every constant
has a reason beside it and none was fitted; `benchmarks/labels.py` prints what the rule is worth.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import soxr

from turngap.core.audio import FULL_SCALE, Pcm
from turngap.scenario.model import Pause, SpeechBounds
from turngap.scenario.reading import (
    STEP_MS,
    Bools,
    Floats,
    band_levels,
    digital_silence,
    speech_probability,
)
from turngap.silero import RATE, WINDOW

# Silero's probability from which a step is speech, by its authors, and below which it is none.
SPEECH = 0.5
QUIET = 0.1

# How late Silero crosses its threshold after speech has ended and begun: windows, and its memory.
# 70 ms was the median on 52 recordings of people; at onsets one window has to fill.
END_LAG_MS = 70
START_LAG_MS = 30

# Two readings of the sound: what lies less than 20 or 30 dB below the voice's loud parts (of the
# same band) is still speech. Below 20 dB speech fades into its own echo, and opinions differ.
FADE_DB = (20.0, 30.0)

# The loudest 20 ms of a steady noise lie about this far above its median in a band.
ABOVE_NOISE_DB = 8.0

# How far the sound may move a bound: inwards by a long fade that Silero takes for speech, outwards
# by a fricative that it does not hear. Outwards only without a gap longer than this, or else breath
# and lips are taken for speech.
INWARDS_MS = 150
OUTWARDS_MS = 100
GAP_MS = 30

# A level's percentile over speech that its loud parts reach.
LOUD_PERCENT = 90

# People hear a silence as a pause from about this length on; the closure of a stop is shorter.
PAUSE_MS = 200.0

# The articulation index counts each band's signal-to-noise ratio up to 30 dB: beyond it noise hides
# nothing. Below half of it, on average, it hides the weak ends of words.
CLEAR_DB = 30.0
LOW_SNR_DB = 15.0

# People who mark a bound by eye differ by about this much; in noise that hides everything, by this.
BY_EYE_MS = 30.0
IN_NOISE_MS = 50.0

# From here on a bound is worth a look, as one of this error moves a gap by an eighth of its budget.
DOUBTFUL_MS = 100.0

# A bound this near to the file's edge may be the cut, not the speech.
EDGE_MS = 50.0

# Fewer samples at the limit do not bend the sound enough to matter.
CLIPPED_SAMPLES = 10

Kind = Literal[
    "readings_disagree", "left_out", "edge", "low_snr", "no_silence", "clipping", "digital_silence"
]


@dataclass(frozen=True, slots=True)
class Warned:
    """A reason to look at a recording's labels; `kind` is stable, `text` is for people."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class FoundSpeech:
    """The place of speech in a recording.

    Attributes:
        bounds: first and last sample of the speech; each error covers the truth about nine times in
            ten.
        pauses: silences within the speech.
        warnings: reasons to check the bounds by eye.
        snr_db: how far the voice's loud parts lie above the noise, averaged over three bands, each
            counted from 0 to 30 dB.
    """

    bounds: SpeechBounds
    pauses: tuple[Pause, ...]
    warnings: tuple[Warned, ...]
    snr_db: float


def find_speech(pcm: Pcm, rate: int) -> FoundSpeech | None:
    """Return the speech of a recording, or None if there is none.

    Takes about 150 ms of CPU a second of sound.
    """
    length_ms = len(pcm) * 1000 / rate
    sound = _sound(pcm, rate)
    if sound is None:
        return None
    stretches = sound.speech()
    if not stretches:
        return None
    edges = [(sound.start(a, lo), sound.end(b, hi)) for a, b, lo, hi in _neighbours(stretches)]
    # A stretch that ends before it begins is no sound: it lies in a pause, or outside the speech.
    edges = [(start, end) for start, end in edges if start.at_ms < end.at_ms]
    if not edges:
        return None
    start, end = edges[0][0], edges[-1][1]
    start_ms, end_ms = max(0.0, start.at_ms), min(length_ms, end.at_ms)
    if end_ms <= start_ms:
        return None
    pauses = tuple(
        Pause(start_ms=_tenths(before.at_ms), end_ms=_tenths(after.at_ms))
        for (_, before), (after, _) in pairwise(edges)
        if after.at_ms - before.at_ms >= PAUSE_MS
    )
    bounds = SpeechBounds(
        start_ms=_tenths(start_ms),
        end_ms=min(_tenths(end_ms), int(length_ms * 10) / 10),
        start_error_ms=round(start.error_ms),
        end_error_ms=round(end.error_ms),
    )
    warnings = (
        *_of_bounds(bounds, length_ms),
        *_of_left_out(sound, bounds),
        *_of_noise(sound),
        *_of_samples(pcm, rate),
    )
    return FoundSpeech(bounds, pauses, warnings, round(sound.snr_db, 1))


@dataclass(frozen=True, slots=True)
class _Edge:
    at_ms: float
    error_ms: float


class _Sound:
    """A recording in steps of 5 ms: Silero's probability, and each band's level in dB."""

    def __init__(self, probability: Floats, levels: Floats, alive: Bools) -> None:
        steps = min(len(probability), levels.shape[1], len(alive))
        self._levels = levels[:, :steps]
        self._alive = alive[:steps]
        self._probability = probability[:steps]
        self._quiet = (self._probability < QUIET) & self._alive
        self._stretches = _runs(probability[:steps] >= SPEECH)
        self._drop_murmurs()

    @property
    def knows_noise(self) -> bool:
        """Return whether there are 50 ms without speech, enough to know how loud the noise is."""
        return int(self._quiet.sum()) * STEP_MS >= 50

    @property
    def snr_db(self) -> float:
        clear = np.clip(self._loud - self._noise, 0, CLEAR_DB)
        return float(clear.mean())

    def speech(self) -> list[tuple[int, int]]:
        """Return the stretches of speech, in steps, as Silero times them."""
        return self._stretches

    def left_out(self, bounds: SpeechBounds) -> Iterator[tuple[int, int]]:
        """Yield what lies outside the bounds, and could be speech: start and end in ms."""
        for stretch in _runs(self._probability >= QUIET):
            start_ms, end_ms = (step * STEP_MS for step in stretch)
            outside = end_ms < bounds.start_ms or start_ms > bounds.end_ms
            heard = (self._probability[slice(*stretch)] >= SPEECH).any()
            if outside and (heard or self._is_as_loud(stretch)):
                yield start_ms, end_ms

    def end(self, step: int, limit: int) -> _Edge:
        """Return the end of the stretch that Silero ends before `step`; it lies before `limit`."""
        return self._edge(step - 1 - END_LAG_MS // STEP_MS, self._levels[:, :limit])

    def start(self, step: int, limit: int) -> _Edge:
        """Return the start of the stretch that Silero begins at `step`: the end, backwards."""
        steps = self._levels.shape[1]
        mirrored = steps - 1 - (step - START_LAG_MS // STEP_MS)
        edge = self._edge(mirrored, self._levels[:, limit:][:, ::-1])
        return _Edge((steps - 1) * STEP_MS - edge.at_ms, edge.error_ms)

    def _edge(self, silero_says: int, levels: Floats) -> _Edge:
        """Return where speech ends: the middle of three readings, nearer to Silero's in noise."""
        heard = [_last_audible(levels > self._audible(fade), silero_says) for fade in FADE_DB]
        readings = sorted((silero_says, *heard))
        clear = self.snr_db / CLEAR_DB
        at = silero_says + clear * (readings[1] - silero_says)
        spread_ms = (readings[-1] - readings[0]) * STEP_MS
        return _Edge(at * STEP_MS, BY_EYE_MS + spread_ms + IN_NOISE_MS * (1 - clear))

    def _audible(self, fade_db: float) -> Floats:
        """Return the level of each band, shape (3, 1), from which its sound is speech."""
        return np.maximum(self._loud - fade_db, self._noise + ABOVE_NOISE_DB)[:, None]

    def _drop_murmurs(self) -> None:
        """Drop what nobody near says before and after the turn."""
        self._measure()
        while len(self._stretches) > 1:
            if not self._is_as_loud(self._stretches[0]):
                self._stretches = self._stretches[1:]
            elif not self._is_as_loud(self._stretches[-1]):
                self._stretches = self._stretches[:-1]
            else:
                return
            self._measure()

    def _is_as_loud(self, stretch: tuple[int, int]) -> bool:
        """Return whether a stretch comes as near to the voice's level as speech that fades."""
        levels = np.percentile(self._levels[:, slice(*stretch)], LOUD_PERCENT, axis=1)
        return bool((levels[:, None] > self._audible(FADE_DB[0])).any())

    def _measure(self) -> None:
        """Measure the level of the voice's loud parts and of the noise, in dB, shape (3,)."""
        if not self._stretches:
            return
        voice = np.concatenate([self._levels[:, slice(*s)] for s in self._stretches], axis=1)
        self._loud = np.percentile(voice, LOUD_PERCENT, axis=1)
        if self.knows_noise:
            self._noise = np.median(self._levels[:, self._quiet], axis=1)
        else:
            self._noise = np.percentile(self._levels[:, self._alive], 5, axis=1)


def _last_audible(audible: Bools, near: int) -> int:
    """Return the last step that is audible in any band (shape (3, n)), near the given one."""
    steps: Bools = np.logical_or.reduce(audible)
    near = int(np.clip(near, 0, len(steps) - 1))
    first = max(0, near - INWARDS_MS // STEP_MS)
    found = np.flatnonzero(steps[first : near + 1])
    if not len(found):
        return first
    last = first + int(found[-1])
    gap = GAP_MS // STEP_MS
    if last < near - gap:
        return last
    while last < near + OUTWARDS_MS // STEP_MS:
        further = np.flatnonzero(steps[last + 1 : last + 1 + gap])
        if not len(further):
            break
        last += 1 + int(further[0])
    return last


def _neighbours(
    stretches: list[tuple[int, int]],
) -> Iterator[tuple[int, int, int, int]]:
    """Yield each stretch with the steps that its own bounds must not cross."""
    middles = [(a[1] + b[0]) // 2 for a, b in pairwise(stretches)]
    never = 1 << 60
    for (a, b), low, high in zip(stretches, [0, *middles], [*middles, never], strict=True):
        yield a, b, low, high


def _runs(wanted: Bools) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False]))))
    return [(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _sound(pcm: Pcm, rate: int) -> _Sound | None:
    """Read a recording; None if it holds less than a window of anything but digital silence."""
    if len(pcm) * 1000 < rate * WINDOW * 1000 / RATE:
        return None
    alive = ~digital_silence(pcm, rate)
    if not alive.any():
        return None
    signal = np.asarray(pcm / FULL_SCALE, dtype=np.float64)
    if rate != RATE:
        signal = soxr.resample(signal, rate, RATE)
    levels = band_levels(signal)
    steps = levels.shape[1]
    at = np.minimum((np.arange(steps) * STEP_MS * rate) // 1000, len(alive) - 1)
    return _Sound(speech_probability(signal, steps), levels, alive[at])


# --- warnings -------------------------------------------------------------------------------------


def _of_bounds(bounds: SpeechBounds, length_ms: float) -> Iterator[Warned]:
    sides = (("start", bounds.start_error_ms or 0.0), ("end", bounds.end_error_ms or 0.0))
    for side, error_ms in sides:
        if error_ms > DOUBTFUL_MS:
            yield Warned(
                "readings_disagree",
                f"the {side} may be {error_ms:.0f} ms off: Silero and the sound disagree, or the "
                "speech fades slowly",
            )
    if bounds.start_ms < EDGE_MS:
        yield Warned("edge", "the speech begins at the file's edge and may be cut off")
    if bounds.end_ms > length_ms - EDGE_MS:
        yield Warned("edge", "the speech ends at the file's edge and may be cut off")


def _of_left_out(sound: _Sound, bounds: SpeechBounds) -> Iterator[Warned]:
    for start_ms, end_ms in sound.left_out(bounds):
        where = f"from {start_ms} to {end_ms} ms"
        yield Warned("left_out", f"the sound {where} is not taken for speech: listen to it")


def _of_noise(sound: _Sound) -> Iterator[Warned]:
    if not sound.knows_noise:
        yield Warned(
            "no_silence", "no 50 ms without speech: nothing tells the voice from the noise"
        )
    if sound.snr_db < LOW_SNR_DB:
        yield Warned(
            "low_snr",
            f"the voice is only {sound.snr_db:.0f} dB above the noise, which hides weak ends of "
            "words",
        )


def _of_samples(pcm: Pcm, rate: int) -> Iterator[Warned]:
    wide = pcm.astype(np.int32)
    for limit in (int(wide.max()), int(wide.min())):
        clipped = sum(b - a for a, b in _runs(wide == limit) if b - a >= 3)
        if clipped >= CLIPPED_SAMPLES and abs(limit) > FULL_SCALE / 100:
            yield Warned("clipping", f"{clipped} samples are clipped")
            break
    silent_ms = int(digital_silence(pcm, rate).sum()) * 1000 / rate
    if silent_ms:
        yield Warned(
            "digital_silence",
            f"{silent_ms:.0f} ms of digital silence: the recording was cut together or gated",
        )


def _tenths(ms: float) -> float:
    return round(ms, 1)
