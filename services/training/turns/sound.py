"""From a plan to a recording: speech with its melody, then the room and the line around it."""

# praat-parselmouth is in the group `training`, not in what the checks run with.
# pyright: reportMissingImports=false

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import butter, fftconvolve, sosfilt, sosfiltfilt

from training.turns.plan import Ending, Plan, Scene, Silence, Stretch
from training.turns.speakers import RATE, Speaker, rendered
from training.whisper.speech import noise
from turngap.core.audio import FULL_SCALE, Pcm, audible_end, audible_onset

Signal = NDArray[np.float64]

# What a clean take's loudest sample is scaled to, and from where on its samples are speech.
_PEAK_DBFS, _SPEECH_DBFS = -7.0, -50.0
# An engine's own silence at a comma is cut to what the closure of a consonant may last.
_CLOSURE_MS = 80.0
# What is lengthened and grows softer at the end of a stretch: about its last syllable.
_LAST_MS = 250.0
_LOWEST_HZ, _HIGHEST_HZ = 60.0, 500.0
_STEP_S = 0.01


@dataclass(frozen=True, slots=True)
class Take:
    """A recording, with its contents.

    Attributes:
        pcm: mono, 16 kHz.
        speech_ms: first and last audible sample of the clean take.
        pauses_ms: the silences between its stretches.
    """

    pcm: Pcm
    speech_ms: tuple[float, float]
    pauses_ms: tuple[tuple[float, float], ...]


def recorded(plan: Plan, draw: np.random.Generator) -> Take:
    """Say, and record, one turn."""
    said = [spoken(stretch, plan.speaker) for stretch in plan.stretches]
    loudest = max(float(np.abs(each).max()) for each in said)
    said = [trimmed(each / loudest * _gain(_PEAK_DBFS)) for each in said]
    pieces = [np.zeros(_samples(plan.scene.lead_ms))]
    spans: list[tuple[int, int]] = []  # of the stretches, in samples
    for number, speech in enumerate(said):
        at = sum(len(piece) for piece in pieces)
        spans.append((at, at + len(speech)))
        pieces.append(speech)
        if number < len(plan.silences):
            pieces.append(_silence(plan.silences[number], draw))
    clean = np.concatenate([*pieces, np.zeros(_samples(plan.scene.tail_ms))])
    heard = np.concatenate([clean[start:end] for start, end in spans])
    active = float(np.sqrt(np.mean(heard**2)))
    return Take(
        on_the_line(clean, active, plan.scene, draw),
        (_ms(spans[0][0]), _ms(spans[-1][1])),
        tuple((_ms(a[1]), _ms(b[0])) for a, b in itertools.pairwise(spans)),
    )


def spoken(stretch: Stretch, speaker: Speaker) -> Signal:
    """Speak a stretch with its melody, as loud as the engine makes it."""
    mark = {"L-L%": ".", "H-H%": "?"}.get(stretch.ending.tone, ",")
    raw = rendered(speaker, stretch.text + mark)
    peak = float(np.abs(raw).max()) if len(raw) else 0.0
    if peak == 0:
        raise ValueError(f"{speaker.voice} said nothing for {stretch.text!r}")
    level = _gain(_PEAK_DBFS) / peak
    speech = tightened(trimmed(raw * level)) / level
    return shaped(speech, stretch.ending, speaker, stretch.higher) * _gain(stretch.louder_db)


def trimmed(speech: Signal) -> Signal:
    """Trim `speech` to its audible part; its peak is at -7 dBFS or a bit lower."""
    pcm = _pcm(speech)
    first = audible_onset(pcm, RATE, _SPEECH_DBFS)
    last = audible_end(pcm, RATE, _SPEECH_DBFS)
    if first is None or last is None:
        raise ValueError("nothing audible was said")
    return speech[first : last + 1]


def tightened(speech: Signal) -> Signal:
    """Return `speech` without silences that are longer than the closure of a consonant."""
    window = RATE // 100
    count = len(speech) // window
    power = np.mean(speech[: count * window].reshape(count, window) ** 2, axis=1)
    quiet = power < _gain(_SPEECH_DBFS) ** 2
    keep = np.ones(len(speech), bool)
    run, most = 0, round(_CLOSURE_MS / 10)
    for i, silent in enumerate(quiet):
        run = run + 1 if silent else 0
        if run > most:
            keep[i * window : (i + 1) * window] = False
    return speech[keep]


