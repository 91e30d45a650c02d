"""A microphone for one who reads lines: hears a line until it is over, and plays it back."""

import queue
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turngap.caller.stream import RATE
from turngap.core.audio import Pcm, SpeechEnd, SpeechStart, rms_dbfs
from turngap.core.errors import AgentError
from turngap.live.handset import AdaptiveDetector, Decimator, Handset, Noise
from turngap.live.sound import BLOCK, DEVICE_RATE, Block, Device

# A line is over after this much silence: people pause inside a sentence for less.
SILENCE_MS = 1000.0
# A press of a key lasts less, and the shortest words ("yes") last longer.
WORD_MS = 120.0
# Whoever has not begun by then will not; nobody reads one line for longer than a minute.
BEGIN_MS = 10_000.0
LONGEST_MS = 60_000.0
# A device hands over a block every 10 ms. After this long without one it has gone.
GONE_S = 5.0
# While nobody listens, this much is kept: enough to know the room.
KEPT_BLOCKS = 300
METER_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class Take:
    """What was heard of one line: mono at 16 kHz, from when it was asked for to its last silence.

    Attributes:
        lost: whether the device lost audio meanwhile.
        spoken: whether anything louder than the room was heard.
    """

    pcm: Pcm
    lost: bool
    spoken: bool


class Microphone:
    """A sound device as a source of takes. Use it as a context manager.

    Args:
        device: microphone and loudspeaker, not yet started.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._blocks: queue.Queue[Block] = queue.Queue()
        self._handset = Handset(self._hand_over)
        self._listening = False
        self._detector = AdaptiveDetector()
        self._seen = 0

    def __enter__(self) -> "Microphone":
        self._device.start(self._handset.exchange)
        return self

    def __exit__(self, *_: object) -> None:
        self._device.stop()

    def take(self, meter: Callable[[float], None]) -> Take:
        """Hear one line from now on. Call `meter` with the level in dBFS, ten times a second.

        Raises:
            AgentError: the device hands over nothing any more.
        """
        self._drain()
        self._listening = True
        try:
            return self._take(meter)
        finally:
            self._listening = False

    def play(self, pcm: Pcm) -> None:
        """Play a take, and return when it has sounded."""
        self._drain()
        self._handset.playout.add(pcm, RATE)
        self._listening = True
        try:
            for _ in range(len(pcm) * DEVICE_RATE // RATE // BLOCK + 1):
                self._feed(self._next())
        finally:
            self._listening = False

    def _drain(self) -> None:
        """Take what was heard of the room while nobody listened."""
        while not self._blocks.empty():
            self._feed(self._blocks.get())

    def _take(self, meter: Callable[[float], None]) -> Take:
        decimator, heard = Decimator(), list[Pcm]()
        lost, begun = False, self._seen
        since: int | None = None  # where the sound began that may be the voice
        ended: int | None = None
        while True:
            block = self._next()
            lost |= block.glitch
            heard.append(decimator.feed(block.mic))
            if len(heard) % METER_BLOCKS == 0:
                meter(rms_dbfs(np.concatenate(heard[-METER_BLOCKS:])))
            for event in self._feed(block):
                match event:
                    case SpeechStart(sample):
                        since = sample
                    case SpeechEnd(sample):
                        if since is not None and _ms(sample - since) >= WORD_MS:
                            ended = sample
                        since = None
                    case Noise():
                        since = None
            so_far_ms = _ms(self._seen - begun)
            quiet_ms = 0.0 if ended is None or since is not None else _ms(self._seen - ended)
            late = ended is None and since is None and so_far_ms >= BEGIN_MS
            if quiet_ms >= SILENCE_MS or late or so_far_ms >= LONGEST_MS:
                return Take(np.concatenate(heard), lost, not late)

    def _feed(self, block: Block) -> list[SpeechStart | SpeechEnd | Noise]:
        self._seen += len(block.mic)
        return self._detector.feed(block.mic)

    def _hand_over(self, block: Block) -> None:
        self._blocks.put(block)
        if not self._listening and self._blocks.qsize() > KEPT_BLOCKS:
            self._blocks.get()

    def _next(self) -> Block:
        try:
            return self._blocks.get(timeout=GONE_S)
        except queue.Empty:
            raise AgentError(
                "audio.gone",
                f"the sound device has handed over nothing for {GONE_S:.0f} s",
                hint="is it still plugged in? `turngap record --list-devices` lists what there is",
            ) from None


def _ms(samples: int) -> float:
    return samples * 1000 / DEVICE_RATE
