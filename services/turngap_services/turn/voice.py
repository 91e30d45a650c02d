"""A caller's voice: when it begins and was last audible, to the sample, and its melody. No I/O.

Silero judges windows of 32 ms. Two of its states look at windows that lie 16 ms apart, so a verdict
comes every 16 ms. It decides whether there is a voice. The end of the voice is read from the
samples, every 10 ms, because Silero hears it for another 75 ms (median; p95 129, over the library's
32 recordings). Soft syllables over a telephone or in noise look like silence in the samples, so the
end is never earlier than Silero's last window of speech, less a margin. The melody before a silence
costs about 1 ms of CPU, once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from turngap.backends import AGENT
from turngap.core.audio import AUDIBLE_DBFS, FULL_SCALE, Pcm, audible_end, rms_dbfs
from turngap.core.clock import ms_to_ns, samples_to_ns
from turngap.core.errors import AgentError
from turngap_services.sound import heard_from_dbfs, mean_dbfs

if TYPE_CHECKING:
    from pipecat.audio.vad.silero import SileroOnnxModel

# Silero as pipecat has it, eight times quicker than turngap's; all models share one session.
# The state is reset as by pipecat's analyzer, for its reasons: music, or a long silence at 8 kHz,
# leaves it deaf to the speech that follows. Only in clear silence, as a reset in speech loses
# confidence.
RESET_WINDOWS = 62  # 2 s
SILENT_WINDOWS = 5
SILENT_BELOW = 0.1
OUTPUTS = ("output", "stateN")


@cache
def _loaded() -> "SileroOnnxModel":
    if not AGENT.met():
        raise AgentError(
            "speech.no_model",
            "a person's voice is found with Silero, which is not installed here",
            hint=AGENT.remedy,
        )
    from pipecat.audio.vad.silero import SileroOnnxModel

    path = resources.files("pipecat.audio.vad.data").joinpath("silero_vad.onnx")
    return SileroOnnxModel(str(path))


def load_silero() -> None:
    """Load the model, once a process: about 60 ms.

    Raises:
        AgentError: it is not installed.
    """
    _loaded()


def silero_model(rate: int) -> Callable[[NDArray[np.float32]], float]:
    """Return a model with a fresh state for audio at `rate` Hz (8000 or 16000)."""
    # As pipecat's `SileroOnnxModel` calls it, without its checks: an agent asks 62 times a second.
    run = _loaded().session.run
    samples, context = (512, 64) if rate == 16_000 else (256, 32)
    heard = np.zeros((1, context + samples), np.float32)
    fresh = np.zeros((2, 1, 128), np.float32)
    asked = {"input": heard, "state": fresh, "sr": np.array(rate, np.int64)}
    windows = silent = 0

    def probability(window: NDArray[np.float32]) -> float:
        nonlocal windows, silent
        heard[0, :context] = heard[0, samples:]
        heard[0, context:] = window
        out, asked["state"] = cast("list[NDArray[np.float32]]", run(OUTPUTS, asked))
        p = float(out.item())
        windows += 1
        silent = silent + 1 if p < SILENT_BELOW else 0
        if windows >= RESET_WINDOWS and silent >= SILENT_WINDOWS:
            asked["state"] = fresh
            heard[:] = 0
            windows = 0
        return p

    return probability


# How much sound before the silence is looked at: it has to hold a phrase, whose median is what the
# end is compared with.
SPAN_MS = 1500

# A voice's melody lies below 500 Hz, so that 4,000 samples a second show it.
_RATE = 4000
_WINDOW = _RATE * 40 // 1000
_HOP = _RATE // 100
_FFT = 256
_LAGS = slice(_RATE // 450, _RATE // 60)
# A frame is voiced from this likeness to itself a period later, and this far below the loudest.
_LIKE = 0.55
_SOFTEST_DB = 30.0
_AS_GOOD = 0.85
# What is left of the lengths of the end and of what came before it, in voiced frames of 10 ms.
_END, _BEFORE = 6, 20
# No voice moves further than an octave within a phrase: what does is a mistaken period.
_OCTAVE = 12.0


@dataclass(frozen=True, slots=True)
class Melody:
    """The pitch and energy at the end of a stretch of speech.

    Attributes:
        pitch: pitch of its last 60 ms of voice, in semitones from the median.
        falls: their distance from the 200 ms before, in semitones; below 0 they are lower.
        loudness: level of its last 100 ms, in dB from the loudest.
        voiced_ms: how long its last voiced stretch is.
    """

    pitch: float
    falls: float
    loudness: float
    voiced_ms: float


def melody_of(pcm: Pcm, rate: int) -> Melody | None:
    """Return the melody at the end of the sound, or None if hardly any of it is voiced.

    Args:
        pcm: mono int16, up to the last audible sample.
        rate: its sample rate, a multiple of 4000 Hz.
    """
    step = rate // _RATE
    sound = pcm[len(pcm) % step :].astype(np.float64).reshape(-1, step).mean(axis=1) / FULL_SCALE
    if len(sound) < _WINDOW:
        return None
    # The last frame ends with the sound.
    windows = np.lib.stride_tricks.sliding_window_view(sound, _WINDOW)[::-_HOP][::-1]
    windows = windows - windows.mean(axis=1, keepdims=True)
    power = 10 * np.log10(np.mean(windows**2, axis=1) + 1e-12)
    likeness, semitones = _pitch(windows)
    voiced = (likeness >= _LIKE) & (power >= power.max() - _SOFTEST_DB)
    at = np.flatnonzero(voiced)
    if len(at) < _END + 2:
        return None
    pitch = semitones[at]
    middle = float(np.median(pitch))
    pitch = np.clip(pitch - middle, -_OCTAVE, _OCTAVE)
    end, before = pitch[-_END:], pitch[-_END - _BEFORE : -_END]
    unvoiced = np.flatnonzero(~voiced[: at[-1]])
    begun = int(unvoiced[-1]) + 1 if len(unvoiced) else 0
    return Melody(
        pitch=float(np.median(end)),
        falls=float(np.median(end) - np.median(before)),
        loudness=float(power[-10:].mean() - power.max()),
        voiced_ms=float(at[-1] - begun + 1) * 10,
    )


def _pitch(windows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how periodic each window is, 0 to 1, and its pitch in semitones over 1 Hz."""
    spectrum = np.fft.rfft(windows, _FFT, axis=1)
    likeness = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, : _LAGS.stop + 2]
    # A longer lag compares fewer samples.
    likeness = likeness / (1 - np.arange(likeness.shape[1]) / _WINDOW)
    likeness = likeness / np.maximum(likeness[:, :1], 1e-12)
    # Two periods look as much like each other as one: the shortest of the good ones is the voice's.
    peaks = (likeness[:, 1:-1] >= likeness[:, :-2]) & (likeness[:, 1:-1] > likeness[:, 2:])
    good = np.where(peaks, likeness[:, 1:-1], 0)[:, _LAGS.start - 1 : _LAGS.stop - 1]
    lag = _LAGS.start + (good >= _AS_GOOD * good.max(axis=1, keepdims=True)).argmax(axis=1)
    row = np.arange(len(lag))
    left, top, right = (likeness[row, lag + d] for d in (-1, 0, 1))
    bend = left - 2 * top + right
    offset = np.where(bend < 0, (left - right) / np.minimum(2 * bend, -1e-9), 0.0)
    period = lag + np.clip(offset, -0.5, 0.5)
    return np.clip(top, 0, 1), 12 * np.log2(_RATE / period)


