"""Connects a sound device to a conversation: what is heard and played, with its instants.

The device's thread only swaps samples; everything else happens in the event loop.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import scipy.signal
import soxr

from turngap.caller.stream import RATE
from turngap.core.audio import (
    AUDIBLE_DBFS,
    Pcm,
    SpeechDetector,
    SpeechEnd,
    SpeechStart,
    rms_dbfs,
)
from turngap.core.clock import samples_to_ns
from turngap.live.sound import DEVICE_RATE, Block

DECIMATION = DEVICE_RATE // RATE
# The phase is linear, so the delay is 0.65 ms at every frequency.
_TAPS = scipy.signal.firwin(63, 7000, fs=DEVICE_RATE)

# How much of the microphone's noise is judged at first and later, and how often.
ROOM_S = 0.5
NOISE_S = 2.0
JUDGE_S = 1.0

# The room's noise is the quietest stretch of this length; the closure of a "t" is one, too.
FLOOR_WINDOW_MS = 30.0
# The loudest 10 ms of a minute of pink noise lie up to 7.8 dB above its quietest 30.
ABOVE_FLOOR_DB = 8.0

# Five seconds of blocks: enough for a median, and short enough to follow a drifting clock.
RECENT = 500


@dataclass(frozen=True, slots=True)
class Sounded:
    """Agent audio in a block: its first agent sample, how many, where, and when it arrived."""

    sample: int
    samples: int
    offset: int
    received_ns: int


@dataclass(frozen=True, slots=True)
class Swap:
    """One block as the event loop gets it, with what was played for it."""

    block: Block
    played: Pcm
    sounded: tuple[Sounded, ...]


@dataclass(slots=True)
class _Queued:
    sample: int
    received_ns: int
    pcm: Pcm
    ratio: float


class Playout:
    """Hands what is still to be played from the event loop to the device's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_Queued] = deque()
        self._resampler: tuple[int, soxr.ResampleStream] | None = None

    def add(self, sample: int, pcm: Pcm, rate: int, received_ns: int) -> None:
        if self._resampler is None or self._resampler[0] != rate:
            # QQ holds back 0.1 ms; better qualities up to 40 (measured), which lengthens the gap.
            stream = soxr.ResampleStream(rate, DEVICE_RATE, 1, dtype="int16", quality="QQ")
            self._resampler = (rate, stream)
        at_48k: Pcm = self._resampler[1].resample_chunk(pcm)
        with self._lock:
            self._queue.append(_Queued(sample, received_ns, at_48k, rate / DEVICE_RATE))

    def flush(self) -> None:
        with self._lock:
            self._queue.clear()
        self._resampler = None

    def take(self, samples: int) -> tuple[Pcm, tuple[Sounded, ...]]:
        """Return the next samples, padded with silence, and which of the agent's they hold."""
        out = np.zeros(samples, dtype=np.int16)
        sounded: list[Sounded] = []
        filled = 0
        with self._lock:
            while self._queue and filled < samples:
                head = self._queue[0]
                n = min(len(head.pcm), samples - filled)
                out[filled : filled + n] = head.pcm[:n]
                upto = round(n * head.ratio)
                if upto:
                    sounded.append(Sounded(head.sample, upto, filled, head.received_ns))
                head.sample += upto
                head.pcm = head.pcm[n:]
                filled += n
                if not len(head.pcm):
                    self._queue.popleft()
        return out, tuple(sounded)


class Handset:
    """The device's side of the exchange.

    Args:
        hand_over: called with each block in the device's thread; it must only pass the block on.
    """

    def __init__(self, hand_over: Callable[[Swap], None]) -> None:
        self.playout = Playout()
        self._hand_over = hand_over

    def exchange(self, block: Block) -> Pcm:
        played, sounded = self.playout.take(len(block.mic))
        # The device reuses its buffer.
        copy = Block(block.mic.copy(), block.adc_ns, block.dac_ns, block.glitch)
        self._hand_over(Swap(copy, played, sounded))
        return played


