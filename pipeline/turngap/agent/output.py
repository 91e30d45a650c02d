"""The agent's voice on the line, which falls silent when told to and goes on from there.

`PromptSender` and `PromptInput` replace private parts of pipecat's transports, as nothing public
lies where the waits are: look at them anew with each version of pipecat (`pyproject.toml` pins it).
"""

import asyncio
from collections.abc import AsyncGenerator

from fastapi import WebSocket
from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportReadyFrame,
    StartFrame,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.transports.base_output import BOT_VAD_STOP_FALLBACK_SECS, BaseOutputTransport
from pipecat.transports.websocket.fastapi import (
    FastAPIWebsocketInputTransport,
    FastAPIWebsocketOutputTransport,
    FastAPIWebsocketParams,
    FastAPIWebsocketTransport,
)

from turngap.agent.resampling import StreamResampler
from turngap.backends import Floor
from turngap.clocks import MonotonicClock
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns


class PromptSender(BaseOutputTransport.MediaSender):
    """pipecat's sender, but it takes all waiting frames in one step.

    pipecat's own awaits every frame and every write with `asyncio.wait_for`, which before Python
    3.12 makes a task each time. So the first chunk of a reply, after nine frames that announce it,
    was written 31 rounds of the event loop after it had come; here it is at most 3. That the agent
    speaks is announced to the whole pipeline when the first chunk is on its way.

    It filters nothing and mixes nothing in.
    """

    _dropped = 0  # how often the queue was dropped

    async def handle_interruptions(self, _: InterruptionFrame) -> None:
        self._dropped += 1
        await super().handle_interruptions(_)

    def _next_frame(self) -> AsyncGenerator[Frame, None]:
        return self._frames()

    async def _frames(self) -> AsyncGenerator[Frame, None]:
        queue = self._audio_queue
        while True:
            try:
                async with asyncio.timeout(BOT_VAD_STOP_FALLBACK_SECS):
                    frame = await queue.get()
            except TimeoutError:
                await self._bot_stopped_speaking()
                continue
            yield frame
            queue.task_done()

    async def _internal_write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Write a chunk; a caller that reads nothing for as long as pipecat waits is given up."""
        if not self._transport.is_usable:
            return False
        patience_s, dropped = self._params.audio_out_write_timeout_secs, self._dropped
        try:
            async with asyncio.timeout(patience_s):
                written = await self._transport.write_audio_frame(frame)
        except TimeoutError as e:
            await self._transport.push_error(
                f"no audio could be written for {patience_s} s: the caller has stopped reading",
                exception=e,
                force_treat_as_permanent=True,
            )
            return False
        if written and dropped == self._dropped:  # not if an interruption came meanwhile
            await super()._handle_bot_speech(frame)
        return written

    async def _handle_bot_speech(self, frame: Frame) -> None:
        """Announce nothing yet, as pipecat calls this before it writes."""


class YieldingOutput(FastAPIWebsocketOutputTransport):
    """Writes nothing while the floor is withheld; an interruption drops what waits.

    pipecat paces its chunks: two at once, then in real time, without catching up after a delay.
    With chunks of 10 ms the caller runs dry whenever the agent is late by more than that: 24 holes
    of up to 79 ms in 29 s of speech on two busy cores. So chunks are written until the caller has
    `ahead_ms` of unplayed audio. When the voice is stopped, the caller has at most that much left
    to play, or two chunks.

    Args:
        ahead_ms: how much unplayed audio the caller may have; 0: pipecat's pacing.
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

    async def set_transport_ready(self, frame: StartFrame) -> None:
        if not self._ahead_ns:
            await super().set_transport_ready(frame)
            _resample_promptly(self._media_senders[None])
            return
        # As pipecat's, with our sender for the one destination.
        sender = self._media_senders[None] = PromptSender(
            self,
            destination=None,
            sample_rate=self.sample_rate,
            audio_chunk_size=self.audio_chunk_size,
            params=self._params,
        )
        _resample_promptly(sender)
        await sender.start(frame)
        await self.push_frame(OutputTransportReadyFrame(), FrameDirection.UPSTREAM)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        # An interruption gives the floor back, but only once pipecat has emptied the queue, which
        # takes some rounds of the event loop. Given the floor sooner, the sender wrote more of what
        # was dropped, and the caller heard it (5 and 10 ms of it, 0.3 and 0.7 s after the agent had
        # fallen silent).
        try:
            await super().process_frame(frame, direction)
        finally:
            if isinstance(frame, InterruptionFrame):
                self._interruptions += 1
                self._dry_ns = 0
                self._floor.give()

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Write a chunk once the agent may speak; False if it was dropped meanwhile."""
        if self._floor.withheld:
            before = self._interruptions
            await self._floor.wait()
            if self._interruptions != before:
                return False
        return await super().write_audio_frame(frame)

    async def _write_audio_sleep(self) -> None:
        """Wait until the caller has less than `ahead_ms` left to play."""
        if not self._ahead_ns:
            await super()._write_audio_sleep()
            return
        chunk_ns = samples_to_ns(self.audio_chunk_size // 2, self.sample_rate)
        self._dry_ns = max(self._dry_ns, self._clock.now_ns()) + chunk_ns
        await self._clock.sleep_until_ns(self._dry_ns + chunk_ns - self._ahead_ns)


def _resample_promptly(sender: BaseOutputTransport.MediaSender) -> None:
    """Give a sender our resampler, as pipecat's holds back 40 ms and more."""
    sender._resampler = StreamResampler()  # pyright: ignore[reportPrivateUsage]


class PromptInput(FastAPIWebsocketInputTransport):
    """pipecat's input, but it pushes the caller's audio in the step in which it comes.

    pipecat's own takes it through a queue, from which it waits for each packet with
    `asyncio.wait_for`: before Python 3.12 that makes a task for each of fifty packets a second. It
    filters nothing, and has no task that would wait at the empty queue.
    """

    def _create_audio_task(self) -> None:
        """Make none: pipecat's would take packets from a queue into which nothing is put."""

    async def push_audio_frame(self, frame: InputAudioRawFrame) -> None:
        if not self._paused and frame.audio:
            await self.push_frame(frame)


class YieldingTransport(FastAPIWebsocketTransport):
    """pipecat's WebSocket transport with a `PromptInput` and a `YieldingOutput`."""

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
        self._input = PromptInput(self, self._client, self._params, name=self._input_name)
        self._output = YieldingOutput(
            self,
            self._client,
            self._params,
            name=self._output_name,
            floor=floor,
            ahead_ms=ahead_ms,
            clock=clock,
        )
