"""When a sample sounded, from when its packet came. Pure."""

from collections import deque

from turngap.core.clock import ms_to_ns, samples_to_ns

# The line's shortest delay is looked for over so many packets (2 s of 20 ms): long enough to meet a
# packet that was not held up, short enough to follow two clocks that drift apart (50 ppm: 0.1 ms).
PACKETS = 100
# What comes later than the line's shortest delay by more was not held up: the caller had paused.
PAUSED_MS = 200.0


class Arrivals:
    """Maps positions in a stream to instants: a sample sounded when the fastest packet would tell.

    A packet is sent once its last sample is there, so a packet that nothing held up arrives when
    that sample sounds.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._offsets: deque[int] = deque(maxlen=PACKETS)
        self._offset_ns = 0

    def arrived(self, now_ns: int, until: int) -> None:
        """The packet that ends at sample `until` has come."""
        offset_ns = now_ns - samples_to_ns(until, self._rate)
        self._offsets.append(offset_ns)
        self._offset_ns = max(min(self._offsets), offset_ns - ms_to_ns(PAUSED_MS))

    def instant_ns(self, sample: int) -> int:
        """When the sample at that position sounded."""
        return self._offset_ns + samples_to_ns(sample, self._rate)
