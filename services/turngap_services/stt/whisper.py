"""Whisper by faster-whisper, as a pipecat service that reads while the person speaks."""

import asyncio
import time
import weakref
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from faster_whisper import WhisperModel
from faster_whisper.feature_extractor import FeatureExtractor
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    InterimTranscriptionFrame,
    StartFrame,
    TranscriptionFrame,
    VADUserStartedSpeakingFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from pipecat.utils.time import time_now_iso8601

from turngap.backends import COUNTS
from turngap.backends.weights import at_home, folder_of
from turngap.core.audio import FULL_SCALE, Pcm
from turngap.core.clock import Clock, ns_to_ms
from turngap.core.errors import AgentError, InputError
from turngap_services.frames import SpeechPausedFrame
from turngap_services.loading import Loaded, engine_trouble, first_line, place, require_files
from turngap_services.sound import RATE, require_rate
from turngap_services.stt import CONVERT, WhisperSettings, weights_of
from turngap_services.stt.readings import MOST_MS, Reading, Readings, Utterance, doubt

_FILES = ("model.bin", "config.json", "tokenizer.json")
_LESS_MEMORY = "a smaller model (--set stt.model=tiny.en) or stt.compute_type=int8 needs less"

# People speak no faster (English: three words a second, a token and a half each): this bounds the
# cost of a model that repeats itself.
_TOKENS_PER_S = 12
_LEAST_TOKENS, _MOST_TOKENS = 16, 200
# What `fit` reads beyond the samples, and at least: whisper.cpp's users found that a margin (128 of
# the encoder's 1500 positions) is needed. In the shortest windows the model repeats itself most: of
# 25 recordings of people, tiny.en read 4 again with 6 s and none with 10 s, in the same 0.1 s.
_MARGIN_S, _LEAST_S = 2.56, 10.0
# How a reading that repeats itself is read again, before the whole window is.
_NO_LOOP = {"repetition_penalty": 1.1, "no_repeat_ngram_size": 4}
# Length of the warm-up: that of a short turn.
_WARM_UP_S = 3


class FittedModel(WhisperModel):
    """A model whose encoder reads the audio and a little more, not the whole window."""

    def encode(self, features: np.ndarray):
        """Encode `features`, (mels, frames); the padding is all 0, which no sound is."""
        extractor = self.feature_extractor
        filled = int(np.flatnonzero(features.any(axis=0))[-1]) + 1
        wanted = max(filled + _frames(extractor, _MARGIN_S), _frames(extractor, _LEAST_S))
        return super().encode(features[:, : min(wanted, extractor.nb_max_frames)])


def _frames(extractor: FeatureExtractor, seconds: float) -> int:
    return round(seconds * RATE / extractor.hop_length)


class WholeModel(WhisperModel):
    """Its encoder reads the model's own window; faster-whisper pads to 30 s for every model."""

    def encode(self, features: np.ndarray):
        return super().encode(features[:, : self.feature_extractor.nb_max_frames])


@dataclass(frozen=True, slots=True)
class Text:
    """The text that was read.

    Attributes:
        text: empty for no words.
        again: it was read again because of this doubt.
    """

    text: str
    again: str | None = None


