"""Audio as it came, one sample after the other, kept for as long as a recording may need it."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from turngap.caller.ear import Heard
from turngap.core.audio import Pcm
from turngap.core.clock import samples_to_ns


@dataclass(frozen=True, slots=True)
class _Chunk:
    start: int
    pcm: Pcm
    rate: int
    mic_at: int


class Track:
    """A stream counted from its first sample; what is no longer kept reads as silence.

    Attributes:
        total: how many samples have come.
    """

    def __init__(self) -> None:
        self.total = 0
        self._chunks: deque[_Chunk] = deque()

    def append(self, pcm: Pcm, rate: int, mic_at: int = 0) -> None:
        """Add the stream's next samples; `mic_at`: how far the microphone was when they came."""
        self._chunks.append(_Chunk(self.total, pcm, rate, mic_at))
        self.total += len(pcm)

    def read(self, start: int, stop: int) -> Pcm:
        """Samples `start` to `stop`."""
        out = np.zeros(max(0, stop - start), dtype=np.int16)
        for chunk in self._since(start):
            low, high = max(start, chunk.start), min(stop, chunk.start + len(chunk.pcm))
            if low < high:
                out[low - start : high - start] = chunk.pcm[low - chunk.start : high - chunk.start]
        return out

    def played(self, start: int, samples: int, at_ns: int) -> list[Heard]:
        """Samples `start` and on as they sounded from `at_ns`, a piece for each chunk of them."""
        pieces: list[Heard] = []
        for chunk in self._since(start):
            low = max(start, chunk.start)
            high = min(start + samples, chunk.start + len(chunk.pcm))
            if low < high:
                begun_ns = at_ns + samples_to_ns(low - start, chunk.rate)
                pcm = chunk.pcm[low - chunk.start : high - chunk.start]
                pieces.append(Heard(begun_ns, pcm, chunk.rate))
        return pieces

    def as_sent(self, since_mic: int, mic_rate: int) -> list[Heard]:
        """What came after the microphone's sample `since_mic`, as if it sounded when it came."""
        pieces: list[Heard] = []
        free_ns = 0
        for chunk in self._chunks:
            if chunk.mic_at >= since_mic:
                at_ns = max(free_ns, samples_to_ns(chunk.mic_at, mic_rate))
                pieces.append(Heard(at_ns, chunk.pcm, chunk.rate))
                free_ns = at_ns + samples_to_ns(len(chunk.pcm), chunk.rate)
        return pieces

    def _since(self, sample: int) -> list[_Chunk]:
        """The chunks from the one with `sample` on; what is asked for came lately."""
        found: list[_Chunk] = []
        for chunk in reversed(self._chunks):
            if chunk.start + len(chunk.pcm) <= sample:
                break
            found.append(chunk)
        return found[::-1]

    def forget_before(self, sample: int) -> None:
        """Keep no chunk that ends before `sample`."""
        while self._chunks and self._chunks[0].start + len(self._chunks[0].pcm) <= sample:
            self._chunks.popleft()
