"""A piper voice: its files are found and loaded once, and its speech can be broken off."""

import asyncio
import json
import time
from collections.abc import Callable
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
from piper import PiperConfig, PiperVoice, SynthesisConfig

from turngap.core.audio import Pcm
from turngap.core.errors import AgentError, InputError
from turngap.core.speeds import Request, VoiceSpeed
from turngap_services.loading import Loaded, first_line, too_little_memory
from turngap_services.tts.piper import PiperSettings, hub_voice, voice_file
from turngap_services.weights import folder_of

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
    """A voice's session, as piper uses it, for one piece of speech; `stop` ends it.

    It ends at the network's next operation.
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
        speed: how fast it has been of late, for all sessions.
    """

    def __init__(self, files: Files, threads: int) -> None:
        self.name = files.model.stem
        self.speed = VoiceSpeed()
        self._voice = _loaded(files, threads)
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
        """Speak unheard, as the first synthesis is slow, and measure the voice's speed.

        Raises:
            InputError: the voice has no such speaker.
            AgentError: it does not speak.
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
        AgentError: one of them is not there, or cannot be fetched.
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
            hint="expected an .onnx file and its .onnx.json beside it",
        )
    return Files(model, config)


def _loaded(files: Files, threads: int) -> PiperVoice:
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
    return PiperVoice(session=session, config=config)


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
        AgentError: it is not there, or cannot be read.
    """
    key = (files_of(settings), settings.threads)
    return _LOADED.get(key, lambda: Voice(*key))