class Reader:
    """A loaded model. Any number of threads may ask it; it makes `workers` readings at a time.

    Attributes:
        name: the name in the settings, or the directory's name.
        window_s: how much audio it can read at once.
        takes_s: how long a reading of a short turn takes on this machine.

    Raises:
        InputError: an unknown name, or a language that the model does not know.
        AgentError: it is not there, cannot be downloaded, or cannot be loaded.
    """

    def __init__(self, settings: WhisperSettings) -> None:
        weights = weights_of(settings)
        directory = at_home(settings.model) if weights is None else folder_of(weights)
        self.name = directory.name if Path(settings.model).is_dir() else settings.model
        self._settings = settings
        require_files(directory, _FILES, CONVERT)
        where = place(settings.device, settings.compute_type, "stt")
        # On a card the whole window takes little more than a part of it.
        narrow = "fit" if where.device == "cpu" else "full"
        self._fits = (narrow if settings.window == "auto" else settings.window) == "fit"
        kind = FittedModel if self._fits else WholeModel
        try:
            model = kind(
                str(directory),
                device=where.device,
                compute_type=where.compute_type,
                cpu_threads=settings.threads,
                num_workers=settings.workers,
            )
            marks = ("<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>", "<|transcribe|>")
            if missing := [m for m in marks if model.hf_tokenizer.token_to_id(m) is None]:
                raise ValueError(f"tokenizer.json has no {', '.join(missing)}")
        # Each library has its own exceptions for a bad file, tokenizers a plain Exception.
        except Exception as e:
            what = f"the Whisper model in {directory}"
            raise engine_trouble(e, what, "stt", _LESS_MEMORY) or AgentError(
                "model.damaged",
                f"the Whisper model in {directory} cannot be loaded: {first_line(e)}",
                hint=CONVERT,
            ) from e
        if settings.spoken not in (None, *model.supported_languages):
            raise InputError(
                "model.language",
                f"the Whisper model {self.name} does not know the language {settings.language!r}",
                hint=f"stt.language is one of: {', '.join(sorted(model.supported_languages))}",
            )
        # CTranslate2 4.8 aborts the process if its threads are left to Python's last garbage
        # collection ("terminate called without an active exception"): this comes before.
        self._held = [model]
        weakref.finalize(self, self._held.clear)
        extractor = model.feature_extractor
        self.window_s = extractor.nb_max_frames * extractor.hop_length / RATE
        self.takes_s = self._warm_up()

    def read(self, pcm: Pcm) -> Text:
        """Return the text of the speech in `pcm` (16 kHz, at most `window_s`).

        Blocks, without holding the GIL.

        Raises:
            AgentError: the engine failed.
        """
        sound = pcm.astype(np.float32) / np.float32(FULL_SCALE)
        try:
            text, logprob = self._transcribe(sound)
            why = self._doubt(text, sound, logprob)
            if why is not None:
                # A penalty on repetition takes no longer, but costs words elsewhere.
                text, logprob = self._transcribe(sound, **_NO_LOOP)
                if self._doubt(text, sound, logprob) is not None:
                    # With silence after the words, the encoder reads its whole window.
                    whole = np.zeros(round(self.window_s * RATE), np.float32)
                    whole[: len(sound)] = sound
                    text, _ = self._transcribe(whole)
        except (RuntimeError, MemoryError) as e:
            what = f"a reading of the Whisper model {self.name}"
            raise engine_trouble(e, what, "stt", _LESS_MEMORY) or AgentError(
                "model.failed",
                f"the Whisper model {self.name} failed: {first_line(e)}",
                hint="another model (--set stt.model=NAME) or stt.device=cpu may work",
            ) from e
        return Text(text, why)

    def _doubt(self, text: str, sound: np.ndarray, logprob: float) -> str | None:
        return doubt(text, len(sound) / RATE, logprob) if self._fits else None

    def _transcribe(self, sound: np.ndarray, **more: Any) -> tuple[str, float]:
        """Return the text, and the mean log probability of its tokens."""
        settings = self._settings
        most = round(_TOKENS_PER_S * len(sound) / RATE) + _LEAST_TOKENS
        segments, _ = self._held[0].transcribe(
            sound,
            language=settings.spoken,
            beam_size=settings.beam_size,
            # One pass: falling back to higher temperatures takes up to five more.
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=True,
            max_new_tokens=min(most, _MOST_TOKENS),
            initial_prompt=settings.initial_prompt,
            hotwords=settings.hotwords,
            no_speech_threshold=None,
            **more,
        )
        said = [each for each in segments if each.no_speech_prob < settings.no_speech]
        text = "".join(each.text for each in said).strip()
        return text, min((each.avg_logprob for each in said), default=0.0)

    def _warm_up(self) -> float:
        """Read noise twice, because the first reading is slow. Returns the second one's time, s."""
        noise = np.random.default_rng(0).normal(0, 100, _WARM_UP_S * RATE).astype(np.int16)
        self.read(noise)
        begun = time.monotonic()
        self._transcribe(noise / np.float32(FULL_SCALE))  # once, however doubtful
        return time.monotonic() - begun


_LOADED = Loaded[Reader]()
# Settings of a session, on which the model does not depend.
_OF_THE_SESSION = {"library", "pre_roll_ms", "while_speaking", "pause_ms", "partial_every_ms"}


def reader_of(settings: WhisperSettings) -> Reader:
    """Return the model of these settings, loaded once a process; raises as `Reader` does."""
    key = settings.model_dump_json(exclude=_OF_THE_SESSION)
    return _LOADED.get(key, lambda: Reader(settings))


# pipecat counts the time from the end of speech to the final text, the VAD's verdict included: 0.34
# s at p99 with Silero. At worst, the reading under way and the last one are added to that.
_VAD_P99_S = 0.35
_READINGS = 2


