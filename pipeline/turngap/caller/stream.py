"""The caller's microphone: an endless stream that holds the recordings and is sent on schedule."""

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from turngap.clocks import MonotonicClock, pace
from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, dbfs_to_amplitude
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns

RATE = 16_000
PACKET_MS = 20

# Recordings begin on this grid of the stream, so that an agent whose VAD cuts the stream into 32 ms
# windows sees the same windows in every run: the same WAV was found to endpoint differently
# depending on where it fell on that grid. It is the least multiple of a window and a packet.
GRID_MS = 160

# The lag probe wakes up this often, and misses at most this much of a hold-up.
BEAT_MS = 5.0
# Its beats lie half a beat after the packets, so that none falls on a packet's instant, when the
# sender has work to do. So the probe adds nothing to a gap: calibrated with real-time scheduling
# (n=40 each), the median error was 0.26 ms with it and 0.29 without.
OFF_PACKETS_MS = BEAT_MS / 2
# The probe remembers at least this many beats, those of an hour: no turn is longer.
MOST_BEATS = 720_000


# What has to be awaited until something is done; None: it is done already.
Rest = Coroutine[Any, Any, None] | None


@dataclass(frozen=True, slots=True)
class _Placed:
    start: int
    pcm: Pcm


def line_noise(rate: int = RATE, seed: int = 0) -> Pcm:
    """Build one grid length of white noise at LINE_FLOOR_DBFS, the same in every run."""
    drawn = np.random.default_rng(seed).standard_normal(rate * GRID_MS // 1000)
    return np.rint(drawn * dbfs_to_amplitude(LINE_FLOOR_DBFS)).astype(np.int16)


class UserStream:
    """The user's side of the line. Sample 0 sounds at `t0_ns`; `packet`, `grid` count samples."""

    def __init__(self, t0_ns: int, rate: int = RATE) -> None:
        self.t0_ns = t0_ns
        self.rate = rate
        self.packet = rate * PACKET_MS // 1000
        self.grid = rate * GRID_MS // 1000
        # Two grid lengths, so that a packet anywhere on the grid is one piece of it.
        self._noise = np.tile(line_noise(rate), 2)
        self._placed: list[_Placed] = []
        self._placed_to = 0

    def place(self, pcm: Pcm, not_before: int, *, phase: int = 0) -> int:
        """Put a recording into the stream, on the grid plus `phase` samples, and return its start.

        Packets are read one ahead, so `not_before` must lie after the packet that is being sent.
        """
        start = -(-max(not_before - phase, 0) // self.grid) * self.grid + phase
        self._placed.append(_Placed(start, pcm))
        self._placed_to = max(self._placed_to, start + len(pcm))
        return start

    def read(self, start: int, length: int) -> Pcm:
        """Return samples `start` to `start + length` as they were or will be sent."""
        at = start % self.grid
        noise = self._noise[at : at + self.grid]
        out = noise[:length].copy() if length <= self.grid else np.resize(noise, length)
        for clip in self._placed if start < self._placed_to else ():
            low = max(start, clip.start)
            high = min(start + length, clip.start + len(clip.pcm))
            if low < high:
                out[low - start : high - start] = clip.pcm[low - clip.start : high - clip.start]
        return out

    def instant_ns(self, sample: int) -> int:
        return self.t0_ns + samples_to_ns(sample, self.rate)

    def samples(self, ms: float) -> int:
        """Return the number of samples in this many milliseconds, rounded."""
        return round(ms * self.rate / 1000)

    def sample_at(self, instant_ns: int) -> int:
        """Return the sample that sounds at `instant_ns`, rounded up."""
        return -(-(instant_ns - self.t0_ns) * self.rate // 1_000_000_000)


@dataclass(slots=True)
class Sender:
    """Sender of a `UserStream` in packets, each when its last sample has sounded.

    Attributes:
        prepare: makes of a packet's samples what is sent, before the packet is due.
        lead: how many samples ahead the stream is read, to make up for an encoder's delay; less
            than a packet.
        late_ns: for each packet, the time from its deadline until it was handed to the socket.
    """

    stream: UserStream
    clock: Clock
    send: Callable[[Any], Rest]
    prepare: Callable[[Pcm], Any] = lambda pcm: pcm
    lead: int = 0
    late_ns: list[int] = field(default_factory=list[int])

    @property
    def next_sample(self) -> int:
        """Return the first sample not yet sent; its packet may already be on its way."""
        return len(self.late_ns) * self.stream.packet

    async def run(self, on_tick: Callable[[int], Rest]) -> None:
        """Send until cancelled, and call `on_tick(now_ns)` after each packet.

        No task is woken for a packet if `send` and `on_tick` leave nothing to await.
        """
        while True:
            packets = _Packets(self, on_tick)
            try:
                await pace(self.clock, packets.deadline_ns, packets.send_next)
            except asyncio.CancelledError:
                packets.give_up()
                raise
            await packets.finish()

    def lateness_ns(self, from_sample: int, to_sample: int) -> list[int]:
        length = self.stream.packet
        return self.late_ns[from_sample // length : to_sample // length + 1]


class _Packets:
    """The packets of a `Sender` up to the first that needs waiting."""

    def __init__(self, sender: Sender, on_tick: Callable[[int], Rest]) -> None:
        self._sender = sender
        self._on_tick = on_tick
        self._sending: Rest = None
        self._ticking: Rest = None
        self._prepare()

    def _prepare(self) -> int:
        stream, first = self._sender.stream, self._sender.next_sample
        self._packet = self._sender.prepare(stream.read(first + self._sender.lead, stream.packet))
        self.deadline_ns = stream.instant_ns(first + stream.packet)
        return self.deadline_ns

    def send_next(self) -> int | None:
        """Send the packet that is due; return when the next is due, or None to call `finish`."""
        sender = self._sender
        sender.late_ns.append(sender.clock.now_ns() - self.deadline_ns)
        self._sending = sender.send(self._packet)
        if self._sending is None:
            self._ticking = self._on_tick(sender.clock.now_ns())
            if self._ticking is None:
                return self._prepare()
        return None

    async def finish(self) -> None:
        """Wait for the rest of the last packet."""
        if self._sending is not None:
            await self._sending
            self._ticking = self._on_tick(self._sender.clock.now_ns())
        if self._ticking is not None:
            await self._ticking

    def give_up(self) -> None:
        """Stop waiting."""
        for rest in (self._sending, self._ticking):
            if rest is not None:
                rest.close()


class LagProbe:
    """Probe of how late the caller's event loop runs: messages that arrive in a hold-up read late.

    It wakes at absolute deadlines and records how late each wake-up was. All tasks that `run` the
    probe share its beats; it beats while any of them does. `loop_probe` returns the probe of the
    event loop.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._due_ns, self._woken_ns = array("q"), array("q")
        self._users = 0
        self._beating: asyncio.Task[None] | None = None

    async def run(self, from_ns: int) -> None:
        """Beat until cancelled, between the packets that are sent from `from_ns` on.

        If it already beats for another sender, that sender's packets decide when the beats are.
        """
        self._users += 1
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat(from_ns), name="turngap-beat")
        try:
            await asyncio.shield(self._beating)
        finally:
            self._users -= 1
            if not self._users:
                self._beating.cancel()
                self._beating = None

    async def _beat(self, from_ns: int) -> None:
        due_ns = from_ns + ms_to_ns(OFF_PACKETS_MS)
        while True:
            due_ns += ms_to_ns(BEAT_MS)
            await self._clock.sleep_until_ns(due_ns)
            now_ns = self._clock.now_ns()
            self._due_ns.append(due_ns)
            self._woken_ns.append(now_ns)
            if len(self._due_ns) > 2 * MOST_BEATS:
                del self._due_ns[:MOST_BEATS], self._woken_ns[:MOST_BEATS]
            if now_ns - due_ns > ms_to_ns(BEAT_MS):
                due_ns = now_ns  # skip the beats that a hold-up swallowed

    def worst_ns(self, from_ns: int, to_ns: int) -> int | None:
        """Return the longest hold-up in a stretch of time; None if no beat was due in it."""
        beats = range(bisect_left(self._woken_ns, from_ns), bisect_right(self._due_ns, to_ns))
        return max((self._woken_ns[i] - self._due_ns[i] for i in beats), default=None)


_loop_probes: WeakKeyDictionary[asyncio.AbstractEventLoop, LagProbe] = WeakKeyDictionary()


def loop_probe() -> LagProbe:
    """Return the running event loop's own probe, by the real clock.

    A probe for each of 100 conversations, at 200 beats a second, would be more work than packets.
    """
    return _loop_probes.setdefault(asyncio.get_running_loop(), LagProbe())
