"""piper's voices: loaded once, spoken clause by clause, and stopped anywhere."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import soxr
from onnxruntime import (  # its compiled half has no types
    InferenceSession,
    RunOptions,  # pyright: ignore[reportAttributeAccessIssue]
    SessionOptions,  # pyright: ignore[reportAttributeAccessIssue]
)
from pipecat.frames.frames import ErrorFrame, Frame, TTSAudioRawFrame
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TTSService
from piper import PiperConfig, PiperVoice, SynthesisConfig

from turngap.backends import COUNTS
from turngap.backends.weights import folder_of
from turngap.core.audio import Pcm
from turngap.core.clock import Clock, ns_to_ms
from turngap.core.errors import AgentError, InputError, TurngapError
from turngap.core.voice import LeadCut, Request, VoiceSpeed, parted
from turngap_services.loading import Loaded, first_line, too_little_memory
from turngap_services.tts import PiperSettings, hub_voice, voice_file

T = TypeVar("T")

# Inputs of every voice; a voice with several speakers takes `sid`, too.
_INPUTS = {"input", "input_lengths", "scales"}

# A short and a long text: together they give the time per piece and per second of speech.
_WARM_TEXTS = ("Yes.", "One moment please, I will have a look at that for you.")

_LESS_MEMORY = "a voice of a lower quality (…-low, …-medium) needs less"


class Files(NamedTuple):
    """The two files of a voice."""

    model: Path
    config: Path


class _Breakable:
    """A voice's session for one piece of speech, in piper's form; `stop` ends it.

    Speech ends at the network's next operation.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._options = RunOptions()

    def run(self, names: list[str] | None, feeds: dict[str, Any]) -> Any:
        return self._session.run(names, feeds, self._options)

    def stop(self) -> None:
        self._options.terminate = True