class WhisperSTTService(STTService):
    """A service that follows each stop frame of the VAD with one finalized transcript.

    The transcript comes at once if the pause before it was long enough to read the speech; there is
    none if there were no words. Earlier readings are pushed as interim transcripts.

    It needs a VAD before it (`VADProcessor`): the audio and the VAD's frames then arrive in the
    order in which they were pushed. Readings are made in a thread.
    """

    def __init__(self, *, settings: WhisperSettings, reader: Reader, clock: Clock) -> None:
        super().__init__(
            ttfs_p99_latency=_VAD_P99_S + _READINGS * reader.takes_s,
            settings=STTSettings(model=reader.name, language=settings.spoken),
        )
        self._reader = reader
        self._clock = clock
        self._spoken = Readings(settings, reader.window_s, reader.takes_s * 1000)
        self._interim = ""
        self._counts = {"stt_readings": 0.0, "stt_read_again": 0.0}
        self._news = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self._reading: asyncio.Task[None] | None = None

    def can_generate_metrics(self) -> bool:
        return True

    async def setup(self, setup: FrameProcessorSetup) -> None:
        await super().setup(setup)
        require_rate("Whisper", self.sample_rate)

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        self._reading = self.create_task(self._read_on(), "turngap-whisper")

    async def stop(self, frame: EndFrame) -> None:
        if self._reading is not None:
            await self._settled.wait()  # what was said is concluded first
        await self._end()
        await super().stop(frame)

    async def cancel(self, frame: CancelFrame) -> None:
        await self._end()
        await super().cancel(frame)

    async def cleanup(self) -> None:
        await self._end()
        await super().cleanup()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._interim = ""
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStartedSpeakingFrame):
            self._spoken.start()
        elif isinstance(frame, SpeechPausedFrame):
            self._spoken.pause(frame.silence_ms)
            self._news.set()
        elif isinstance(frame, VADUserStoppedSpeakingFrame):
            self._spoken.stop(frame.stop_secs * 1000)
            self._settled.clear()
            await self._conclude()
            self._news.set()

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        self._spoken.audio(audio)
        self._news.set()
        return
        yield  # what makes it a generator, which pipecat wants

    async def _end(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            await self.cancel_task(reading)

    async def _read_on(self) -> None:
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while due := self._spoken.due():
                    await self._read(*due)
                    await self._conclude()
        finally:
            self._settled.set()  # there will be no more readings to wait for

    async def _read(self, utterance: Utterance, reading: Reading) -> None:
        begun_ns = self._clock.now_ns()
        read = Text("")
        try:
            read = await asyncio.to_thread(self._reader.read, reading.pcm)
        except AgentError as e:
            await self._tell(e)
        self._counts["stt_readings"] += 1
        self._counts["stt_read_again"] += read.again is not None
        utterance.read(reading, read.text, ns_to_ms(self._clock.now_ns() - begun_ns))
        if not utterance.over and utterance.text and utterance.text != self._interim:
            self._interim = utterance.text
            interim = InterimTranscriptionFrame(self._interim, self._user_id, time_now_iso8601())
            await self.push_frame(interim)

    async def _conclude(self) -> None:
        """Push the final text of each utterance that is read to its end, in order."""
        while (text := self._spoken.concluded()) is not None:
            await self._tell_lost()
            if text:
                frame = TranscriptionFrame(text, self._user_id, time_now_iso8601(), finalized=True)
                frame.metadata[COUNTS] = self._counts
                self._counts = dict.fromkeys(self._counts, 0.0)
                await self.push_frame(frame)
            await self.emit_stt_usage_metrics()
        if self._spoken.settled:
            self._settled.set()

    async def _tell_lost(self) -> None:
        lost_ms, self._spoken.lost_ms = self._spoken.lost_ms, 0.0
        if lost_ms:
            await self._tell(
                AgentError(
                    "stt.lost",
                    f"{lost_ms / 1000:.1f} s of what was said were not heard: more than "
                    f"{MOST_MS / 60_000:.0f} minutes waited to be read by {self._reader.name}",
                    hint="a smaller model, a faster machine or shorter turns may keep up",
                )
            )

    async def _tell(self, error: AgentError) -> None:
        await self.push_error(f"{error.message} ({error.hint})", exception=error)


def prepare(settings: WhisperSettings) -> None:
    """Load and warm the model, so that no session pays for the first reading's extra work."""
    reader_of(settings)


def create(settings: WhisperSettings, clock: Clock) -> WhisperSTTService:
    """Make the service of one session; sessions with the same settings share the model."""
    return WhisperSTTService(settings=settings, reader=reader_of(settings), clock=clock)
