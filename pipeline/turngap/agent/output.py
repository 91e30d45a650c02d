"""The agent's voice on the line, which falls silent at once and continues from where it was.

`PromptSender` and `PromptInput` replace private parts of pipecat's transports, because no public
part covers the waits: check them with each version of pipecat (`pyproject.toml` pins it).
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from fastapi import WebSocket
from numpy.typing import NDArray
from pipecat.audio.resamplers.base_audio_resampler import BaseAudioResampler
from pipecat.frames.frames import (
    AggregatedTextFrame,
    Frame,
    InputAudioRawFrame,
    InterruptionFrame,
    OutputAudioRawFrame,
    OutputTransportReadyFrame,
    StartFrame,
    SystemFrame,
    TTSAudioRawFrame,
    TTSTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.transports.base_output import BOT_VAD_STOP_FALLBACK_SECS, BaseOutputTransport
from pipecat.transports.websocket.fastapi import (
    FastAPIWebsocketInputTransport,
    FastAPIWebsocketOutputTransport,
    FastAPIWebsocketParams,
    FastAPIWebsocketTransport,
)
from pipecat.utils.text.base_text_aggregator import TextType

from turngap.backends import Floor
from turngap.clocks import MonotonicClock
from turngap.core.audio import Pcm
from turngap.core.clock import Clock, ms_to_ns, samples_to_ns
from turngap.core.voice import LETTER_MS, letters, words_heard

# pipecat resamples a stream with soxr, which holds back 40 to 168 ms (22,050 to 24,000 and to 8,000
# Hz, by quality): that would be part of every turn gap. Its quickest quality holds nothing back,
# but has no filter, and folds everything above 4 kHz into a telephone's band. Here at most 2 ms are
# held back.

# Crossings of zero on either side of the kernel's middle: 2 ms at 8 kHz, and the band that is lost
# to the filter's slope begins at 3.1 kHz there, where a telephone's ends.
CROSSINGS = 16
# The kernel's window, and where its slope is half way, in parts of the lower rate: 60 dB are gone
# at half of that rate.
_KAISER_BETA = 5.65
_CUTOFF = 0.444

# What a client may name as its rate: any other could ask for a kernel of 100 MB.
RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)


@lru_cache(maxsize=32)
def _kernels(in_rate: int, out_rate: int) -> NDArray[np.float32]:
    """Return a kernel for each position of an output sample between two input samples.

    The shape is (positions, taps), with as many taps before the position as after it.
    """
    places = out_rate // math.gcd(in_rate, out_rate)
    low = min(in_rate, out_rate) / in_rate
    half = math.ceil(CROSSINGS / low)
    at = np.arange(-half + 1, half + 1) - np.arange(places)[:, None] / places
    inside = np.clip(1 - (at * low / CROSSINGS) ** 2, 0, None)
    window = np.i0(_KAISER_BETA * np.sqrt(inside)) * (inside > 0)
    kernels = np.sinc(2 * _CUTOFF * low * at) * window
    return (kernels / kernels.sum(axis=1, keepdims=True)).astype(np.float32)


class Resampling:
    """One stream converted to another rate; output sample k is at the instant k / `out_rate`."""

    def __init__(self, in_rate: int, out_rate: int) -> None:
        common = math.gcd(in_rate, out_rate)
        self.rates = in_rate, out_rate
        self._up, self._down = out_rate // common, in_rate // common
        self._kernels = _kernels(in_rate, out_rate)
        self._half = self._kernels.shape[1] // 2
        self._begin()

    def _begin(self) -> None:
        # Silence before the first sample. `_first` is the input's number of the first one held.
        self._first = 1 - self._half
        self._held = np.zeros(self._half - 1, np.float32)
        self._next = 0

    def add(self, pcm: Pcm) -> Pcm:
        """Take the next input samples; return the output samples that can no longer change."""
        self._held = np.concatenate((self._held, pcm.astype(np.float32)))
        known = self._first + len(self._held) - self._half
        return self._made(math.ceil(known * self._up / self._down))

    def finish(self) -> Pcm:
        """Return the rest of the stream, and begin another."""
        ends = self._first + len(self._held)
        self._held = np.concatenate((self._held, np.zeros(self._half, np.float32)))
        rest = self._made(math.ceil(ends * self._up / self._down))
        self._begin()
        return rest

    def _made(self, stop: int) -> Pcm:
        at = np.arange(self._next, max(self._next, stop)) * self._down
        self._next = max(self._next, stop)
        before = at // self._up - self._half + 1 - self._first
        taps = self._held[before[:, None] + np.arange(2 * self._half)]
        made = np.einsum("kt,kt->k", taps, self._kernels[at % self._up])
        done = self._next * self._down // self._up - self._half + 1 - self._first
        if done > 0:
            self._held, self._first = self._held[done:], self._first + done
        return np.clip(np.rint(made), -32_768, 32_767).astype("<i2")


class StreamResampler(BaseAudioResampler):
    """A `Resampling` with the interface of pipecat's resamplers; a new rate begins it anew."""

    def __init__(self) -> None:
        self._stream: Resampling | None = None

    def add(self, pcm: Pcm, in_rate: int, out_rate: int) -> Pcm:
        if in_rate == out_rate:
            return pcm
        if self._stream is None or self._stream.rates != (in_rate, out_rate):
            self._stream = Resampling(in_rate, out_rate)
        return self._stream.add(pcm)

    async def resample(self, audio: bytes, in_rate: int, out_rate: int) -> bytes:
        return self.add(np.frombuffer(audio, "<i2"), in_rate, out_rate).tobytes()

    async def flush(self) -> bytes:
        return b"" if self._stream is None else self._stream.finish().tobytes()

    async def reset(self) -> None:
        self._stream = None


