"""A sound device that a test plays, in real time or in virtual time."""

import asyncio
import threading

import numpy as np

from turngap.clocks import MonotonicClock
from turngap.core.audio import LINE_FLOOR_DBFS, Pcm, audible_onset, dbfs_to_amplitude
from turngap.core.clock import NS_PER_S
from turngap.live.sound import BLOCK, DEVICE_RATE, Block, Exchange
from turngap.testing import LoopClock

ROUND_TRIP_MS = 30.0


def room(until_ms: float) -> Pcm:
    """A microphone in a quiet room."""
    n = round(DEVICE_RATE * until_ms / 1000)
    noise = np.random.default_rng(3).standard_normal(n) * dbfs_to_amplitude(LINE_FLOOR_DBFS)
    return np.rint(noise).astype(np.int16)


class PlayedDevice:
    """Its microphone is `mic`; what it plays is kept.

    Attributes:
        late_ms: how late each block was swapped, for a machine that could not keep up.
    """

    def __init__(self, mic: Pcm, *, glitch_at: int | None = None) -> None:
        self.mic = mic
        self.played: list[Pcm] = []
        self.late_ms: list[float] = []
        self._glitch_at = glitch_at
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, exchange: Exchange) -> None:
        self._thread = threading.Thread(target=self._run, args=(exchange,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, exchange: Exchange) -> None:
        clock = MonotonicClock()
        begun_ns = clock.now_ns()
        for number in range(len(self.mic) // BLOCK):
            due_ns = begun_ns + (number + 1) * BLOCK * NS_PER_S // DEVICE_RATE
            if self._stopping.wait(max(0, due_ns - clock.now_ns()) / NS_PER_S):
                return
            self.late_ms.append((clock.now_ns() - due_ns) / 1e6)
            self._swap(exchange, number)

    def _swap(self, exchange: Exchange, number: int) -> None:
        first = number * BLOCK
        adc_ns = first * NS_PER_S // DEVICE_RATE
        dac_ns = adc_ns + round(ROUND_TRIP_MS * 1e6)
        mic = self.mic[first : first + BLOCK]
        self.played.append(exchange(Block(mic, adc_ns, dac_ns, number == self._glitch_at)))

    @property
    def now_ms(self) -> float:
        """What the microphone has heard of its audio."""
        return len(self.played) * BLOCK * 1000 / DEVICE_RATE

    def ear(self) -> Pcm:
        """What was played; sample k sounded ROUND_TRIP_MS after the microphone's sample k."""
        return np.concatenate([np.empty(0, np.int16), *self.played])

    def onset_ms(self, after_ms: float = 0) -> float | None:
        """When the first audible sample after an instant sounded, by the device's own account."""
        first = max(0, round((after_ms - ROUND_TRIP_MS) * DEVICE_RATE / 1000))
        onset = audible_onset(self.ear()[first:], DEVICE_RATE)
        return None if onset is None else (first + onset) * 1000 / DEVICE_RATE + ROUND_TRIP_MS


class VirtualDevice(PlayedDevice):
    """The same in virtual time: no block is ever late."""

    def start(self, exchange: Exchange) -> None:
        self._task = asyncio.create_task(self._play(exchange))

    def stop(self) -> None:
        self._task.cancel()

    async def _play(self, exchange: Exchange) -> None:
        clock = LoopClock()
        begun_ns = clock.now_ns()
        for number in range(len(self.mic) // BLOCK):
            await clock.sleep_until_ns(begun_ns + (number + 1) * BLOCK * NS_PER_S // DEVICE_RATE)
            self._swap(exchange, number)
