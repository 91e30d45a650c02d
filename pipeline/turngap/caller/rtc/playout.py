"""Playout buffers: how much later than it arrives a client plays a packet.

A real client waits before it plays, so that jitter makes no holes. The ear does not; it states the
gap at arrival, and behind one of these buffers next to it.
"""

from collections import deque
from itertools import accumulate
from typing import Protocol

from turngap.core.clock import ms_to_ns

# NetEq's rule, as in WebRTC's DelayManager and UnderrunOptimizer: the target is a quantile of the
# worst delay in each half second, relative to the fastest packet of two seconds, in a histogram
# that forgets.
INTERVAL_MS = 500
BUCKET_MS = 20
BUCKETS = 100
QUANTILE = 0.95
FORGET = 0.983
# Playout begins with the first packet. NetEq's first target is 80 ms, but it is lowered before
# playout, which is stretched by a few milliseconds at a time, has come near it.
START_MS = 20.0
START_WEIGHT = 2.0
# As in its DecisionLogic, playout is hastened only once it is behind the target by the longest
# delay of two seconds, in ticks, and this much more.
TICK_MS = 10
SLACK_MS = 20
HISTORY_NS = ms_to_ns(2000)


class PlayoutBuffer(Protocol):
    """A model of a client's playout buffer; `delay_ms` is its length now."""

    delay_ms: float

    def behind_ns(self, arrived_ns: int, jitter_ns: int) -> int:
        """Return how much later than at its arrival a packet is played.

        `jitter_ns` is how late it came, compared with the fastest of the last two seconds. 0: the
        buffer ran dry, so that it is played at once.
        """
        ...


class FixedBuffer:
    """A buffer of one length."""

    def __init__(self, ms: float) -> None:
        self.delay_ms = ms

    def behind_ns(self, arrived_ns: int, jitter_ns: int) -> int:
        return max(0, ms_to_ns(self.delay_ms) - jitter_ns)


class AdaptiveBuffer:
    """A buffer that follows the delays of the packets before, by NetEq's rule.

    It is moved at once, and not by a few milliseconds at a time; reordering changes nothing in it.
    Between the target and the bound from which playout is hastened, it stays as it is.
    """

    def __init__(self) -> None:
        self._weights = [0.0] * BUCKETS
        self._intervals = 0
        self._worst_ns = 0  # of the interval that began at `_since_ns`
        self._since_ns: int | None = None
        # Arrivals and delays of the latest packets, ever smaller ones after the longest.
        self._longest: deque[tuple[int, int]] = deque()
        self._target_ms = self.delay_ms = START_MS

    def behind_ns(self, arrived_ns: int, jitter_ns: int) -> int:
        if self._since_ns is None:
            self._since_ns = arrived_ns
        elif arrived_ns - self._since_ns > ms_to_ns(INTERVAL_MS):
            self._learn(self._worst_ns)
            self._since_ns, self._worst_ns = arrived_ns, 0
        self._worst_ns = max(self._worst_ns, jitter_ns)
        while self._longest and self._longest[-1][1] <= jitter_ns:
            self._longest.pop()
        self._longest.append((arrived_ns, jitter_ns))
        while self._longest[0][0] < arrived_ns - HISTORY_NS:
            self._longest.popleft()
        ticks = -(-self._longest[0][1] // ms_to_ns(TICK_MS))
        most_ms = self._target_ms + ticks * TICK_MS + SLACK_MS
        self.delay_ms = min(max(self.delay_ms, self._target_ms), most_ms)
        return max(0, ms_to_ns(self.delay_ms) - jitter_ns)

    def _learn(self, delay_ns: int) -> None:
        bucket = min(delay_ns // ms_to_ns(BUCKET_MS), BUCKETS - 1)
        self._intervals += 1
        # The forgetting begins fast and slows down to `FORGET`.
        forget = max(0.0, min(FORGET, 1 - START_WEIGHT / (self._intervals + 1)))
        self._weights = [weight * forget for weight in self._weights]
        self._weights[bucket] += 1 - forget
        below, total = accumulate(self._weights), sum(self._weights)
        within = next(i for i, weight in enumerate(below) if weight >= QUANTILE * total)
        self._target_ms = float((within + 1) * BUCKET_MS)


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