class PromptSender(BaseOutputTransport.MediaSender):
    """pipecat's sender, but it takes all waiting frames in one step.

    pipecat's own awaits every frame and every write with `asyncio.wait_for`, which before Python
    3.12 makes a task each time. So the first chunk of a reply, after nine frames that announce it,
    was written 31 rounds of the event loop after it had come; here it is at most 3. The pipeline
    learns that the agent speaks when the first chunk is on its way.

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
        """Write a chunk; give up a caller that reads nothing for as long as pipecat waits."""
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
        """Announce nothing yet, because pipecat calls this before it writes."""


class YieldingOutput(FastAPIWebsocketOutputTransport):
    """An output that is silent while the floor is withheld; an interruption drops waiting audio.

    pipecat paces its chunks: two at once, then in real time, without catching up after a delay.
    With chunks of 10 ms the caller runs dry whenever the agent is late by more than that: 24 holes
    of up to 79 ms in 29 s of speech on two busy cores. So chunks are written until the caller has
    `ahead_ms` of unplayed audio. When the voice is stopped, the caller has at most that much left
    to play, or two chunks.

    While the line is stalled, no audio is written at all: the rest waits here, where an
    interruption drops it. The flush is never behind more than the kernel holds.

    Args:
        ahead_ms: how much unplayed audio the caller may have; 0 for pipecat's pacing.
        room: waits until the line takes audio of so many bytes per ms.
    """

    def __init__(
        self,
        *args: object,
        floor: Floor,
        ahead_ms: float = 0.0,
        clock: Clock | None = None,
        room: Callable[[float], Awaitable[object]] | None = None,
        **kwargs: object,
    ) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportArgumentType]
        self._floor = floor
        self._ahead_ns = ms_to_ns(ahead_ms)
        self._clock = clock or MonotonicClock()
        self._dry_ns = 0
        self._interruptions = 0
        self._room = room

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
                self._dry_ns = 0
                self._floor.give()

    async def _handle_frame(self, frame: Frame) -> None:
        if isinstance(frame, InterruptionFrame):  # in the step in which the queue is emptied
            self._interruptions += 1
        await super()._handle_frame(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        """Write a chunk once the agent may speak; False if it was dropped meanwhile."""
        before = self._interruptions
        if self._floor.withheld:
            await self._floor.wait()
        if self._room is not None:
            await self._room(self.sample_rate * 2 / 1000)
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
    """Give a sender our resampler, because pipecat's holds back 40 ms and more."""
    sender._resampler = StreamResampler()  # pyright: ignore[reportPrivateUsage]


