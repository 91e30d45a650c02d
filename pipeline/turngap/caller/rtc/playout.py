"""Playout buffers: how much later than it arrives a client plays a packet.

A real client waits before it plays, so that jitter makes no holes. The ear does not; it states the
gap at arrival, and behind one of these buffers next to it.
"""

from typing import Protocol

from turngap.core.clock import ms_to_ns

# NetEq's rule, as in WebRTC's DelayManager and UnderrunOptimizer: the target is the quantile of the
# packets' delays, relative to the fastest of two seconds, in a histogram that forgets.
BUCKET_MS = 20
BUCKETS = 100
QUANTILE = 0.95
FORGET = 0.983
START_MS = 80
START_WEIGHT = 2.0
FIXED_MS = (40, 60, 80)


class PlayoutBuffer(Protocol):
    """A model of a client's playout buffer."""

    def behind_ns(self, jitter_ns: int) -> int:
        """Return how much later than at its arrival a packet is played.

        `jitter_ns` is how late it came, compared with the fastest of the last two seconds. 0: the
        buffer ran dry, so that it is played at once.
        """
        ...


class FixedBuffer:
    """A buffer of one length."""

    def __init__(self, ms: float) -> None:
        self._ns = ms_to_ns(ms)

    def behind_ns(self, jitter_ns: int) -> int:
        return max(0, self._ns - jitter_ns)


class AdaptiveBuffer:
    """A buffer that follows the delays of the packets before, by NetEq's rule."""

    def __init__(self) -> None:
        self._weights = [0.0] * BUCKETS
        self._forget = 0.0
        self._seen = 0
        self.target_ms = float(START_MS)

    def behind_ns(self, jitter_ns: int) -> int:
        target_ns = ms_to_ns(self.target_ms)
        self._learn(jitter_ns)
        return max(0, target_ns - jitter_ns)

    def _learn(self, jitter_ns: int) -> None:
        bucket = min(jitter_ns // ms_to_ns(BUCKET_MS), BUCKETS - 1)
        self._seen += 1
        # The forgetting begins fast and slows down to `FORGET`.
        self._forget = max(0.0, min(FORGET, 1 - START_WEIGHT / (self._seen + 1)))
        self._weights = [weight * self._forget for weight in self._weights]
        self._weights[bucket] += 1 - self._forget
        total, below = sum(self._weights), 0.0
        for index, weight in enumerate(self._weights):
            below += weight
            if below >= QUANTILE * total:
                self.target_ms = float((index + 1) * BUCKET_MS)
                return


def buffer_named(name: str) -> PlayoutBuffer:
    """Return the buffer of a name: `adaptive`, or the milliseconds of a fixed one.

    Raises:
        ValueError: there is no such buffer.
    """
    if name == "adaptive":
        return AdaptiveBuffer()
    ms = float(name)
    if not 0 <= ms <= 1000:
        raise ValueError(f"{ms:g} ms is no playout buffer")
    return FixedBuffer(ms)
