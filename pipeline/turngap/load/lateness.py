"""How late a caller sent its packets, over a step of any length."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

# Of how late the caller was: the percentile that is told and judged.
LATE_Q = 0.99
# Packets are counted by how late they were, in steps of so many milliseconds.
PRECISION_MS = 0.1


def counted_ns(late_ns: tuple[int, ...]) -> Counter[int]:
    """How many of a turn's packets were late by how much, in steps of `PRECISION_MS`."""
    return Counter(round(ns / 1e6 / PRECISION_MS) for ns in late_ns)


@dataclass(frozen=True, slots=True)
class CallerLate:
    """How late the packets of a turn that counts were, from the person's start to the onset.

    Attributes:
        packets: how many were late by how much, in steps of `PRECISION_MS`.
    """

    packets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Lateness:
    """All packets of the turns that count: its size does not grow with how many they are."""

    _packets: Counter[int] = field(default_factory=Counter[int])

    def add(self, late: CallerLate) -> None:
        self._packets.update(late.packets)

    @property
    def p99_ms(self) -> float | None:
        """What 99 % of the packets were no later than; None where none was sent."""
        left = (1 - LATE_Q) * self._packets.total()
        for late, packets in sorted(self._packets.items(), reverse=True):
            left -= packets
            if left < 0:
                return round(late * PRECISION_MS, 1)
        return None
