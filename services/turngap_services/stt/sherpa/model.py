"""A loaded streaming transducer: samples in, text out as it is heard."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import sherpa_onnx

from turngap.core.audio import FULL_SCALE, Pcm
from turngap.core.errors import AgentError, InputError
from turngap_services.level import Levelled
from turngap_services.loading import Loaded, first_line, too_little_memory
from turngap_services.stt.sherpa import SherpaSettings, weights
from turngap_services.stt.sherpa.files import EXPECTED, files_in
from turngap_services.stt.sound import RATE
from turngap_services.weights import folder_of, pinned_names

_FRAME = RATE // 100
# How much of a room's sound fills the silence that is made up in a pause.
_ROOM = RATE // 10
# Length of the warm-up: that of a short turn.
_WARM_UP_S = 2
_LESS_MEMORY = "a smaller model (--set stt.model=NAME) or fewer sessions need less"
_ALONE = re.compile(r"\bi\b")


class Recogniser:
    """A loaded model. Any number of sessions may ask it, each in a thread of its own.

    Attributes:
        name: the name in the settings, or that of the directory.
        chunk_ms: how much audio it reads at once.
        takes_s: how long it takes on this machine to conclude an utterance that was read while it
            was spoken.

    Raises:
        InputError: an unknown name.
        AgentError: it is not there, cannot be downloaded, or cannot be loaded.
    """

    def __init__(self, settings: SherpaSettings) -> None:
        directory = _directory(settings)
        self.name = directory.name if Path(settings.model).is_dir() else settings.model
        files = files_in(directory)
        self.chunk_ms = 10 * files.shift
        # Silence after the last sample, so that the last reading has all that it looks ahead to.
        self.tail = (files.window + 1) * _FRAME
        try:
            self._model = sherpa_onnx.OnlineRecognizer.from_transducer(
                encoder=str(files.encoder),
                decoder=str(files.decoder),
                joiner=str(files.joiner),
                tokens=str(files.tokens),
                num_threads=settings.threads,
                sample_rate=RATE,
            )
        # sherpa-onnx throws what C++ and onnxruntime throw.
        except Exception as e:
            raise too_little_memory(e, f"the model in {directory}", _LESS_MEMORY) or AgentError(
                "model.damaged",
                f"the model in {directory} cannot be loaded: {first_line(e)}",
                hint="download it again, or take another --set stt.model=NAME",
            ) from e
        self.takes_s = self._warm_up()

    def begin(self, known: Pcm) -> "Hearing":
        """Begin an utterance with the audio of it that is there already, which is still fed."""
        return Hearing(self, self._model, known)

    def _warm_up(self) -> float:
        """Read noise twice, as the first reading is slow. Returns what the second end took, s."""
        noise = np.random.default_rng(0).normal(0, 100, _WARM_UP_S * RATE).astype(np.int16)

        def conclude() -> float:
            hearing = self.begin(noise)
            hearing.hear(noise)
            begun = time.monotonic()
            hearing.conclude()
            return time.monotonic() - begun

        conclude()
        return conclude()


class Hearing:
    """One utterance, read as it is spoken. Its calls block, without holding the GIL for long.

    Raises:
        AgentError: from any of its methods, where the engine fails.
    """

    def __init__(self, recogniser: Recogniser, model: Any, known: Pcm) -> None:
        self._recogniser = recogniser
        self._model = model
        self._stream = model.create_stream()
        self._level = Levelled(RATE, known)
        self._latest = np.zeros(1, np.float32)
        self._cancelled = threading.Event()

    def hear(self, pcm: Pcm) -> str:
        """Take the next samples (16 kHz); return the text so far."""
        samples = _samples(self._level.feed(pcm))
        self._latest = np.concatenate((self._latest, samples))[-_ROOM:]
        return self._read(samples)

    def rest(self) -> str:
        """Return the text so far, as if silence followed; the utterance may go on."""
        # The room as it sounds now, again and again: digital silence would be a sound of its own.
        return self._read(np.resize(self._latest, self._recogniser.tail))

    def conclude(self) -> str:
        """Return the text of the utterance, which is over."""
        tail = np.zeros(self._recogniser.tail, np.float32)
        return self._read(np.concatenate((_samples(self._level.flush()), tail)), last=True)

    def cancel(self) -> None:
        """Let a call that another thread is in return after the reading under way."""
        self._cancelled.set()

    def _read(self, samples: np.ndarray, *, last: bool = False) -> str:
        try:
            self._stream.accept_waveform(RATE, samples)
            if last:
                self._stream.input_finished()
            while self._model.is_ready(self._stream) and not self._cancelled.is_set():
                self._model.decode_stream(self._stream)
            return written(self._model.get_result(self._stream))
        except (RuntimeError, MemoryError, IndexError) as e:
            what = f"a reading of the model {self._recogniser.name}"
            raise too_little_memory(e, what, _LESS_MEMORY) or AgentError(
                "model.failed",
                f"the model {self._recogniser.name} failed: {first_line(e)}",
                hint="another model (--set stt.model=NAME) may do",
            ) from e


def written(text: str) -> str:
    """The text as people write it: models that know only capitals are not to shout at an LLM."""
    text = " ".join(text.split())
    if any(letter.islower() for letter in text):
        return text
    return _ALONE.sub("I", text.lower())


_LOADED = Loaded[Recogniser]()


def recogniser_of(settings: SherpaSettings) -> Recogniser:
    """Return the model of these settings, loaded once a process; raises as `Recogniser` does."""
    key = settings.model_dump_json(exclude={"library", "pre_roll_ms", "pause_ms"})
    return _LOADED.get(key, lambda: Recogniser(settings))


def _samples(pcm: Pcm) -> np.ndarray:
    return pcm.astype(np.float32) / np.float32(FULL_SCALE)


def _directory(settings: SherpaSettings) -> Path:
    """Return the model's directory; downloads it if necessary."""
    published = weights(settings)
    if published is not None:
        return folder_of(published)
    given = Path(settings.model).expanduser()
    if given.is_dir():
        return given
    if given.name != settings.model:
        raise AgentError("model.missing", f"no model directory at {given}", hint=EXPECTED)
    raise InputError(
        "model.unknown",
        f"no streaming model named {settings.model!r}, and no directory of that name",
        hint=f"known: {', '.join(pinned_names('sherpa'))}; or a directory",
    )
