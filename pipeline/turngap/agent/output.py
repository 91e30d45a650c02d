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


class YieldingOutput(FastAPIWebsocketOutputTransport):
    """Writes nothing while the floor is withheld; an interruption drops what waits for it.

    pipecat paces its chunks: two at once, then in real time. So what the caller has and has not
    played when the voice is stopped is at most two chunks.
    """

    def __init__(self, *args: object, floor: Floor, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportArgumentType]
        self._floor = floor
        self._interruptions = 0

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """As pipecat's; an interruption ends what was withheld."""
        if isinstance(frame, InterruptionFrame):
            self._interruptions += 1
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


class YieldingTransport(FastAPIWebsocketTransport):
    """pipecat's WebSocket transport with that output."""

    def __init__(self, socket: WebSocket, params: FastAPIWebsocketParams, floor: Floor) -> None:
        super().__init__(socket, params)
        self._output = YieldingOutput(
            self, self._client, self._params, name=self._output_name, floor=floor
        )