def shaped(speech: Signal, ending: Ending, speaker: Speaker, higher: float) -> Signal:
    """Return `speech` with another vocal tract, melody and ending, by overlap-add at its periods.

    Args:
        speech: trimmed, 16 kHz.
        ending: of the melody, the last syllable and the loudness.
        speaker: whose size, pitch, pace and liveliness count here.
        higher: the height of the whole of it, in semitones.
    """
    import parselmouth
    from parselmouth.praat import call, run

    # Played slower or faster, as from a larger or smaller mouth; `back` undoes it for the pace.
    at = np.arange(0, len(speech) - 1, 1 / speaker.size)
    sound = parselmouth.Sound(np.interp(at, np.arange(len(speech)), speech), RATE)
    made = call(sound, "To Manipulation", _STEP_S, _LOWEST_HZ, _HIGHEST_HZ)
    pitch = sound.to_pitch_ac(_STEP_S, _LOWEST_HZ, pitch_ceiling=_HIGHEST_HZ)
    times, hz = pitch.xs(), pitch.selected_array["frequency"]
    times, hz = times[hz > 0], hz[hz > 0]
    if len(hz):
        tier = call("Create PitchTier", "melody", 0.0, sound.duration)
        for when, new in zip(times, melody(times, hz, ending, speaker, higher), strict=True):
            call(tier, "Add point", float(when), float(new))
        call([tier, made], "Replace pitch tier")
    pace = call("Create DurationTier", "pace", 0.0, sound.duration)
    ramp_s = max(sound.duration - 1.4 * _LAST_MS / 1000, 0.0)
    last_s = max(sound.duration - _LAST_MS / 1000, ramp_s + 1e-4)
    back = 1 / (speaker.size * speaker.pace)
    call(pace, "Add point", ramp_s, back)
    call(pace, "Add point", last_s, back * ending.lengthened)
    call([pace, made], "Replace duration tier")
    # Praat draws where the periods of voiceless sounds lie; drawn alike, they make the same bytes.
    run("random_initializeWithSeedUnsafelyButPredictably (1)")
    new = call(made, "Get resynthesis (overlap-add)").values[0]
    fade = np.zeros(len(new))
    falling = min(len(new), _samples(_LAST_MS * back * ending.lengthened))
    fade[len(new) - falling :] = np.linspace(0, -ending.softer_db, falling)
    return new * 10 ** (fade / 20)


def melody(
    times: NDArray[np.float64],
    hz: NDArray[np.float64],
    ending: Ending,
    speaker: Speaker,
    higher: float,
) -> NDArray[np.float64]:
    """Shape the pitch in Hz at `times` (s), starting from the engine's own pitch."""
    median = float(np.median(hz))
    steps = 12 * np.log2(hz / median) * speaker.lively
    over_s = ending.over_ms / 1000
    weight = np.clip((times - (times[-1] - over_s)) / over_s, 0.0, 1.0)
    goal = np.full(len(times), ending.semitones)
    if ending.tone == "L-H%":  # it dips first
        goal = np.where(weight < 0.6, -3.0, ending.semitones)
    steps = (1 - weight) * steps + weight * goal
    return np.clip(
        median * speaker.pitch * 2 ** ((steps + higher) / 12), _LOWEST_HZ, _HIGHEST_HZ * 1.5
    )


def on_the_line(clean: Signal, active: float, scene: Scene, draw: np.random.Generator) -> Pcm:
    """Return `clean`, whose speech has the RMS `active`, as the far end hears it."""
    sound = clean if scene.rt60_s is None else in_a_room(clean, scene, draw)
    gain = min(_gain(scene.active_dbfs) / active, _gain(-1.0) / float(np.abs(sound).max()))
    behind = noise(len(sound), scene.slope, draw) * active * gain * _gain(-scene.snr_db)
    heard = sound * gain + behind
    return _pcm(_over_the_telephone(heard) if scene.telephone else heard)


def in_a_room(clean: Signal, scene: Scene, draw: np.random.Generator) -> Signal:
    """Return `clean` with the echoes of a room; the direct sound stays where it is."""
    assert scene.rt60_s is not None
    s = np.arange(round(scene.rt60_s * RATE)) / RATE
    echoes = draw.normal(size=len(s)) * 10 ** (-3 * s / scene.rt60_s)
    echoes[: RATE // 500] = 0.0  # none comes earlier than 2 ms
    echoes *= _gain(-scene.direct_db) / np.sqrt(np.sum(echoes**2))
    echoes[0] = 1.0
    return fftconvolve(clean, echoes)[: len(clean)]


def _over_the_telephone(sound: Signal) -> Signal:
    band = butter(4, (300, 3400), "bandpass", fs=RATE, output="sos")
    narrow = np.clip(sosfiltfilt(band, sound), -1, 1)[:: RATE // 8000]
    # G.711's curve, mu = 255, in 8 bits.
    coded = np.round(np.sign(narrow) * np.log1p(255 * np.abs(narrow)) / np.log(256) * 127) / 127
    decoded = np.sign(coded) * (256 ** np.abs(coded) - 1) / 255
    wide = np.zeros(len(sound))
    wide[:: RATE // 8000] = decoded * 2
    return sosfiltfilt(butter(6, 3700, fs=RATE, output="sos"), wide)


def _silence(silence: Silence, draw: np.random.Generator) -> Signal:
    """Make a silence, with a breath of a third of a second or a click of the tongue if drawn."""
    quiet = np.zeros(_samples(silence.ms))
    if silence.sound == "breath":
        length = min(len(quiet) - _samples(150), _samples(350))
        band = butter(2, (400, 4000), "bandpass", fs=RATE, output="sos")
        breath = sosfilt(band, draw.normal(size=length)) * np.hanning(length)
        quiet[-length:] = breath / np.abs(breath).max() * _gain(-34.0)
    elif silence.sound == "click":
        length, at = _samples(6), int(draw.integers(_samples(60), _samples(140)))
        quiet[at : at + length] = draw.normal(size=length) * np.hanning(length) * _gain(-36.0)
    return quiet


def _pcm(signal: Signal) -> Pcm:
    return np.rint(np.clip(signal, -1, 1 - 1 / FULL_SCALE) * FULL_SCALE).astype(np.int16)


def _gain(db: float) -> float:
    return 10 ** (db / 20)


def _samples(ms: float) -> int:
    return round(ms * RATE / 1000)


def _ms(samples: int) -> float:
    return round(samples * 1000 / RATE, 1)
