"""Audio at another rate, as it comes, with at most 2 ms of it held back.

pipecat resamples a stream with soxr, which holds back 40 to 168 ms (22,050 to 24,000 and to 8,000
Hz, by quality): that would be part of every turn gap. Its quickest quality holds nothing back, but
has no filter, and folds everything above 4 kHz into a telephone's band.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pipecat.audio.resamplers.base_audio_resampler import BaseAudioResampler

from turngap.core.audio import Pcm

# Crossings of zero on either side of the kernel's middle: 2 ms at 8 kHz, and the band that is lost
# to the filter's slope begins at 3.1 kHz there, where a telephone's ends.
CROSSINGS = 16
# The kernel's window, and where its slope is half way, in parts of the lower rate: 60 dB are gone
# at half of that rate.
_KAISER_BETA = 5.65
_CUTOFF = 0.444

# What a client may name as its rate: any other could ask for a kernel of 100 MB.
RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)


@lru_cache(maxsize=32)
def _kernels(in_rate: int, out_rate: int) -> NDArray[np.float32]:
    """Return a kernel for each place that an output sample can have between two of the input.

    The shape is (places, taps), with as many taps before the place as after it.
    """
    places = out_rate // math.gcd(in_rate, out_rate)
    low = min(in_rate, out_rate) / in_rate
    half = math.ceil(CROSSINGS / low)
    at = np.arange(-half + 1, half + 1) - np.arange(places)[:, None] / places
    inside = np.clip(1 - (at * low / CROSSINGS) ** 2, 0, None)
    window = np.i0(_KAISER_BETA * np.sqrt(inside)) * (inside > 0)
    kernels = np.sinc(2 * _CUTOFF * low * at) * window
    return (kernels / kernels.sum(axis=1, keepdims=True)).astype(np.float32)


class Resampling:
    """One stream from one rate to another; output sample k is at the instant k / `out_rate`."""

    def __init__(self, in_rate: int, out_rate: int) -> None:
        common = math.gcd(in_rate, out_rate)
        self.rates = in_rate, out_rate
        self._up, self._down = out_rate // common, in_rate // common
        self._kernels = _kernels(in_rate, out_rate)
        self._half = self._kernels.shape[1] // 2
        self._begin()

    def _begin(self) -> None:
        # Silence before the first sample. `_first` is the input's number of the first one held.
        self._first = 1 - self._half
        self._held = np.zeros(self._half - 1, np.float32)
        self._next = 0

    def add(self, pcm: Pcm) -> Pcm:
        """Take the next samples, and return those at the other rate that are certain by now."""
        self._held = np.concatenate((self._held, pcm.astype(np.float32)))
        known = self._first + len(self._held) - self._half
        return self._made(math.ceil(known * self._up / self._down))

    def finish(self) -> Pcm:
        """Return the rest of the stream, and begin another."""
        ends = self._first + len(self._held)
        self._held = np.concatenate((self._held, np.zeros(self._half, np.float32)))
        rest = self._made(math.ceil(ends * self._up / self._down))
        self._begin()
        return rest

    def _made(self, stop: int) -> Pcm:
        at = np.arange(self._next, max(self._next, stop)) * self._down
        self._next = max(self._next, stop)
        before = at // self._up - self._half + 1 - self._first
        taps = self._held[before[:, None] + np.arange(2 * self._half)]
        made = np.einsum("kt,kt->k", taps, self._kernels[at % self._up])
        done = self._next * self._down // self._up - self._half + 1 - self._first
        if done > 0:
            self._held, self._first = self._held[done:], self._first + done
        return np.clip(np.rint(made), -32_768, 32_767).astype("<i2")


class StreamResampler(BaseAudioResampler):
    """A `Resampling` where pipecat wants one of its own; it begins anew when a rate changes."""

    def __init__(self) -> None:
        self._stream: Resampling | None = None

    def add(self, pcm: Pcm, in_rate: int, out_rate: int) -> Pcm:
        if in_rate == out_rate:
            return pcm
        if self._stream is None or self._stream.rates != (in_rate, out_rate):
            self._stream = Resampling(in_rate, out_rate)
        return self._stream.add(pcm)

    async def resample(self, audio: bytes, in_rate: int, out_rate: int) -> bytes:
        return self.add(np.frombuffer(audio, "<i2"), in_rate, out_rate).tobytes()

    async def flush(self) -> bytes:
        return b"" if self._stream is None else self._stream.finish().tobytes()

    async def reset(self) -> None:
        self._stream = None