# From a window's samples, float in -1 to 1, to the probability that they are speech.
Model = Callable[[NDArray[np.float32]], float]

FULL = np.float32(FULL_SCALE)
FRAME_MS = 10
WINDOW_MS = 32
HOP_MS = 16

# Hops of speech in a row that begin a voice: over the library's recordings 64 ms after its first
# audible sample (p95 102); two hops would be 16 ms sooner and start on clicks.
STARTING_HOPS = 3
# After this many hops without speech, what is loud is not the voice.
STALE_HOPS = 4
# Silero hears clear speech on for this long at most: what it hears later was too soft to be seen.
HEARS_ON_MS = 130
# It is believed for this long where nothing is loud enough for the voice: it hears a TV, too.
ALONE_MS = 1000
# The noise is the quietest 30 ms shortly before the voice began or while it lasted.
NOISE_FRAMES = 15
SMOOTH_FRAMES = 3
# How long after the last audible sample its melody can still be asked for.
KEPT_MS = 500
# After this much silence, a sound is another one when it comes again.
STIR_GAP_FRAMES = 3


class Voice:
    """One caller's audio, and where the voice in it begins and ends.

    Args:
        rate: sample rate, Hz.
        models: two, each with its own state, which judge hops in turn.
        confidence: probability from which a window is speech.

    Attributes, positions in samples since the beginning:
        heard: end of the audio so far.
        onset: where the present utterance began, if there is one.
        last_audible: end of the voice's last audible sample, if there is an utterance.
        stirring: where a sound began that may prove to be the voice, if there is one.
        voiced_ms: how much of the utterance Silero took for speech.
    """

    def __init__(self, rate: int, models: Sequence[Model], confidence: float) -> None:
        self._rate = rate
        self._models = models
        self._confidence = confidence
        self._frame = rate * FRAME_MS // 1000
        self._hop = rate * HOP_MS // 1000
        self._window = rate * WINDOW_MS // 1000
        self._samples: Pcm = np.empty(0, dtype=np.int16)  # from `_at` on
        self._at = 0
        self._kept = rate * (SPAN_MS + KEPT_MS) // 1000
        self._hops = 0
        self._frames = 0
        self._run = 0  # hops of speech in a row
        self._since = STALE_HOPS  # hops since the last one of speech
        self._levels: deque[float] = deque(maxlen=NOISE_FRAMES + SMOOTH_FRAMES)
        self._quiet_frames = 0
        self.heard = 0
        self.stirring: int | None = None
        self.settle()

    def settle(self) -> None:
        """End the utterance: further speech is another one."""
        self.onset: int | None = None
        self.last_audible: int | None = None
        self._loud_until = 0  # as far as the level shows
        self.voiced_ms = 0
        self._noise = float("inf")
        self._peak = float("-inf")
        self._melody: tuple[int, Melody | None] | None = None

    def melody(self) -> Melody | None:
        """Return the melody up to the voice's last audible sample; each is computed once."""
        last, onset = self.last_audible, self.onset
        if last is None or onset is None:
            return None
        if self._melody is None or self._melody[0] != last:
            first = max(onset, last - self._rate * SPAN_MS // 1000, self._at)
            sound = self._samples[first - self._at : last - self._at]
            self._melody = last, melody_of(sound, self._rate)
        return self._melody[1]

    @property
    def speaking(self) -> bool:
        return self.onset is not None and self._since < STALE_HOPS

    def feed(self, pcm: Pcm) -> None:
        self._samples = np.concatenate((self._samples, pcm))
        self.heard += len(pcm)
        # Frames and hops are judged in the order in which they end, however the stream is cut.
        while True:
            frame_end = (self._frames + 1) * self._frame
            hop_end = self._hops * self._hop + self._window
            if min(frame_end, hop_end) > self.heard:
                break
            if frame_end <= hop_end:
                self._judge_frame()
            else:
                self._judge_hop()
        keep = max(self.heard - self._kept, self._at)
        self._samples = self._samples[keep - self._at :]
        self._at = keep

    def _judge_hop(self) -> None:
        first = self._hops * self._hop - self._at
        window = self._samples[first : first + self._window].astype(np.float32)
        is_speech = self._models[self._hops % len(self._models)](window / FULL) >= self._confidence
        self._hops += 1
        self._run = self._run + 1 if is_speech else 0
        self._since = 0 if is_speech else self._since + 1
        if self.onset is None and self._run >= STARTING_HOPS:
            self._begin()
        elif self.onset is not None and self.last_audible is not None and is_speech:
            self.voiced_ms += HOP_MS
            until = self._at + first + self._window - self._rate * HEARS_ON_MS // 1000
            if until <= self._loud_until + self._rate * ALONE_MS // 1000:
                self.last_audible = max(self.last_audible, until)

    def _begin(self) -> None:
        """Begin an utterance some hops back, with the quietest sound around them as noise."""
        begun = (self._hops - STARTING_HOPS) * self._hop
        self.onset = begun if self.stirring is None else self.stirring
        self.last_audible = self._loud_until = self._frames * self._frame
        self.voiced_ms = STARTING_HOPS * HOP_MS
        self._peak = max(self._levels)
        for back in range(max(0, len(self._levels) - SMOOTH_FRAMES + 1)):
            self._note_noise(back)

    def _note_noise(self, back: int) -> None:
        """Lower the noise to three frames' mean power, ending `back` frames ago."""
        levels = list(self._levels)[len(self._levels) - back - SMOOTH_FRAMES :][:SMOOTH_FRAMES]
        self._noise = min(self._noise, mean_dbfs(levels))

    def _judge_frame(self) -> None:
        first = self._frames * self._frame - self._at
        level = max(rms_dbfs(self._samples[first : first + self._frame]), -120.0)
        self._frames += 1
        self._levels.append(level)
        if self.onset is not None and len(self._levels) >= SMOOTH_FRAMES:
            self._note_noise(0)
        heard_from = heard_from_dbfs(self._noise, self._peak)
        threshold = AUDIBLE_DBFS if self.onset is None else heard_from
        self._note_stir(level >= threshold)
        if self.onset is not None and self._since < STALE_HOPS:
            self._note_audible(first, threshold)
            if level >= threshold:
                self._peak = max(self._peak, level)

    def _note_audible(self, first: int, threshold: float) -> None:
        """Find the last audible sample of a frame and the one before, as labels are found.

        Against the label, the frame's own end lies -6 to 7 ms off (p5 and p95; at most 15), this
        sample 0 to 0.6 (42 recordings at four places of the grid). In noise 20 dB below the voice,
        both are sometimes late, by up to 181 ms.
        """
        begin = max(first - self._frame, 0)
        end = audible_end(self._samples[begin : first + self._frame], self._rate, threshold)
        if end is not None and self.last_audible is not None:
            self._loud_until = max(self._loud_until, self._at + begin + end + 1)
            self.last_audible = max(self.last_audible, self._loud_until)

    def _note_stir(self, is_loud: bool) -> None:
        if is_loud:
            self._quiet_frames = 0
            if self.stirring is None:
                self.stirring = (self._frames - 1) * self._frame
            return
        self._quiet_frames += 1
        if self._quiet_frames >= STIR_GAP_FRAMES:
            self.stirring = None


# The line's shortest delay is looked for over this many packets (2 s of 20 ms): long enough to meet
# a packet that was not held up, short enough to follow two clocks that drift apart (50 ppm: 0.1
# ms).
PACKETS = 100
# A packet that is later than the shortest delay by more was not held up: the caller had paused.
PAUSED_MS = 200.0


class Arrivals:
    """A map from positions in a stream to the instants at which they sounded. Pure.

    A packet is sent once its last sample is there, so an undelayed packet arrives when that sample
    sounds. The fastest packets therefore show the delay.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._offsets: deque[int] = deque(maxlen=PACKETS)
        self._offset_ns = 0

    def arrived(self, now_ns: int, until: int) -> None:
        """Note that the packet that ends at sample `until` has come."""
        offset_ns = now_ns - samples_to_ns(until, self._rate)
        self._offsets.append(offset_ns)
        self._offset_ns = max(min(self._offsets), offset_ns - ms_to_ns(PAUSED_MS))

    def instant_ns(self, sample: int) -> int:
        """Return when the sample at that position sounded."""
        return self._offset_ns + samples_to_ns(sample, self._rate)
