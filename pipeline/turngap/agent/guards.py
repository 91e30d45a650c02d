"""Bounds around a conversation's STT and TTS: what stalls or does not stop ends and is named.

A service's calls run in its processor's own tasks, so one that does not come back keeps everything
behind it from being handled: a stuck recogniser the VAD's verdicts too, as these go through it. The
LLM is bounded in `LlmSwitch`, through which all its frames go.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    OutputTransportMessageUrgentFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameCallback, FrameDirection, FrameProcessor
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService

from turngap.agent.watch import TRANSCRIPT_MS, Late, Patience, silence, within
from turngap.core.untrusted import MOST_TEXT, printable

T = TypeVar("T")

# A sentence of a neural voice took 6 s at most, on a busy machine without a GPU.
VOICE = Patience(first_ms=8000.0, next_ms=4000.0)
# Of a text of one character there may be 10 s of audio, and a second more for each further one: ten
# times as slow as people speak. A voice that does not stop would fill the memory.
LEAST_VOICE_MS = 10_000.0
VOICE_MS_A_CHAR = 1000.0


def guard_voice(tts: FrameProcessor, late: Late = lambda why: None) -> None:
    """Bound what a TTS makes of each text; `late` is called as a `Watch` does.

    A service that answers over a socket of its own returns at once, and is left to pipecat, which
    ends a reply after 3 s without audio.
    """
    if not isinstance(tts, TTSService):
        return
    run = tts.run_tts

    async def run_tts(text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        made = _Made(text)
        async with aclosing(run(text, context_id)) as frames:
            while True:
                begun = made.ms > 0
                try:
                    frame = await within(
                        VOICE,
                        anext(frames),
                        lambda ms: late(silence("audio", ms, made.so_far)),
                        begun=begun,
                    )
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    most_ms = VOICE.most_ms(begun=begun)
                    await tts.push_error(silence("audio", most_ms, made.so_far))
                    return
                if isinstance(frame, TTSAudioRawFrame):
                    late("")
                    if why := made.wrong_with(frame):
                        await tts.push_error(why)
                        return
                yield frame

    tts.run_tts = run_tts


class _Made:
    """The audio of one text so far."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._most_ms = LEAST_VOICE_MS + VOICE_MS_A_CHAR * len(text)
        self.ms = 0.0

    @property
    def so_far(self) -> str:
        return f"{self.ms / 1000:.1f} s of it" if self.ms else ""

    def wrong_with(self, frame: TTSAudioRawFrame) -> str | None:
        """Say what is wrong with a frame, if anything is."""
        width = 2 * frame.num_channels
        if frame.sample_rate <= 0 or width <= 0 or len(frame.audio) % width:
            shape = f"{len(frame.audio)} bytes, {frame.num_channels} channels"
            return f"what it made is no PCM16: {shape}, {frame.sample_rate} Hz"
        self.ms += len(frame.audio) * 1000 / width / frame.sample_rate
        if self.ms > self._most_ms:
            return f"the audio has no end: {self.ms / 1000:.0f} s for {len(self._text)} characters"
        return None


def guard_ears(
    stt: FrameProcessor, late: Late = lambda why: None, *, most_ms: float = TRANSCRIPT_MS
) -> None:
    """Bound each call of an STT: for a piece of audio, and for what begins and ends an utterance.

    Once it has failed it gets no audio until the next utterance, as each packet of the same one
    would fail anew, fifty times a second. What begins and ends the session is not bounded: a
    service may connect, load a model or wait for its last words there.

    Args:
        stt: the service; any other processor stays as it is.
        late: called as a `Watch` does.
        most_ms: how long a call may take.
    """
    if isinstance(stt, STTService):
        _Ears(stt, late, most_ms)


class _Ears:
    """Takes the place of an STT's methods."""

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
        """Let the agent's messages overtake: one of them tells that this service is stuck."""
        if isinstance(frame, OutputTransportMessageUrgentFrame):
            await self._push(frame, direction)
        else:
            await self._queue(frame, direction, callback)

    async def _bounded(self, call: Awaitable[T]) -> T:
        is_late = False

        def tell(ms: float) -> None:
            nonlocal is_late
            is_late = True
            self._late(silence("result", ms, ""))

        try:
            return await within(self._patience, call, tell, begun=False)
        except TimeoutError:
            is_late = False  # it stays late
            raise
        finally:
            if is_late:
                self._late("")

    async def _give_up(self) -> None:
        await self._fail(silence("result", self._patience.first_ms, ""))

    async def _fail(self, why: str, error: Exception | None = None) -> None:
        if not self._failed:
            self._failed = True
            await self._stt.push_error(why, exception=error)


Reset = Callable[[], Awaitable[None]]


def usable_again(engines: Callable[[], tuple[FrameProcessor, ...]]) -> Reset:
    """Return what gives all engines another chance; to be called as a person's turn begins.

    pipecat gives a service no more work once a server has refused its key, or a voice has been
    silent three times. A server that comes back would never be asked.
    """

    async def again(*_: object) -> None:
        for engine in engines():
            await engine.set_usable(True)

    return again
