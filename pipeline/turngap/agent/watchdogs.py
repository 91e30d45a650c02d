"""Limits on a conversation's engines: an engine that stalls or does not stop is ended and named.

An engine that stalls must not silence the agent for good, and must be named. So each engine has a
bounded time to its first result and between two results. A turn reports that an engine is late
before the engine is given up, and withdraws the report if the engine continues. The person waits
less long than an engine may take, and has often moved on by then.

A service's calls run in its processor's own tasks, so a call that does not return blocks everything
behind it. A stuck recogniser even blocks the VAD's verdicts, because these go through it.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    ErrorFrame,
    Frame,
    FunctionCallsStartedFrame,
    InterimTranscriptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    LLMThoughtTextFrame,
    OutputTransportMessageUrgentFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameCallback, FrameDirection, FrameProcessor
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService

from turngap.agent.stack import FIRST_TOKEN_MS, STALL_MS, TRANSCRIPT_MS
from turngap.core.clock import Clock, ms_to_ns, ns_to_ms
from turngap.core.untrusted import MOST_TEXT, printable

T = TypeVar("T")

# Why the answer is late, in words; empty: it continues after all.
Late = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """The longest times that an engine may take, ms.

    Attributes:
        first_ms, next_ms: to its first result, and from one result to the next.
        late_first_ms, late_next_ms: the times after which it is called late. A caller gives a turn
            up 6 s after the person's last word, and a reply after 1.5 s of silence
            (`turngap/caller/conversation.py`). By then it should know which engine it waits for.
    """

    first_ms: float
    next_ms: float
    late_first_ms: float = 3000.0
    late_next_ms: float = 1000.0

    def waits_ms(self, *, begun: bool, late: bool) -> float:
        """Return the wait until the engine is called late, or if it is `late`, given up."""
        if late:
            return self.next_ms if begun else self.first_ms
        return self.late_next_ms if begun else self.late_first_ms


LLM_PATIENCE = Patience(FIRST_TOKEN_MS, STALL_MS)
# A sentence of a neural voice took 6 s at most, on a busy machine without a GPU.
VOICE = Patience(first_ms=8000.0, next_ms=4000.0)

# Longer than people listen on a telephone: five minutes of speech. A model that never stops would
# fill the memory, and the voice's queue. As many empty tokens come to nothing either.
MOST_REPLY_CHARS = MOST_REPLY_TOKENS = 5_000
# Of a text of one character there may be 10 s of audio, and a second more for each further one: ten
# times as slow as people speak. A voice that does not stop would fill the memory.
LEAST_VOICE_MS = 10_000.0
VOICE_MS_A_CHAR = 1000.0


def silence(what: str, ms: float, after: str = "") -> str:
    """Describe an engine's silence, and its last result before that."""
    return f"no {what} for {ms / 1000:.3g} s" + (f" after {after}" if after else "")


