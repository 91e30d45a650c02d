"""A loaded Whisper: samples in, text out."""

import time
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from faster_whisper import WhisperModel
from faster_whisper.feature_extractor import FeatureExtractor

from turngap.core.audio import FULL_SCALE, Pcm
from turngap.core.errors import AgentError, InputError
from turngap.weights import at_home
from turngap_services.cuda import place
from turngap_services.loading import Loaded, engine_trouble, first_line, require_files
from turngap_services.stt.sound import RATE
from turngap_services.stt.whisper import CONVERT, WhisperSettings, weights_of
from turngap_services.stt.whisper.guard import doubt
from turngap_services.weights import folder_of

_FILES = ("model.bin", "config.json", "tokenizer.json")
_LESS_MEMORY = "a smaller model (--set stt.model=tiny.en) or stt.compute_type=int8 needs less"

# Nobody speaks faster (English: three words a second, a token and a half each): this bounds the
# cost of a model that repeats itself.
_TOKENS_PER_S = 12
_LEAST_TOKENS, _MOST_TOKENS = 16, 200
# What `fit` reads beyond the samples, and at least: whisper.cpp's users found that a margin (128 of
# the encoder's 1500 positions) is needed, and that the shortest windows repeat themselves most.
_MARGIN_S, _LEAST_S = 2.56, 6.0
# Length of the warm-up: that of a short turn.
_WARM_UP_S = 3


class FittedModel(WhisperModel):
    """Its encoder reads the audio and a little more, instead of the whole window."""

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
        again: it was read a second time, with the whole window, because of this doubt.
    """

    text: str
    again: str | None = None


class Reader:
    """A loaded model. Any number of threads may ask it; it makes `workers` readings at a time.

    Attributes:
        name: the name in the settings, or that of the directory.
        window_s: how much audio it can read at once.
        takes_s: how long a reading of a short turn takes on this machine.

    Raises:
        InputError: an unknown name, or a language that the model does not know.
        AgentError: it is not there, cannot be downloaded, or cannot be loaded.
    """

    def __init__(self, settings: WhisperSettings) -> None:
        directory = _directory(settings)
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
            _check_vocabulary(model)
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
        """Return what is said in `pcm` (16 kHz, at most `window_s`).

        Blocks, without holding the GIL.

        Raises:
            AgentError: the engine failed.
        """
        sound = pcm.astype(np.float32) / np.float32(FULL_SCALE)
        try:
            text, logprob = self._transcribe(sound)
            why = doubt(text, len(sound) / RATE, logprob) if self._fits else None
            if why is not None:
                # With silence after the words, the encoder reads its whole window.
                whole = np.zeros(round(self.window_s * RATE), np.float32)
                whole[: len(sound)] = sound
                text, _ = self._transcribe(whole)
        except (RuntimeError, MemoryError) as e:
            what = f"a reading of the Whisper model {self.name}"
            raise engine_trouble(e, what, "stt", _LESS_MEMORY) or AgentError(
                "model.failed",
                f"the Whisper model {self.name} failed: {first_line(e)}",
                hint="another model (--set stt.model=NAME) or stt.device=cpu may do",
            ) from e
        return Text(text, why)

    def _transcribe(self, sound: np.ndarray) -> tuple[str, float]:
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
        )
        said = [each for each in segments if each.no_speech_prob < settings.no_speech]
        text = "".join(each.text for each in said).strip()
        return text, min((each.avg_logprob for each in said), default=0.0)

    def _warm_up(self) -> float:
        """Read noise twice, as the first reading is slow. Returns what the second one took, s."""
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


def _directory(settings: WhisperSettings) -> Path:
    """Return the model's directory, fetched if necessary."""
    weights = weights_of(settings)
    return at_home(settings.model) if weights is None else folder_of(weights)


def _check_vocabulary(model: WhisperModel) -> None:
    """Raise ValueError if the tokenizer lacks a mark without which the first reading would fail."""
    marks = ("<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>", "<|transcribe|>")
    if missing := [m for m in marks if model.hf_tokenizer.token_to_id(m) is None]:
        raise ValueError(f"tokenizer.json has no {', '.join(missing)}")
