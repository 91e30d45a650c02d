"""A stock pipecat bot with a tap at its socket and pipecat's own observer; peers.py runs it.

    cd benchmarks
    python -m peer.tapped_bot '{"port": 8765, "delays_ms": [50], "told": "FILE"}'

`told` gets a JSON line for each turn with `truth_ms`, from the last audible sample received to the
first one sent, and another with what `UserBotLatencyObserver` said of it, `observer_ms`. The tap
reads the clock where pipecat reads and writes, so the truth holds what pipecat's loop was late.
"""

import asyncio
import json
import sys
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
from pipecat.frames.frames import Frame, InputAudioRawFrame, OutputAudioRawFrame
from pipecat.observers.user_bot_latency_observer import UserBotLatencyObserver
from pipecat.serializers.protobuf import ProtobufFrameSerializer
from pipecat.workers.runner import WorkerRunner
from versions_bot import RATE, Answers, Speaks, bot, transport_at

from turngap.children import end_with_parent
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm, SpeechDetector, SpeechEnd, SpeechStart, dbfs_to_amplitude
from turngap.core.clock import ns_to_ms, samples_to_ns

CLOCK = MonotonicClock(precise=True)
GAP_MS = 100.0


class Stream:
    """One direction of the line: where speech begins and ends in it, as instants."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._detector = SpeechDetector(rate, gap_ms=GAP_MS)
        self._ends: list[int] = []  # samples in all, after each packet
        self._begin_ns: list[int] = []  # of each packet's first sample

    def feed(self, begin_ns: int, pcm: Pcm) -> list[tuple[SpeechStart | SpeechEnd, int]]:
        """Take a packet whose first sample sounds at `begin_ns`."""
        self._ends.append((self._ends[-1] if self._ends else 0) + len(pcm))
        self._begin_ns.append(begin_ns)
        return [(event, self._instant(event.sample)) for event in self._detector.feed(pcm)]

    def _instant(self, sample: int) -> int:
        packet = bisect_right(self._ends, sample)
        first = self._ends[packet - 1] if packet else 0
        return self._begin_ns[packet] + samples_to_ns(sample - first, self._rate)


class Tap(ProtobufFrameSerializer):
    """Reads along what is received and sent, and writes each turn's gap into a file."""

    def __init__(self, told: Path) -> None:
        super().__init__()
        self._told = told
        self._user: Stream | None = None
        self._agent: Stream | None = None  # of the turn
        self._played_ns = 0  # when all that was sent has been played
        self._user_end_ns: int | None = None
        self.turn = 0

    async def deserialize(self, data: str | bytes) -> Frame | None:
        now_ns = CLOCK.now_ns()
        frame = await super().deserialize(data)
        if isinstance(frame, InputAudioRawFrame):
            pcm = np.frombuffer(frame.audio, np.int16)
            self._user = self._user or Stream(frame.sample_rate)
            # A packet left when its last sample had sounded.
            begin_ns = now_ns - samples_to_ns(len(pcm), frame.sample_rate)
            for event, at_ns in self._user.feed(begin_ns, pcm):
                if isinstance(event, SpeechEnd):
                    self.turn, self._user_end_ns, self._agent = self.turn + 1, at_ns, None
        return frame

    async def serialize(self, frame: Frame) -> str | bytes | None:
        data = await super().serialize(frame)
        if isinstance(frame, OutputAudioRawFrame):
            self._sent(np.frombuffer(frame.audio, np.int16), frame.sample_rate)
        return data

    def _sent(self, pcm: Pcm, rate: int) -> None:
        begin_ns = max(CLOCK.now_ns(), self._played_ns)
        self._played_ns = begin_ns + samples_to_ns(len(pcm), rate)
        self._agent = self._agent or Stream(rate)
        for event, at_ns in self._agent.feed(begin_ns, pcm):
            if isinstance(event, SpeechStart) and self._user_end_ns is not None:
                self.tell(truth_ms=ns_to_ms(at_ns - self._user_end_ns))
                self._user_end_ns = None

    def tell(self, **figure: float) -> None:
        """Write a figure of the turn that is being answered."""
        with self._told.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"turn": self.turn, **figure}) + "\n")


def inaudible(pad_ms: float, dbfs: float | None) -> Pcm:
    """Digital silence, or noise of that level, at the bot's rate."""
    samples = round(pad_ms * RATE / 1000)
    if dbfs is None:
        return np.zeros(samples, np.int16)
    noise = np.random.default_rng(0).standard_normal(samples) * dbfs_to_amplitude(dbfs)
    return np.rint(noise).astype(np.int16)


async def main(
    port: int,
    told: str,
    delays_ms: list[float],
    pad_ms: float = 0.0,
    pad_dbfs: float | None = None,
) -> None:
    """Serve the bot; print a JSON line once it can be reached."""
    tap = Tap(Path(told))
    transport = transport_at(port, tap)
    worker = bot(transport, Answers(*delays_ms), Speaks(inaudible(pad_ms, pad_dbfs)))
    observer = UserBotLatencyObserver()
    worker.add_observer(observer)

    @observer.event_handler("on_latency_measured")
    async def _(_: Any, latency_s: float) -> None:
        tap.tell(observer_ms=latency_s * 1000)

    @transport.event_handler("on_websocket_ready")
    async def _(_: Any) -> None:
        sys.stdout.write(json.dumps({"ready": True, "url": f"ws://127.0.0.1:{port}"}) + "\n")
        sys.stdout.flush()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(main(**json.loads(sys.argv[1])))