class ReplyWatch:
    """A watch over an LLM's replies: call `begin`, `saw` and `end`.

    Args:
        give_up: called with the reason when the LLM has stalled or does not stop.
        patience: how long an LLM may be silent.
        late: called with why the answer is late.
        empty: called with the reason when a reply has no text and nothing else says why.
    """

    def __init__(
        self,
        clock: Clock,
        give_up: Callable[[str], Awaitable[None]],
        *,
        patience: Patience = LLM_PATIENCE,
        late: Late = lambda why: None,
        empty: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._clock = clock
        self._patience = patience
        self._give_up, self._tell, self._empty = give_up, late, empty
        self._task: asyncio.Task[None] | None = None
        self._tokens = self._chars = self._thoughts = self._news_ns = 0
        self._late = False
        self._begun = False  # the reply to the latest request
        self._explained = False  # an error, a call or a refusal says why there is no text

    def begin(self) -> None:
        """Note that the LLM was asked: by the person, or with the results of tools."""
        self.end()
        self._tokens = self._chars = self._thoughts = 0
        self._late = self._begun = self._explained = False
        self._news_ns = self._clock.now_ns()
        self._task = asyncio.create_task(self._follow())

    def end(self) -> None:
        """Expect nothing more, because the LLM was stopped."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def saw(self, frame: Frame) -> None:
        """Take a frame that the LLM has pushed."""
        match frame:
            case LLMFullResponseStartFrame():
                self._begun = True
            case LLMTextFrame() if self._task is not None:
                self._tokens += 1
                self._chars += len(frame.text)
                self._goes_on()
                if self._chars > MOST_REPLY_CHARS or self._tokens > MOST_REPLY_TOKENS:
                    self.end()
                    length = f"{self._chars} characters in {self._tokens} tokens"
                    await self._give_up(f"the reply has no end: {length}")
            case LLMThoughtTextFrame() if self._task is not None:
                self._thoughts += 1
            case ErrorFrame() | FunctionCallsStartedFrame() | EagerEndOfTurnCancelFrame():
                self._explained = True
            # A quick tool's results may be there before the request that called it has ended.
            case LLMFullResponseEndFrame() if self._task is not None and self._begun:
                self._goes_on()
                self.end()
                if not self._chars and not self._explained:
                    only = f"nothing but {self._so_far}" if self._thoughts else "empty"
                    self._empty(f"the reply is {only}")
            case _:
                pass

    @property
    def _so_far(self) -> str:
        if self._tokens:
            return f"{self._tokens} token{'s' if self._tokens > 1 else ''}"
        return f"{self._thoughts} pieces of thought" if self._thoughts else ""

    def _goes_on(self) -> None:
        self._news_ns = self._clock.now_ns()
        if self._late:
            self._late = False
            self._tell("")

    async def _follow(self) -> None:
        while True:
            begun, patience = self._tokens > 0, self._patience
            waits_ms = patience.waits_ms(begun=begun, late=self._late)
            due_ns, now_ns = self._news_ns + ms_to_ns(waits_ms), self._clock.now_ns()
            if now_ns < due_ns:
                # The first result makes what is due come sooner.
                at_most_ns = now_ns + ms_to_ns(patience.late_next_ms)
                await self._clock.sleep_until_ns(due_ns if begun else min(due_ns, at_most_ns))
                continue
            why = silence("token", ns_to_ms(now_ns - self._news_ns), self._so_far)
            if self._late:
                self._task = None  # `end` need not cancel what is over
                await self._give_up(why)
                return
            self._late = True
            self._tell(why)


async def within(
    patience: Patience, result: Awaitable[T], late: Callable[[float], None], *, begun: bool
) -> T:
    """Return an engine's result; `late` is called with the ms waited if the result is late.

    Raises:
        TimeoutError: the engine was silent for too long.
        Exception: as awaiting the result does.
    """
    late_ms = patience.waits_ms(begun=begun, late=False)
    # No task for it, as that would cost every result some rounds of the event loop.
    timer = asyncio.get_running_loop().call_later(late_ms / 1000, late, late_ms)
    try:
        async with asyncio.timeout(patience.waits_ms(begun=begun, late=True) / 1000):
            return await result
    finally:
        timer.cancel()


def guard_voice(tts: FrameProcessor, late: Late = lambda why: None) -> None:
    """Limit the time of a TTS for each text; `late` is called as in `ReplyWatch`.

    A service that answers over a socket of its own returns at once. It is left to pipecat, which
    ends a reply after 3 s without audio.
    """
    if not isinstance(tts, TTSService):
        return
    run = tts.run_tts

    async def run_tts(text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        ms, most_ms = 0.0, LEAST_VOICE_MS + VOICE_MS_A_CHAR * len(text)
        async with aclosing(run(text, context_id)) as frames:
            while True:
                begun, so_far = ms > 0, f"{ms / 1000:.1f} s of it" if ms else ""
                on_late = partial(_tell_late, late, so_far)
                try:
                    frame = await within(VOICE, anext(frames), on_late, begun=begun)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    why = silence("audio", VOICE.waits_ms(begun=begun, late=True), so_far)
                    break
                if isinstance(frame, TTSAudioRawFrame):
                    late("")
                    width = 2 * frame.num_channels
                    if frame.sample_rate <= 0 or width <= 0 or len(frame.audio) % width:
                        shape = f"{len(frame.audio)} bytes, {frame.num_channels} channels"
                        why = f"its audio is not PCM16: {shape}, {frame.sample_rate} Hz"
                        break
                    ms += len(frame.audio) * 1000 / width / frame.sample_rate
                    if ms > most_ms:
                        why = f"the audio has no end: {ms / 1000:.0f} s for {len(text)} characters"
                        break
                yield frame
            await tts.push_error(why)

    tts.run_tts = run_tts


def _tell_late(late: Late, so_far: str, ms: float) -> None:
    late(silence("audio", ms, so_far))


def guard_ears(
    stt: FrameProcessor, late: Late = lambda why: None, *, most_ms: float = TRANSCRIPT_MS
) -> None:
    """Limit each call of an STT: for a piece of audio, and at the start and end of an utterance.

    Once it has failed it gets no audio until the next utterance, because each packet of the same
    one would fail again, fifty times a second. The start and end of the session are not limited: a
    service may connect, load a model or wait for its last words there.

    Args:
        stt: the service; any other processor stays as it is.
        late: called as in `ReplyWatch`.
        most_ms: how long a call may take.
    """
    if isinstance(stt, STTService):
        _Ears(stt, late, most_ms)


class _Ears:
    """Guarded versions of an STT's methods."""

    def __init__(self, stt: STTService, late: Late, most_ms: float) -> None:
        self._stt = stt
        self._late = late
        self._patience = Patience(most_ms, most_ms)
        self._failed = False
        self._held: Frame | None = None  # the VAD's verdict that was not passed on yet
        self._run, self._process = stt.run_stt, stt.process_frame
        self._push, self._queue = stt.push_frame, stt.queue_frame
        stt.run_stt, stt.process_frame = self.run_stt, self.process_frame
        stt.push_frame, stt.queue_frame = self.push_frame, self.queue_frame

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        if self._failed:
            return
        try:
            async with aclosing(self._run(audio)) as frames:
                while True:
                    yield await self._bounded(anext(frames))
        except StopAsyncIteration:
            return
        except TimeoutError:
            await self._give_up()
        except Exception as e:
            await self._fail(f"{type(e).__name__}: {e}", e)

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._failed = False
        if not isinstance(frame, VADUserStartedSpeakingFrame | VADUserStoppedSpeakingFrame):
            await self._process(frame, direction)
            return
        self._held = frame
        try:
            await self._bounded(self._process(frame, direction))
        except TimeoutError:
            await self._give_up()
            if self._held is frame:  # turn-taking waits for it
                await self._push(frame, direction)
        finally:
            self._held = None

    async def push_frame(
        self, frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        if frame is self._held:
            self._held = None
        if isinstance(frame, TranscriptionFrame | InterimTranscriptionFrame):
            frame.text = printable(str(frame.text), MOST_TEXT)
        await self._push(frame, direction)

    async def queue_frame(
        self,
        frame: Frame,
        direction: FrameDirection = FrameDirection.DOWNSTREAM,
        callback: FrameCallback | None = None,
    ) -> None:
        """Let the agent's messages overtake: one of them may report that this service is stuck."""
        if isinstance(frame, OutputTransportMessageUrgentFrame):
            await self._push(frame, direction)
        else:
            await self._queue(frame, direction, callback)

    async def _bounded(self, call: Awaitable[T]) -> T:
        late: list[float] = []

        def tell(ms: float) -> None:
            late.append(ms)
            self._late(silence("result", ms))

        try:
            return await within(self._patience, call, tell, begun=False)
        except TimeoutError:
            late.clear()  # it stays late
            raise
        finally:
            if late:
                self._late("")

    async def _give_up(self) -> None:
        await self._fail(silence("result", self._patience.first_ms))

    async def _fail(self, why: str, error: Exception | None = None) -> None:
        if not self._failed:
            self._failed = True
            await self._stt.push_error(why, exception=error)


def usable_again(
    engines: Callable[[], tuple[FrameProcessor, ...]],
) -> Callable[[], Awaitable[None]]:
    """Return a callback that makes all engines usable again at the beginning of a person's turn.

    pipecat gives a service no more work once a server has refused its key, or a voice has been
    silent three times. Without this, a server that comes back would never be asked.
    """

    async def again(*_: object) -> None:
        for engine in engines():
            await engine.set_usable(True)

    return again
