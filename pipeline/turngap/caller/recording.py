"""Cut the audio of both sides from a stretch of the line."""

from collections.abc import Sequence

import numpy as np
import soxr

from turngap.caller.ear import Heard
from turngap.caller.stream import UserStream
from turngap.core.audio import Pcm
from turngap.core.clock import ns_to_samples


def user_side(stream: UserStream, window: tuple[int, int]) -> Pcm:
    """Return the user's audio between two instants, at the stream's rate."""
    first = stream.sample_at(window[0])
    return stream.read(max(first, 0), max(stream.sample_at(window[1]) - first, 1))


def agent_side(heard: Sequence[Heard], window: tuple[int, int], rate: int) -> Pcm:
    """Return the agent's audio as heard between two instants, at `rate` and padded with silence."""
    out = np.zeros(max(ns_to_samples(window[1] - window[0], rate), 1), dtype=np.int16)
    for own in {h.rate for h in heard}:
        native = np.zeros(len(out) * own // rate + 1, dtype=np.int16)
        for piece in (h for h in heard if h.rate == own):
            _lay(native, piece, window[0])
        if native.any():
            resampled = native if own == rate else soxr.resample(native, own, rate)
            n = min(len(out), len(resampled))
            out[:n] += resampled[:n]
    return out


def _lay(out: Pcm, piece: Heard, from_ns: int) -> None:
    at = round((piece.start_ns - from_ns) * piece.rate / 1e9)
    low, high = max(at, 0), min(at + len(piece.pcm), len(out))
    if low < high:
        out[low:high] = piece.pcm[low - at : high - at]