class Voice:
    """A loaded voice. Any number of sessions may speak with it at the same time.

    Attributes:
        name: the file's name.
        speed: its recent speed, over all sessions.
    """

    def __init__(self, files: Files, threads: int) -> None:
        self.name = files.model.stem
        self.speed = VoiceSpeed()
        options = SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        config = _readable(
            files.config,
            lambda: PiperConfig.from_dict(json.loads(files.config.read_text(encoding="utf-8"))),
        )
        session = _readable(
            files.model,
            lambda: InferenceSession(str(files.model), options, providers=["CPUExecutionProvider"]),
        )
        takes = {value.name for value in session.get_inputs()}
        wanted = _INPUTS | ({"sid"} if config.num_speakers > 1 else set())
        if takes != wanted:
            raise AgentError(
                "voice.damaged",
                f"{files.model} is not a piper voice: it takes {', '.join(sorted(takes))}",
                hint=f"expected a network that takes {', '.join(sorted(wanted))}",
            )
        self._voice = PiperVoice(session=session, config=config)
        self._session = self._voice.session

    def manner(self, settings: PiperSettings) -> SynthesisConfig:
        """Return how to speak.

        Raises:
            InputError: the voice has no such speaker.
        """
        return SynthesisConfig(
            speaker_id=self._speaker(settings.speaker),
            length_scale=settings.length_scale,
            noise_scale=settings.noise_scale,
            noise_w_scale=settings.noise_w_scale,
        )

    async def speak(self, text: str, manner: SynthesisConfig, rate: int) -> Pcm:
        """Make the speech of `text` at `rate` Hz, in a thread.

        Cancelling it ends the synthesis at the network's next operation, milliseconds later.

        Raises:
            AgentError: the voice failed.
        """
        session = _Breakable(self._session)
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(None, self._speech, session, text, manner, rate)
        finally:
            session.stop()

    def spoken(self, text: str, settings: PiperSettings) -> tuple[Pcm, int]:
        """Make the speech of `text` at the voice's own rate, and return both.

        Raises:
            InputError: the voice has no such speaker.
            AgentError: the voice failed.
        """
        rate = self._voice.config.sample_rate
        return self._speech(_Breakable(self._session), text, self.manner(settings), rate), rate

    def warm_up(self, settings: PiperSettings) -> None:
        """Speak unheard, because the first synthesis is slow, and measure the voice's speed.

        Raises:
            InputError: the voice has no such speaker.
            AgentError: the voice does not speak.
        """
        manner, rate = self.manner(settings), self._voice.config.sample_rate
        self._speech(_Breakable(self._session), _WARM_TEXTS[0], manner, rate)
        for text in _WARM_TEXTS:
            begun_s = time.perf_counter()  # there is no conversation and so no clock yet
            pcm = self._speech(_Breakable(self._session), text, manner, rate)
            made_ms, audio_ms = (time.perf_counter() - begun_s) * 1000, len(pcm) * 1000 / rate
            self.speed.add(Request(len(text), audio_ms, made_ms, made_ms, audio_ms))

    def _speech(self, session: _Breakable, text: str, manner: SynthesisConfig, rate: int) -> Pcm:
        # piper's voice, with this piece's session in place of the shared one.
        voice = copy(self._voice)
        voice.session = cast(InferenceSession, session)
        try:
            made = [chunk.audio_int16_array for chunk in voice.synthesize(text, manner)]
        # A network that does not fit its voice may fail in any operation, each in its own way.
        except Exception as e:
            what = f"the piper voice {self.name}"
            raise too_little_memory(e, what, _LESS_MEMORY) or AgentError(
                "tts.piper", f"{what} failed to speak: {first_line(e)}"
            ) from e
        pcm = np.concatenate(made) if made else np.empty(0, dtype=np.int16)
        own = self._voice.config.sample_rate
        return pcm if rate == own else soxr.resample(pcm, own, rate)

    def _speaker(self, wanted: int | str | None) -> int | None:
        config = self._voice.config
        names = dict(config.speaker_id_map)
        if wanted is None:
            return None
        number = names.get(wanted) if isinstance(wanted, str) else wanted
        if number is not None and number < config.num_speakers:
            return number
        allowed = ", ".join(names) or ", ".join(map(str, range(config.num_speakers)))
        raise InputError(
            "tts.speaker",
            f"the piper voice {self.name} has no speaker {wanted!r}",
            hint=f"allowed: {allowed}",
        )


def files_of(settings: PiperSettings) -> Files:
    """Return the files of the voice in the settings, fetched if necessary.

    Raises:
        AgentError: a file is not there, or cannot be fetched.
    """
    model = voice_file(settings)
    if model is None:
        folder = folder_of(hub_voice(settings))
        name = f"{settings.voice}.onnx"
        model = next(folder.rglob(name), folder / name)
    config = model.with_name(f"{model.name}.json")
    missing = [file for file in (model, config) if not file.is_file()]
    if missing:
        raise AgentError(
            "voice.missing",
            f"no piper voice {settings.voice!r}: {' and '.join(map(str, missing))} not found",
            hint="expected an .onnx file and its .onnx.json in the same folder",
        )
    return Files(model, config)


def _readable(file: Path, read: Callable[[], T]) -> T:
    """Return what `read` returns, and turn its errors into ours."""
    try:
        return read()
    except Exception as e:  # each library has its own exceptions for a bad file
        raise too_little_memory(e, f"the piper voice {file}", _LESS_MEMORY) or AgentError(
            "voice.damaged",
            f"{file} cannot be read as a piper voice: {first_line(e)}",
            hint="remove it, and turngap fetches it again if it is a voice of the hub",
        ) from e


_LOADED = Loaded[Voice]()


def voice_of(settings: PiperSettings) -> Voice:
    """Return the voice of these settings, loaded once a process.

    Raises:
        AgentError: the voice is not there, or cannot be read.
    """
    key = (files_of(settings), settings.threads)
    return _LOADED.get(key, lambda: Voice(*key))


