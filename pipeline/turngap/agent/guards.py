"""Bounds around a conversation's STT and TTS: what stalls or does not stop ends and is named.

A service's calls run in its processor's own tasks, so one that does not come back keeps everything
behind it from being handled: a stuck recogniser the VAD's verdicts too, as these go through it. The
LLM is bounded in `LlmSwitch`, through which all its frames go.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from pipecat.frames.frames import (
    Frame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    VADUserStartedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService

from turngap.agent.watch import Late, Patience, next_of, silence
from turngap.core.untrusted import MOST_TEXT, printable

# A sentence of a neural voice took 6 s at most, on a busy machine without a GPU.
VOICE = Patience(first_ms=8000.0, next_ms=4000.0)
# Of a text of one character there may be 10 s of audio, and a second more for each further one: ten
# times as slow as people speak. A voice that does not stop would fill the memory.
LEAST_VOICE_MS = 10_000.0
VOICE_MS_A_CHAR = 1000.0
# A caller waits 6 s for an answer, so a recogniser that needs as long has lost the turn.
EARS_MS = 4000.0


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
                    frame = await next_of(
                        frames,
                        VOICE,
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


def guard_ears(stt: FrameProcessor) -> None:
    """Bound what an STT does with each frame.

    Once it has failed it gets no audio until the next utterance, as each packet of the same one
    would fail anew, fifty times a second.
    """
    if not isinstance(stt, STTService):
        return
    run, process, push = stt.run_stt, stt.process_frame, stt.push_frame
    failed = False

    async def fail(why: str, error: Exception | None = None) -> None:
        nonlocal failed
        if not failed:
            failed = True
            await stt.push_error(why, exception=error)

    async def run_stt(audio: bytes) -> AsyncGenerator[Frame | None, None]:
        if failed:
            return
        try:
            async with aclosing(run(audio)) as frames:
                while True:
                    async with asyncio.timeout(EARS_MS / 1000):
                        frame = await anext(frames)
                    yield frame
        except StopAsyncIteration:
            return
        except TimeoutError:
            await fail(silence("result", EARS_MS, ""))
        except Exception as e:
            await fail(f"{type(e).__name__}: {e}", e)

    async def process_frame(frame: Frame, direction: FrameDirection) -> None:
        nonlocal failed
        if isinstance(frame, VADUserStartedSpeakingFrame):
            failed = False
        if isinstance(frame, InputAudioRawFrame):  # `run_stt` is bounded
            await process(frame, direction)
            return
        try:
            async with asyncio.timeout(EARS_MS / 1000):
                await process(frame, direction)
        except TimeoutError:
            await fail(silence("result", EARS_MS, ""))

    async def push_frame(
        frame: Frame, direction: FrameDirection = FrameDirection.DOWNSTREAM
    ) -> None:
        if isinstance(frame, TranscriptionFrame | InterimTranscriptionFrame):
            frame.text = printable(str(frame.text), MOST_TEXT)
        await push(frame, direction)

    stt.run_stt = run_stt
    stt.process_frame = process_frame
    stt.push_frame = push_frame


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
