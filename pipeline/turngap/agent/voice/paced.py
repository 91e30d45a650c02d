"""Text to the TTS in the pieces, and at the times, that a `SpeechFeed` asks for."""

import asyncio
from collections.abc import Awaitable, Callable

from pipecat.frames.frames import (
    AggregatedTextFrame,
    EndFrame,
    Frame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor, FrameProcessorSetup

from turngap.agent.voice.feed import SpeechFeed
from turngap.core.clock import NS_PER_MS, Clock


class PacedText(FrameProcessor):
    """Gathers the LLM's tokens into the pieces that a `SpeechFeed` asks for.

    The end of a reply waits until the last of its text was handed over.
    """

    def __init__(self, feed: SpeechFeed, clock: Clock) -> None:
        super().__init__()
        self._feed = feed
        self._clock = clock
        self._stirred = asyncio.Event()
        self._handing_over = asyncio.Lock()
        self._all_handed_over = asyncio.Event()
        self._pacer: asyncio.Task[None] | None = None
        self._changed: Callable[[], Awaitable[None]] = _nothing

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        self._pacer = self.create_task(self._pace())

    async def cleanup(self) -> None:
        await super().cleanup()
        if self._pacer is not None:
            await self.cancel_task(self._pacer)
            self._pacer = None

    def heard_by(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Have `changed` called when text has come or ended."""
        self._changed = changed

    def stir(self) -> None:
        """Look again, as something after the TTS may ask for more text."""
        self._stirred.set()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction != FrameDirection.DOWNSTREAM:
            await self.push_frame(frame, direction)
            return
        if isinstance(frame, LLMTextFrame) and not frame.skip_tts:
            self._feed.text(self._clock.now_ns(), frame.text)
            await self._hand_over()
            await self._changed()
            self.stir()
            return
        if isinstance(frame, InterruptionFrame):
            self._feed.reset()
        elif isinstance(frame, LLMFullResponseStartFrame):
            self._feed.start(self._clock.now_ns())
        elif isinstance(frame, LLMFullResponseEndFrame | EndFrame):
            self._feed.end()
            await self._changed()
            await self._drain()
        await self.push_frame(frame, direction)

    async def _drain(self) -> None:
        self._all_handed_over.clear()
        await self._hand_over()
        if self._feed.waiting:
            self.stir()
            await self._all_handed_over.wait()

    async def _hand_over(self) -> None:
        """Push what the feed gives out, in order, whoever asks for it."""
        async with self._handing_over:
            for piece in self._feed.take(self._clock.now_ns()):
                frame = AggregatedTextFrame(text=piece, text_type="clause", raw_text=piece)
                frame.append_to_context = True
                await self.push_frame(frame)
        if not self._feed.waiting:
            self._all_handed_over.set()

    async def _pace(self) -> None:
        """Hand over text when its time has come, or when something has happened."""
        while True:
            self._stirred.clear()
            due_ns = self._feed.due_ns(self._clock.now_ns())
            if due_ns is None:
                await self._stirred.wait()
            else:
                await self._until(due_ns)
            await self._hand_over()

    async def _until(self, due_ns: int) -> None:
        """Wait for that instant, or until something happens."""
        due = self.create_task(self._wake(due_ns))
        try:
            await self._stirred.wait()
        finally:
            await self.cancel_task(due)

    async def _wake(self, due_ns: int) -> None:
        await self._clock.sleep_until_ns(max(due_ns, self._clock.now_ns() + NS_PER_MS))
        self._stirred.set()


async def _nothing() -> None:
    """Do nothing, as nobody waits for text."""
