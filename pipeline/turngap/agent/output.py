"""The agent's voice on the line, which falls silent where it is told to and goes on from there."""

from fastapi import WebSocket
from pipecat.frames.frames import Frame, InterruptionFrame, OutputAudioRawFrame
from pipecat.processors.frame_processor import FrameDirection
from pipecat.transports.websocket.fastapi import (
    FastAPIWebsocketOutputTransport,
    FastAPIWebsocketParams,
    FastAPIWebsocketTransport,
)

from turngap.backends import Floor
from turngap.clocks import MonotonicClock
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns


class YieldingOutput(FastAPIWebsocketOutputTransport):
    """Writes nothing while the floor is withheld; an interruption drops what waits for it.

    pipecat paces its chunks: two at once, then in real time, never again what it is behind. With
    chunks of 10 ms the caller runs dry whenever the agent is late by more than that: 24 holes of up
    to 79 ms in 29 s of speech on two busy cores. So as much as `ahead_ms` is written at once, and
    whenever the caller has less than that left. What the caller has and has not played when the
    voice is stopped is at most that, or two chunks.

    Args:
        ahead_ms: how far the caller may be ahead; 0: pipecat's pacing.
    """

    def __init__(
        self,
        *args: object,
        floor: Floor,
        ahead_ms: float = 0.0,
        clock: Clock | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportArgumentType]
        self._floor = floor
        self._ahead_ns = ms_to_ns(ahead_ms)
        self._clock = clock or MonotonicClock()
        self._dry_ns = 0
        self._interruptions = 0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """As pipecat's; an interruption ends what was withheld."""
        if isinstance(frame, InterruptionFrame):
            self._interruptions += 1
            self._dry_ns = 0
            self._floor.give()
        await super().process_frame(frame, direction)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Write a chunk once the agent may speak; False where it was not to be heard any more."""
        if self._floor.withheld:
            before = self._interruptions
            await self._floor.wait()
            if self._interruptions != before:
                return False
        return await super().write_audio_frame(frame)

    async def _write_audio_sleep(self) -> None:
        """Wait until the caller has less than that left to play."""
        if not self._ahead_ns:
            await super()._write_audio_sleep()
            return
        chunk_ns = samples_to_ns(self.audio_chunk_size // 2, self.sample_rate)
        self._dry_ns = max(self._dry_ns, self._clock.now_ns()) + chunk_ns
        await self._clock.sleep_until_ns(self._dry_ns + chunk_ns - self._ahead_ns)


class YieldingTransport(FastAPIWebsocketTransport):
    """pipecat's WebSocket transport with that output."""

    def __init__(
        self,
        socket: WebSocket,
        params: FastAPIWebsocketParams,
        floor: Floor,
        *,
        ahead_ms: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(socket, params)
        self._output = YieldingOutput(
            self,
            self._client,
            self._params,
            name=self._output_name,
            floor=floor,
            ahead_ms=ahead_ms,
            clock=clock,
        )
