"""The telephone's two codecs, µ-law and A-law (ITU-T G.711): one byte a sample, at 8 kHz."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turngap.core.audio import Pcm

RATE = 8_000

# What µ-law adds to a 14-bit magnitude, so that every segment begins at a power of two.
_BIAS = 33
# The bits that A-law inverts, so that a quiet line is no row of equal bits.
_EVEN_BITS = 0x55


@dataclass(frozen=True, slots=True, eq=False)
class Law:
    """A way to hold a sample in one byte.

    Attributes:
        name: as people call it.
        code: the byte of each int16 sample, shape (65536,), by the sample as uint16.
        level: the sample of each byte, shape (256,).
    """

    name: str
    code: NDArray[np.uint8]
    level: Pcm

    def encode(self, pcm: Pcm) -> bytes:
        """Return the bytes of int16 samples."""
        return self.code[pcm.view(np.uint16)].tobytes()

    def decode(self, data: bytes) -> Pcm:
        """Return the int16 samples of bytes."""
        return self.level[np.frombuffer(data, np.uint8)]


def _samples() -> NDArray[np.int32]:
    """Return every int16 sample, in the order of its uint16."""
    return np.arange(65_536, dtype=np.uint16).view(np.int16).astype(np.int32)


def _segment(magnitude: NDArray[np.int32], lowest: int) -> NDArray[np.int32]:
    """Return how many doublings of 2 ** `lowest` a magnitude has reached; 0 below the first."""
    return np.maximum(np.frexp(magnitude)[1] - 1 - lowest, 0)


def _mu_law() -> Law:
    sample = _samples()
    magnitude = np.minimum((np.abs(sample) >> 2) + _BIAS, 8191)
    segment = _segment(magnitude, 5)
    step = (magnitude >> (segment + 1)) & 15
    code = ~(((sample < 0) << 7) | (segment << 4) | step) & 255
    byte = ~np.arange(256) & 255
    level = ((((byte & 15) * 2 + _BIAS) << ((byte >> 4) & 7)) - _BIAS) * 4
    return Law("µ-law", code.astype(np.uint8), np.where(byte & 128, -level, level).astype(np.int16))


def _a_law() -> Law:
    sample = _samples()
    magnitude = np.minimum(np.abs(sample) >> 4, 2047)
    segment = _segment(magnitude, 3)
    step = (magnitude >> np.maximum(segment - 1, 0)) & 15
    code = (((sample >= 0) << 7) | (segment << 4) | step) ^ _EVEN_BITS
    byte = np.arange(256) ^ _EVEN_BITS
    exponent, step = (byte >> 4) & 7, byte & 15
    level = ((step * 2 + 1 + 32 * (exponent > 0)) << np.maximum(exponent - 1, 0)) * 8
    return Law("A-law", code.astype(np.uint8), np.where(byte & 128, level, -level).astype(np.int16))


MU_LAW = _mu_law()
A_LAW = _a_law()