class PromptInput(FastAPIWebsocketInputTransport):
    """pipecat's input, but it pushes the caller's audio in the step in which it arrives.

    pipecat's own takes it through a queue, from which it waits for each packet with
    `asyncio.wait_for`: before Python 3.12 that makes a task for each of fifty packets a second. It
    filters nothing, and has no task that would wait at the empty queue.
    """

    def _create_audio_task(self) -> None:
        """Create no task: pipecat's would take packets from a queue into which nothing is put."""

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
        room: Callable[[float], Awaitable[object]] | None = None,
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
            room=room,
        )


@dataclass
class HeardTextFrame(TTSTextFrame, SystemFrame):
    """The words of a broken-off clause that were heard.

    It is a system frame: it reaches the conversation's memory before the interruption that follows
    it.
    """


@dataclass(slots=True)
class _Clause:
    text: str
    made_ms: float = 0.0
    complete: bool = False
    played_ms: float = 0.0
    remembered: bool = False


class Ledger:
    """A record of which clause is being made, and which is being played. No I/O.

    pipecat adds a clause to the conversation once all of it was written, so an interrupted clause
    is lost although half of it was heard. Here the words that were played before the interruption
    are kept, too: as many as fit the part of the clause's audio that was played. A TTS that times
    its own words is left to pipecat.
    """

    def __init__(self) -> None:
        self._clauses: dict[int, _Clause] = {}
        self._making: _Clause | None = None
        self._playing: _Clause | None = None
        self._letter_ms = LETTER_MS

    def announced(self, segment: int, text: str) -> None:
        self._making = self._clauses[segment] = _Clause(text)

    def made(self, ms: float) -> None:
        if self._making is not None:
            self._making.made_ms += ms

    def finished(self, segment: int) -> None:
        if clause := self._clauses.get(segment):
            clause.complete = True
            if clause.made_ms:
                self._letter_ms = clause.made_ms / max(letters(clause.text), 1.0)

    def begins(self, segment: int) -> None:
        self._playing = self._clauses.get(segment)

    def played(self, ms: float) -> None:
        if self._playing is not None:
            self._playing.played_ms += ms

    def remembered(self, segment: int) -> None:
        if clause := self._clauses.pop(segment, None):
            clause.remembered = True

    def broken_off(self) -> str:
        """Stop. Returns the words that were heard of the clause that was being played."""
        clause, self._playing, self._making = self._playing, None, None
        self._clauses.clear()
        if clause is None or clause.remembered:
            return ""
        whole_ms = clause.made_ms if clause.complete else self._letter_ms * letters(clause.text)
        return words_heard(clause.text, clause.played_ms, max(whole_ms, clause.played_ms))


def _ms(frame: OutputAudioRawFrame) -> float:
    return frame.num_frames * 1000 / frame.sample_rate


def _announced(frame: Frame) -> AggregatedTextFrame | None:
    """Return the frame if it announces a clause to speak."""
    if isinstance(frame, AggregatedTextFrame) and not isinstance(frame, TTSTextFrame):
        return frame if frame.will_be_spoken else None
    return None


class MadeCounter(FrameProcessor):
    """A processor before the output that counts the audio made for each clause."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(enable_direct_mode=True)
        self._ledger = ledger

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction == FrameDirection.DOWNSTREAM:
            if (clause := _announced(frame)) is not None:
                self._ledger.announced(clause.id, clause.text)
            elif isinstance(frame, TTSAudioRawFrame):
                self._ledger.made(_ms(frame))
            elif isinstance(frame, TTSTextFrame) and frame.segment_id is not None:
                self._ledger.finished(frame.segment_id)
        await self.push_frame(frame, direction)


class HeardKeeper(FrameProcessor):
    """A processor after the output, where frames come as they are played.

    It adds the heard part of a reply to the conversation before the interruption gets there.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(enable_direct_mode=True)
        self._ledger = ledger

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if direction == FrameDirection.DOWNSTREAM:
            if (clause := _announced(frame)) is not None:
                self._ledger.begins(clause.id)
            elif isinstance(frame, OutputAudioRawFrame):
                self._ledger.played(_ms(frame))
            elif isinstance(frame, TTSTextFrame) and frame.segment_id is not None:
                self._ledger.remembered(frame.segment_id)
            elif isinstance(frame, InterruptionFrame) and (text := self._ledger.broken_off()):
                await self.push_frame(HeardTextFrame(text, TextType.SENTENCE))
        await self.push_frame(frame, direction)