class PiperTTSService(TTSService):
    """A voice that speaks each piece of text, clause by clause.

    piper makes a whole sentence before it gives out any of it. Here the first clause is heard while
    the rest is made. If the voice is so slow that speech would have gaps, it is held until enough
    of it is made. Audio has the rate of the output.
    """

    def __init__(self, *, settings: PiperSettings, clock: Clock, voice: Voice) -> None:
        super().__init__(
            push_start_frame=True,
            push_stop_frames=True,
            settings=TTSSettings(model="piper", voice=voice.name, language=None),
        )
        self._clock = clock
        self._voice = voice
        self._manner = voice.manner(settings)
        self._by_clause = settings.clauses
        self._begun: str | None = None  # context of the reply whose audio has begun

    def can_generate_metrics(self) -> bool:
        return True

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        await self.start_tts_usage_metrics(text)
        pieces = parted(text) if self._by_clause else [text]
        held: list[TTSAudioRawFrame] = []
        held_ms, sounds = 0.0, False
        try:
            for number, piece in enumerate(pieces, start=1):
                asked_ns = self._clock.now_ns()
                pcm = await self._voice.speak(piece, self._manner, self.sample_rate)
                made_ms = ns_to_ms(self._clock.now_ns() - asked_ns)
                audio_ms = len(pcm) * 1000 / self.sample_rate
                self._voice.speed.add(Request(len(piece), audio_ms, made_ms, made_ms, audio_ms))
                if frame := self._frame(pcm, context_id, first=number == 1):
                    held.append(frame)
                    held_ms += frame.num_frames * 1000 / frame.sample_rate
                sounds = sounds or lasts(self._voice.speed, held_ms, pieces[number:])
                while sounds and held:
                    yield held.pop(0)
        except TurngapError as e:
            yield ErrorFrame(error=f"{e.message} ({e.hint})" if e.hint else e.message)

    def _frame(self, pcm: Pcm, context_id: str, *, first: bool) -> TTSAudioRawFrame | None:
        """Return the audio, without leading silence before a reply or in the middle of a clause."""
        cut_ms = 0.0
        if not first or context_id != self._begun:
            lead = LeadCut(self.sample_rate)
            pcm, cut_ms = lead.feed(pcm), lead.cut_ms
        if len(pcm) == 0:
            return None
        self._begun = context_id
        frame = TTSAudioRawFrame(pcm.tobytes(), self.sample_rate, 1, context_id=context_id)
        if cut_ms:
            frame.metadata[COUNTS] = {"lead_cut_ms": cut_ms}
        return frame


def lasts(speed: VoiceSpeed, made_ms: float, pieces: Sequence[str]) -> bool:
    """Return whether `made_ms` of speech, with `pieces` made after it, plays without a gap.

    The pieces are made one after another, and each can be heard only when it is complete. Each is
    assumed to be as slow to make and as short to hear as this voice makes likely. So a voice that
    is slower than speech begins only when the rest will be ready in time.
    """
    dry_ms, free_ms = made_ms, 0.0
    for piece in pieces:
        least_ms, most_ms = speed.speech_ms(len(piece))
        free_ms += speed.make_ms(most_ms)
        if free_ms > dry_ms:
            return False
        dry_ms += least_ms
    return True


def prepare(settings: PiperSettings) -> None:
    """Load and warm the voice, so that no session pays for the first synthesis' extra work."""
    voice_of(settings).warm_up(settings)


def create(settings: PiperSettings, clock: Clock) -> PiperTTSService:
    """Make the service of one session; sessions with the same voice share it."""
    return PiperTTSService(settings=settings, clock=clock, voice=voice_of(settings))


def speak(settings: PiperSettings, text: str) -> tuple[Pcm, int]:
    """Speak a text at once."""
    return voice_of(settings).spoken(text, settings)