class Decimator:
    """Resamples 48 kHz to the line's 16 kHz without a block of delay."""

    def __init__(self) -> None:
        self._state = np.zeros(len(_TAPS) - 1)
        self._phase = 0

    def feed(self, pcm: Pcm) -> Pcm:
        filtered, self._state = scipy.signal.lfilter(_TAPS, [1.0], pcm, zi=self._state)
        kept = filtered[self._phase :: DECIMATION]
        self._phase = (self._phase - len(pcm)) % DECIMATION
        return np.rint(kept).clip(-32768, 32767).astype(np.int16)


class DeviceClock:
    """The page clock of a terminal, which counts the device's samples from the microphone's first.

    Drivers stamp their blocks with some jitter; their sample count has none. The loudspeaker plays
    a block a constant time after the microphone took its block; the median of the last seconds
    estimates it. The shortest wait for a block is nearest to the machine's clock, from which a
    sound card may drift by milliseconds a minute.
    """

    def __init__(self) -> None:
        self._samples = 0
        self._round_trips_ns: deque[int] = deque(maxlen=RECENT)
        self._waits_ns: deque[int] = deque(maxlen=RECENT)

    def add(self, block: Block, now_ns: int) -> None:
        self._samples += len(block.mic)
        self._round_trips_ns.append(block.dac_ns - block.adc_ns)
        self._waits_ns.append(now_ns - samples_to_ns(self._samples, DEVICE_RATE))

    @property
    def machine_ns(self) -> int:
        return min(self._waits_ns, default=0)

    @property
    def round_trip_ns(self) -> int:
        """How much later a block sounds than the microphone took the block it was swapped for."""
        return round(median(self._round_trips_ns)) if self._round_trips_ns else 0

    def heard_ns(self, sample: int) -> int:
        return samples_to_ns(sample, DEVICE_RATE)

    def played_ns(self, sample: int) -> int:
        return samples_to_ns(sample, DEVICE_RATE) + self.round_trip_ns

    def now_ns(self, machine_ns: int) -> int:
        return machine_ns - self.machine_ns


@dataclass(frozen=True, slots=True)
class Noise:
    """The speech since the last start, up to `sample`, was only noise of the room."""

    sample: int


class AdaptiveDetector:
    """A speech detector for a microphone, whose level follows the room's noise.

    It reports nothing before it has heard the room for half a second.
    """

    def __init__(self) -> None:
        self._detector, self._base = SpeechDetector(DEVICE_RATE), 0
        self._recent: deque[Pcm] = deque()
        self._seen = 0
        self._judge_at = round(ROOM_S * DEVICE_RATE)
        self._knows_room = False
        self.level_dbfs = AUDIBLE_DBFS

    def feed(self, pcm: Pcm) -> list[SpeechStart | SpeechEnd | Noise]:
        """Return what the next samples reveal; positions count from the very first sample."""
        found = self._detector.feed(pcm)
        events: list[SpeechStart | SpeechEnd | Noise] = []
        if self._knows_room:
            events += [type(e)(e.sample + self._base) for e in found]
        self._seen += len(pcm)
        self._recent.append(pcm)
        while sum(map(len, self._recent)) > NOISE_S * DEVICE_RATE:
            self._recent.popleft()
        if self._seen >= self._judge_at:
            events += self._judge()
            self._judge_at = self._seen + round(JUDGE_S * DEVICE_RATE)
        return events

    def _judge(self) -> list[Noise]:
        level = _level_dbfs(np.concatenate(self._recent))
        first, self._knows_room = not self._knows_room, True
        speaking = self._detector.speaking
        # Speech has quiet moments; two seconds without one are the room.
        is_noise = speaking and (first or level - ABOVE_FLOOR_DB >= self.level_dbfs)
        if is_noise or (not speaking and abs(level - self.level_dbfs) > 1):
            self.level_dbfs = level
            self._detector, self._base = SpeechDetector(DEVICE_RATE, dbfs=level), self._seen
        return [Noise(self._seen)] if is_noise and not first else []


def _level_dbfs(pcm: Pcm) -> float:
    """Return the level from which samples count as speech, above the microphone's own noise."""
    window = round(DEVICE_RATE * FLOOR_WINDOW_MS / 1000)
    energy = np.concatenate(([0.0], np.cumsum(np.square(pcm, dtype=np.float64))))
    quietest = int(np.argmin(energy[window:] - energy[:-window]))
    return max(AUDIBLE_DBFS, rms_dbfs(pcm[quietest : quietest + window]) + ABOVE_FLOOR_DB)
