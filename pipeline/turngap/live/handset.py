"""Connects a sound device to a conversation: what is heard and what is played.

The device's thread only swaps samples; everything else happens in the event loop.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
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
from turngap.live.sound import DEVICE_RATE, Block

DECIMATION = DEVICE_RATE // RATE
# A low-pass at 7 kHz. The phase is linear, so the delay is 0.65 ms at every frequency.
_TAPS = np.sinc(2 * 7000 / DEVICE_RATE * np.arange(-31, 32)) * np.hamming(63)
_TAPS /= _TAPS.sum()

# How much of the microphone's noise is judged at first and later, and how often.
ROOM_S = 0.5
NOISE_S = 2.0
JUDGE_S = 1.0

# The room's noise is the quietest stretch of this length; the closure of a "t" is one, too.
FLOOR_WINDOW_MS = 30.0
# The loudest 10 ms of a minute of pink noise lie up to 7.8 dB above its quietest 30.
ABOVE_FLOOR_DB = 8.0


class Playout:
    """Hands what is still to be played from the event loop to the device's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[Pcm] = deque()
        self._resampler: tuple[int, soxr.ResampleStream] | None = None

    def add(self, pcm: Pcm, rate: int) -> None:
        if self._resampler is None or self._resampler[0] != rate:
            # QQ holds back 0.1 ms; better qualities up to 40 (measured), which lengthens the gap.
            stream = soxr.ResampleStream(rate, DEVICE_RATE, 1, dtype="int16", quality="QQ")
            self._resampler = (rate, stream)
        at_48k: Pcm = self._resampler[1].resample_chunk(pcm)
        with self._lock:
            self._queue.append(at_48k)

    def take(self, samples: int) -> Pcm:
        """Return the next samples, padded with silence."""
        out = np.zeros(samples, dtype=np.int16)
        filled = 0
        with self._lock:
            while self._queue and filled < samples:
                head = self._queue.popleft()
                n = min(len(head), samples - filled)
                out[filled : filled + n] = head[:n]
                filled += n
                if n < len(head):
                    self._queue.appendleft(head[n:])
        return out


class Handset:
    """The device's side of the exchange.

    Args:
        hand_over: called with each block in the device's thread; it must only pass the block on.
    """

    def __init__(self, hand_over: Callable[[Block], None]) -> None:
        self.playout = Playout()
        self._hand_over = hand_over

    def exchange(self, block: Block) -> Pcm:
        # The device reuses its buffer.
        self._hand_over(Block(block.mic.copy(), block.glitch))
        return self.playout.take(len(block.mic))


class Decimator:
    """Resamples 48 kHz to the line's 16 kHz without a block of delay."""

    def __init__(self) -> None:
        self._state = np.zeros(len(_TAPS) - 1)
        self._phase = 0

    def feed(self, pcm: Pcm) -> Pcm:
        if not len(pcm):
            return pcm
        heard = np.concatenate((self._state, pcm))
        self._state = heard[len(pcm) :]
        filtered = np.convolve(heard, _TAPS, "valid")
        kept = filtered[self._phase :: DECIMATION]
        self._phase = (self._phase - len(pcm)) % DECIMATION
        return np.rint(kept).clip(-32768, 32767).astype(np.int16)


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
