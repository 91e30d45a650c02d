"""Faults of a network, each a pure stage: a packet's instant in, its arrival out, or its loss.

They are on the way of single packets. Over TCP, a lost packet is sent again, and what follows it
waits: `turngap.caller.line.leg.TcpLeg` turns losses into stalls and bursts.
"""

from bisect import bisect_right
from collections.abc import Sequence
from random import Random
from typing import Protocol

from turngap.core.clock import NS_PER_S, ms_to_ns


class Fault(Protocol):
    """A fault on the way of packets, which are given in the order of their instants."""

    def carry(self, at_ns: int, size: int) -> int | None:
        """Return when a packet of `size` bytes arrives that is sent at `at_ns`; None if lost."""
        ...


class Delay:
    """A constant delay."""

    def __init__(self, ms: float) -> None:
        self._ns = ms_to_ns(ms)

    def carry(self, at_ns: int, size: int) -> int:
        return at_ns + self._ns


class Jitter:
    """A further delay of each packet, from 0 to `ms` with equal chances; packets keep their order.

    This is G.1050's peak-to-peak jitter.
    """

    def __init__(self, ms: float, random: Random) -> None:
        self._ms = ms
        self._random = random
        self._last_ns = 0

    def carry(self, at_ns: int, size: int) -> int:
        self._last_ns = max(self._last_ns, at_ns + ms_to_ns(self._random.uniform(0, self._ms)))
        return self._last_ns


class Loss:
    """Losses by a Gilbert–Elliott chain: good times, and bad times in which each packet is lost.

    The chain runs in time and not by packets, as a radio's fades do, and depends on the seed alone:
    a retransmission half a second later meets another state, and two agents meet the same fades.

    Args:
        share: the share of the time that is bad.
        burst_ms: the mean length of a bad time; 0: each packet is lost by itself.
    """

    def __init__(self, share: float, burst_ms: float, random: Random, begins_ns: int = 0) -> None:
        self._share = share
        self._bad_ns = burst_ms * 1e6
        self._random = random
        self._changes = [float(begins_ns)]  # to good, to bad, to good …
        self._begins_bad = random.random() < share

    def carry(self, at_ns: int, size: int) -> int | None:
        if not self._bad_ns:
            return None if self._random.random() < self._share else at_ns
        return None if self._is_bad(at_ns) else at_ns

    def _is_bad(self, at_ns: int) -> bool:
        while self._changes[-1] <= at_ns:
            bad = self._begins_bad == (len(self._changes) % 2 == 1)
            mean_ns = self._bad_ns if bad else self._bad_ns * (1 - self._share) / self._share
            self._changes.append(self._changes[-1] + self._random.expovariate(1 / mean_ns))
        place = bisect_right(self._changes, at_ns)
        return self._begins_bad == (place % 2 == 1)


class Rate:
    """A link of limited bandwidth behind a bounded queue; a packet that finds it full is lost."""

    def __init__(self, kbit: float, queue_ms: float) -> None:
        self._ns_per_byte = 8 * NS_PER_S / (kbit * 1000)
        self._queue_ns = ms_to_ns(queue_ms)
        self._free_ns = 0

    def carry(self, at_ns: int, size: int) -> int | None:
        if self._free_ns - at_ns > self._queue_ns:
            return None
        self._free_ns = max(self._free_ns, at_ns) + round(size * self._ns_per_byte)
        return self._free_ns


class Outage:
    """A link that fails regularly: what is sent meanwhile is lost."""

    def __init__(self, ms: float, every_s: float, random: Random, begins_ns: int = 0) -> None:
        self._ns, self._every_ns = ms_to_ns(ms), round(every_s * NS_PER_S)
        self._first_ns = begins_ns + round(random.uniform(0, self._every_ns))

    def carry(self, at_ns: int, size: int) -> int | None:
        since_ns = at_ns - self._first_ns
        return None if since_ns >= 0 and since_ns % self._every_ns < self._ns else at_ns


class HalfOpen:
    """A peer that is gone without a word: from an instant on, everything is lost."""

    def __init__(self, from_ns: int) -> None:
        self._from_ns = from_ns

    def carry(self, at_ns: int, size: int) -> int | None:
        return at_ns if at_ns < self._from_ns else None


class Path:
    """Faults in a row, as one."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = tuple(faults)

    def carry(self, at_ns: int, size: int) -> int | None:
        arrives_ns: int | None = at_ns
        for fault in self._faults:
            if arrives_ns is None:
                return None
            arrives_ns = fault.carry(arrives_ns, size)
        return arrives_ns


class Coalescing:
    """A hop that collects bytes for a while and passes them on at once; it loses nothing."""

    def __init__(self, ms: float) -> None:
        self._ns = ms_to_ns(ms)
        self._passes_ns = -1

    def hold(self, at_ns: int) -> int:
        """Return when bytes that arrive at `at_ns` are passed on."""
        if at_ns > self._passes_ns:
            self._passes_ns = at_ns + self._ns
        return self._passes_ns
