"""Find where a person's speech begins, pauses and ends in a recording, and how sure that is.

Silero finds the speech at any level; the sound near its bounds places them. Every constant has a
reason next to it and none was fitted; `benchmarks/labels.py` measures how exact the rule is.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import soxr
from numpy.typing import NDArray

from turngap.core.audio import FULL_SCALE, Pcm, audible_end, audible_onset
from turngap.core.cue import Pause, SpeechBounds
from turngap.silero import RATE, WINDOW, speech_probabilities

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Number = TypeVar("Number", bound=np.generic)

# Everything is judged in steps of 5 ms, on 20 ms of sound: two periods of a low voice.
STEP_MS = 5
STEP = RATE * STEP_MS // 1000
FRAME = 4 * STEP

# Where voices have their fundamental and first formant, their other formants, and the noise of
# fricatives and stop releases. A weak final "s" is far below the vowels, yet far above the noise of
# its own band.
BANDS_HZ = ((100, 1000), (1000, 3500), (3500, 7900))

# Silero reads windows of 32 ms. Read from two offsets it places a bound twice as finely, and
# does not depend on where the recording happens to begin.
OFFSETS = (0, 256)

# Silero's level is set so that 200 ms of the recording, the length of a short word, lie at or above
# this RMS: about the level of its training data. A thump is shorter, so it does not set the level.
LEVEL_DBFS = -20.0
LOUD_MS = 200

# A noise floor taken from these is -inf. No microphone is silent for 30 ms.
DIGITAL_SILENCE_MS = 30


def digital_silence(pcm: Pcm, rate: int) -> Bools:
    """Mark the samples in a stretch of digital silence: no two differ by more than 2."""
    size = max(1, rate * DIGITAL_SILENCE_MS // 1000)
    wide = pcm.astype(np.int32)
    still = _highest(wide, size) + _highest(-wide, size) <= 2
    return _highest(still, size)


def _highest(values: NDArray[Number], size: int) -> NDArray[Number]:
    """Return the highest of the `size` values around each value; fewer at the ends."""
    found = np.pad(values, (size // 2, size - 1 - size // 2), mode="edge")
    width = 1
    while width < size:
        step = min(width, size - width)
        found = np.maximum(found[:-step], found[step:])
        width += step
    return found


def band_levels(signal: Floats) -> Floats:
    """Return each band's level in dBFS, shape (3, n), of the 20 ms around each step."""
    padded = np.pad(signal, FRAME // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::STEP]
    window = np.hanning(FRAME)
    scale = 2 / (FRAME * float(np.sum(window**2)))
    hz = np.fft.rfftfreq(FRAME, 1 / RATE)
    bands = [(hz >= low) & (hz < high) for low, high in BANDS_HZ]
    powers = []
    # A minute at a time, so that an hour needs no gigabytes.
    for first in range(0, len(frames), 60_000 // STEP_MS):
        part = frames[first : first + 60_000 // STEP_MS] * window
        power = np.abs(np.fft.rfft(part, axis=1)) ** 2 * scale
        powers.append(np.stack([power[:, band].sum(axis=1) for band in bands]))
    return 10 * np.log10(np.concatenate(powers, axis=1) + 1e-14)


def speech_probability(signal: Floats, steps: int) -> Floats:
    """Return Silero's probability of speech at each step, the mean over the offsets."""
    frames = signal[: len(signal) // FRAME * FRAME].reshape(-1, FRAME)
    loudest = np.sort(np.mean(np.square(frames), axis=1))[::-1]
    power = float(loudest[min(LOUD_MS * RATE // 1000 // FRAME, len(loudest) - 1)])
    gain = FULL_SCALE * 10 ** ((LEVEL_DBFS - (10 * float(np.log10(power + 1e-12)))) / 20)
    scaled = np.clip(np.rint(signal * gain), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)
    at = np.arange(steps) * STEP
    # Silero begins with some silence behind it, and hears some after the recording.
    count = len(scaled) // WINDOW + 17
    streams = np.zeros((len(OFFSETS), count * WINDOW), dtype=np.int16)
    for stream, offset in zip(streams, OFFSETS, strict=True):
        stream[8 * WINDOW + offset :][: len(scaled)] = scaled
    found = speech_probabilities(streams.reshape(len(OFFSETS), count, WINDOW))
    total = np.zeros(steps)
    for probability, offset in zip(found, OFFSETS, strict=True):
        ends = (np.arange(count) + 1) * WINDOW - 8 * WINDOW - offset
        total += np.interp(at, ends, probability)
    return total / len(OFFSETS)


# Silero's probability from which a step is speech, by its authors, and below which it is not.
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

# Below -66 dBFS (the power of samples of 16 bits) no one speaks.
FAINTEST_POWER = 16.0**2

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
        bounds: first and last sample of the speech; about nine times in ten, the true sample is
            within the stated error.
        pauses: silences within the speech.
        warnings: reasons to check the bounds by eye.
        snr_db: by how many dB the voice's loud parts exceed the noise: the mean of three bands,
            each limited to 0 to 30 dB.
    """

    bounds: SpeechBounds
    pauses: tuple[Pause, ...]
    warnings: tuple[Warned, ...]
    snr_db: float


def find_speech(pcm: Pcm, rate: int) -> FoundSpeech | None:
    """Return the speech of a recording, or None if there is none.

    Takes about 8 ms of CPU a second of sound.
    """
    length_ms = len(pcm) * 1000 / rate
    sound = _sound(pcm, rate)
    if sound is None or not (edges := sound.edges()):
        return None
    start, end = edges[0][0], edges[-1][1]
    start_ms, end_ms = max(0.0, start.at_ms), min(length_ms, end.at_ms)
    if end_ms <= start_ms:
        return None
    pauses = tuple(
        Pause(start_ms=round(before.at_ms, 1), end_ms=round(after.at_ms, 1))
        for (_, before), (after, _) in pairwise(edges)
        if after.at_ms - before.at_ms >= PAUSE_MS
    )
    bounds = SpeechBounds(
        start_ms=round(start_ms, 1),
        end_ms=min(round(end_ms, 1), int(length_ms * 10) / 10),
        start_error_ms=round(start.error_ms),
        end_error_ms=round(end.error_ms),
    )
    warnings = tuple(_warnings(pcm, rate, sound, bounds))
    return FoundSpeech(bounds, pauses, warnings, round(sound.snr_db, 1))


@dataclass(frozen=True, slots=True)
class SpeechStretch:
    """A stretch of speech in a long recording; each bound with its error, all in ms.

    `is_soft`: it is so far below most of the speech that it is another's, or an echo.
    """

    start_ms: float
    end_ms: float
    start_error_ms: float
    end_error_ms: float
    is_soft: bool = False


# A long recording is searched in parts of about this length, which end where it is quiet.
PART_MS = 30_000
# Speech of the same person is not so far below the middle of it, by the loudest tenth of a stretch.
SOFTEST_DB = 20.0


def find_stretches(pcm: Pcm, rate: int) -> list[SpeechStretch]:
    """Return every stretch of speech in a recording of any length, such as one side of a call.

    The rules are those of `find_speech`.
    """
    found: list[tuple[SpeechStretch, float]] = []
    for first, last in _parts(pcm, rate):
        part = pcm[first:last]
        sound = _sound(part, rate)
        if sound is None:
            continue
        at_ms, length_ms = first * 1000 / rate, len(part) * 1000 / rate
        for start, end in sound.edges():
            start_ms, end_ms = max(0.0, start.at_ms), min(length_ms, end.at_ms)
            if end_ms > start_ms:
                bounds = (at_ms + start_ms, at_ms + end_ms, start.error_ms, end.error_ms)
                level = _loud_db(part[round(start_ms * rate / 1000) : round(end_ms * rate / 1000)])
                found.append((SpeechStretch(*bounds), level))
    lengths = [stretch.end_ms - stretch.start_ms for stretch, _ in found]
    by_level = sorted(zip((level for _, level in found), lengths, strict=True))
    so_far = np.cumsum([length for _, length in by_level])
    middle = int(np.searchsorted(so_far, so_far[-1] / 2)) if found else 0
    softest = by_level[middle][0] - SOFTEST_DB if found else 0.0
    return [replace(stretch, is_soft=level < softest) for stretch, level in found]


def _parts(pcm: Pcm, rate: int) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the parts that hold sound; each ends at the quietest place near."""
    step = rate * FRAME // RATE
    powers: list[Floats] = [np.empty(0)]
    for at in range(0, len(pcm), step * 1024):  # so that an hour needs no gigabytes
        block = pcm[at : at + step * 1024].astype(np.float64)
        whole = block[: len(block) // step * step].reshape(-1, step)
        powers.append(np.mean(np.square(whole), axis=1))
    levels = np.concatenate(powers)
    part, first = PART_MS * RATE // 1000 // FRAME, 0
    while first < len(levels):
        last = len(levels)
        if last - first > part * 4 // 3:
            near = slice(first + part * 2 // 3, first + part * 4 // 3)
            quiet = np.convolve(levels[near], np.ones(15), "valid")
            last = near.start + 7 + int(np.argmin(quiet))
        if (sounding := np.flatnonzero(levels[first:last] > FAINTEST_POWER)).size:
            room = 1000 * RATE // 1000 // FRAME
            a = max(first, first + int(sounding[0]) - room)
            b = min(last, first + int(sounding[-1]) + room)
            yield a * step, len(pcm) if b == len(levels) else b * step
        first = last


def _loud_db(pcm: Pcm) -> float:
    """Return the level of the loudest tenth of a sound, in dB."""
    wide = np.sort(np.abs(pcm.astype(np.int32)))[-max(1, len(pcm) // 10) :]
    return float(20 * np.log10(np.mean(wide) + 1))


@dataclass(frozen=True, slots=True)
class _Edge:
    at_ms: float
    error_ms: float


class _Sound:
    """A recording in steps of 5 ms: Silero's probability, and each band's level in dB.

    Attributes:
        stretches: the stretches of speech, in steps, as Silero times them.
    """

    def __init__(self, probability: Floats, levels: Floats, alive: Bools) -> None:
        steps = min(len(probability), levels.shape[1], len(alive))
        self._levels = levels[:, :steps]
        self._alive = alive[:steps]
        self._probability = probability[:steps]
        self._quiet = (self._probability < QUIET) & self._alive
        self.stretches = _runs(probability[:steps] >= SPEECH)
        self._drop_murmurs()

    @property
    def knows_noise(self) -> bool:
        """Return whether there are 50 ms without speech, enough to know how loud the noise is."""
        return int(self._quiet.sum()) * STEP_MS >= 50

    @property
    def snr_db(self) -> float:
        clear = np.clip(self._loud - self._noise, 0, CLEAR_DB)
        return float(clear.mean())

    def edges(self) -> list[tuple["_Edge", "_Edge"]]:
        """Return where each stretch starts and ends."""
        # The steps that no stretch's own bounds may cross.
        middles = [(a[1] + b[0]) // 2 for a, b in pairwise(self.stretches)]
        limits = zip(self.stretches, [0, *middles], [*middles, 1 << 60], strict=False)
        edges = [(self.start(a, low), self.end(b, high)) for (a, b), low, high in limits]
        # A stretch that ends before it begins is no sound: it lies in a pause, or outside speech.
        return [(start, end) for start, end in edges if start.at_ms < end.at_ms]

    def left_out(self, bounds: SpeechBounds) -> Iterator[tuple[int, int]]:
        """Yield sound outside the bounds that could be speech: start and end in ms."""
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
        """Return the start of the stretch that Silero begins at `step`: `end` played backwards."""
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
        """Return the level of each band, shape (3, 1), above which its sound is speech."""
        return np.maximum(self._loud - fade_db, self._noise + ABOVE_NOISE_DB)[:, None]

    def _drop_murmurs(self) -> None:
        """Drop the speech of distant people before and after the turn."""
        self._measure()
        while len(self.stretches) > 1:
            if not self._is_as_loud(self.stretches[0]):
                self.stretches = self.stretches[1:]
            elif not self._is_as_loud(self.stretches[-1]):
                self.stretches = self.stretches[:-1]
            else:
                return
            self._measure()

    def _is_as_loud(self, stretch: tuple[int, int]) -> bool:
        """Return whether a stretch is as near to the voice's level as speech that fades."""
        levels = np.percentile(self._levels[:, slice(*stretch)], LOUD_PERCENT, axis=1)
        return bool((levels[:, None] > self._audible(FADE_DB[0])).any())

    def _measure(self) -> None:
        """Measure the level of the voice's loud parts and of the noise, in dB, shape (3,)."""
        if not self.stretches:
            return
        voice = np.concatenate([self._levels[:, slice(*s)] for s in self.stretches], axis=1)
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


def _warnings(pcm: Pcm, rate: int, sound: _Sound, bounds: SpeechBounds) -> Iterator[Warned]:
    for side, error_ms in (("start", bounds.start_error_ms), ("end", bounds.end_error_ms)):
        if (error_ms or 0.0) > DOUBTFUL_MS:
            yield Warned(
                "readings_disagree",
                f"the {side} may be {error_ms:.0f} ms off: Silero and the sound disagree, or the "
                "speech fades slowly",
            )
    if bounds.start_ms < EDGE_MS:
        yield Warned("edge", "the speech begins at the file's edge and may be cut off")
    if bounds.end_ms > len(pcm) * 1000 / rate - EDGE_MS:
        yield Warned("edge", "the speech ends at the file's edge and may be cut off")
    for start_ms, end_ms in sound.left_out(bounds):
        where = f"from {start_ms} to {end_ms} ms"
        yield Warned("left_out", f"the sound {where} is not taken for speech: listen to it")
    if not sound.knows_noise:
        yield Warned("no_silence", "no 50 ms without speech: the noise cannot be measured")
    if sound.snr_db < LOW_SNR_DB:
        yield Warned(
            "low_snr",
            f"the voice is only {sound.snr_db:.0f} dB above the noise, which hides weak ends of "
            "words",
        )
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


def speech_bounds(pcm: Pcm, rate: int, dbfs: float) -> SpeechBounds | None:
    """Return the first and last sample that is audible at `dbfs`, or None if there is none.

    Exact only for synthetic speech on a clean line. For any other recording use
    `turngap.scenario.speech.find_speech`, which separates speech from noise. Rounded to 0.1 ms.
    """
    onset, end = audible_onset(pcm, rate, dbfs), audible_end(pcm, rate, dbfs)
    if onset is None or end is None or end <= onset:
        return None
    start_ms, end_ms = round(onset * 1000 / rate, 1), round(end * 1000 / rate, 1)
    # Rounding up must not leave the recording.
    longest_ms = math.floor(len(pcm) * 10_000 / rate) / 10
    return SpeechBounds(start_ms=start_ms, end_ms=min(end_ms, longest_ms))
